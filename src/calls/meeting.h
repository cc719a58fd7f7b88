// Exchanges the addresses at which the workers of a group listen for each other. Each worker tells
// all others once, before the first schedule of the group. Engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "calls/underway.h"

namespace herring::calls {

class Meeting {
 public:
  Meeting(Core& core, Calls& calls) : core_(core), calls_(calls) {}

  // Returns the address at which other workers reach this one; listens there from the first call
  // on.
  Result<std::string> own_address();
  // Starts the schedule of an operation as soon as its group has met.
  void when_met(Underway& operation, Key key);
  // Ends this rank's part of the job if an operation has waited too long for its group to meet.
  void check_deadlines(Nanos now);

 private:
  void begin(const std::shared_ptr<Group>& group);
  void met(const std::shared_ptr<Group>& group);
  void on_addresses(const std::shared_ptr<Group>& group, const Operation& gathered);

  struct Waiting {
    uint64_t operation = 0;
    Key key;
    Nanos since = 0;
  };

  Core& core_;
  Calls& calls_;
  std::string own_address_;
  std::multimap<uint32_t, Waiting> waiting_;  // schedules that wait, by group
};

}  // namespace herring::calls
