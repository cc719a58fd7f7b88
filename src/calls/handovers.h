// A rank's part when servers die that answer for names (server/handover.h): it knows who answers
// instead, announces again what is not answered, and says which answers it has. Engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calls/answers.h"
#include "calls/call.h"
#include "engine/owners.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace herring::calls {

using engine::Owner;

class Calls;
struct Underway;

class Handovers {
 public:
  Handovers(Core& core, Calls& calls) : core_(core), calls_(calls) {}

  // Returns who gives a new group its number: a server that the group will use. So it can be formed
  // whatever happens to others.
  Owner owner_of(const wire::FormGroup& forms, const std::string& name) const;

  // See engine::Carrier.
  bool can_move(const control::ServerSet& set) const;
  void move(const Group& group, const Owner& owner);
  void serve(const control::ServerSet& set);
  void forget(uint32_t group);
  // A replacement comes. Returns the ID of the operation that forms the group, which it has to
  // confirm, too; 0 if it has not.
  uint64_t confirms(uint32_t server, const Group& group);
  // The replacement does not come.
  void drop(uint32_t server);

  // Notes an answer. Returns false if it must be ignored, because another server answers by now,
  // and kProtocol if it is impossible.
  Result<bool> receive(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  // This rank joins: it gets no answers to some of the others' calls.
  void join(const Group& group);
  // Up to which number this rank lacks no answer of a home in a group.
  struct Complete {
    uint32_t group = 0, home = 0;
    uint64_t number = 0;
  };
  std::vector<Complete> complete() const;
  // No rank lacks these answers.
  void settle(const Complete& all);
  size_t bytes_kept() const;
  // Tells the owner of a name that this rank refuses a call.
  void refuse(const Group& group, wire::Announce refusal);

 private:
  struct Refusal {
    uint32_t group = 0;
    wire::Announce message;
  };

  std::vector<uint32_t> owners_of(const Call& call) const;
  std::vector<std::shared_ptr<Underway>> forming() const;
  bool is_asked(const Underway& operation, const Group& group, uint32_t home) const;
  void hand_over(const Group& group, const Owner& owner);
  Result<bool> receive_met(uint32_t server, const wire::FrameHeader& header,
                           std::string_view payload);
  void tell_met(const Group& group, uint32_t home, std::vector<wire::Met>& met);
  void send(const Refusal& refusal, const Owner& owner);

  Core& core_;
  Calls& calls_;
  std::map<std::pair<uint32_t, uint32_t>, Answers> answers_;  // by group and home
  std::map<uint64_t, Refusal> refusals_;  // not answered, by ID
  // The latest messages that did not fit their counterparts, by group and home.
  std::map<std::pair<uint32_t, uint32_t>, std::deque<wire::Met>> mismatches_;
};

}  // namespace herring::calls
