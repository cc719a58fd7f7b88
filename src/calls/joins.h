// Carries out join() on a rank. The rank waits until all have joined. Meanwhile it takes part in
// the all-reduces of the others but adds nothing. Data of its node neighbours and results of the
// servers pass through staging memory. Engine thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "calls/underway.h"
#include "wire/frame.h"

namespace herring::calls {

class Joins {
 public:
  Joins(Core& core, Calls& calls) : core_(core), calls_(calls) {}

  void start(Underway& join);
  // Handles the reply of a server, which says for a home that all ranks have joined.
  void on_reply(Underway& join, uint32_t server, uint32_t home, std::vector<uint64_t> counts);
  // Handles an error that a server sent for the join.
  void on_error(Underway& join, const Status& why);
  // Fails the join once no all-reduce of other ranks goes through this rank.
  void fail(Underway& join, const Status& why);
  // Takes part in an operation that another rank of the group announced. Returns kProtocol if it
  // cannot.
  Status take_part(const wire::FrameHeader& header, std::string_view announced);
  // Finishes the group's join if it is complete and no all-reduce of others goes through this rank.
  void settle(uint32_t group);

 private:
  Core& core_;
  Calls& calls_;
};

}  // namespace herring::calls
