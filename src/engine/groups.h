// The groups of a worker, from their forming to their end. Engine thread, unless stated otherwise.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/server_set.h"
#include "engine/group.h"

namespace herring::engine {

struct Core;

class Groups {
 public:
  explicit Groups(Core& core);

  // The group of all ranks. Any thread.
  const std::shared_ptr<Group>& world() const { return world_; }
  std::vector<std::shared_ptr<Group>> all() const;  // the world first
  const std::map<uint32_t, std::shared_ptr<Group>>& but_the_world() const { return groups_; }
  // The groups that this rank has destroyed last, which others may still use.
  const std::deque<std::shared_ptr<Group>>& destroyed() const { return destroyed_; }
  // Returns null if this rank knows no group with that number.
  std::shared_ptr<Group> find(uint32_t number) const;

  // Creates a group and tells its servers. Each server answers with the ID `id` of the operation
  // that forms the group.
  std::shared_ptr<Group> define(uint32_t number, const std::string& name,
                                std::vector<uint32_t> ranks, uint64_t id);
  // Defines the group at a server. `id` comes back in its answer.
  void tell_of(const Group& group, uint32_t server, uint64_t id, uint8_t flags);
  // Completes the forming of a group, once all of its servers know it.
  void formed(const std::shared_ptr<Group>& group);
  // Leaves the group: this rank makes no more calls in it. kInvalidArgument: something is still in
  // flight.
  Status destroy(const std::shared_ptr<Group>& group);
  // Like destroy(), for a group in which nothing is known to be in flight.
  void forget(const std::shared_ptr<Group>& group);

  // Calls off the group: nothing moves in it any more, here or elsewhere. Operations in it fail.
  void call_off(const std::shared_ptr<Group>& group, const Status& why);
  // Fails a group in which the operations in flight cannot go on.
  void fail(uint32_t number, const Status& why);
  // Calls off the group, or ends the job if nothing else could go on.
  void end_or_call_off(const std::shared_ptr<Group>& group, const Status& why);
  // Adopts a later version of the set of servers. What they have to do moves to them.
  void serve(const control::ServerSet& set);

  // Returns whether the loss affects the group, and whether some carrier goes on in any group
  // although members are gone.
  static bool affects(const control::Loss& loss, const Group& group);
  bool outlive_members() const;
  // Returns text that says which member left first; empty if none has left.
  std::string departed(const Group& group) const;

 private:
  void tell_servers(const Group& group, uint8_t flags, const std::string& why);

  Core& core_;
  const std::shared_ptr<Group> world_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;  // all but the world, by number
  std::deque<std::shared_ptr<Group>> destroyed_;       // empty if no server can be replaced
};

}  // namespace herring::engine
