// Which groups this worker is in, which ranks have died or left, and what fails for it: the group
// that needs them, and no other, where the job can go on at all. Engine thread, but for what says
// otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "worker/group.h"

namespace herring::worker {

class EngineCore;

class Membership {
 public:
  Membership(EngineCore& engine, const control::Cluster& cluster, uint32_t rank);

  // All ranks. Any thread.
  const std::shared_ptr<Group>& world() const { return world_; }

  // Null: this rank knows none of that number.
  std::shared_ptr<Group> find(uint32_t number) const;
  // A new group, of which its servers are told; each answers the operation `id`.
  std::shared_ptr<Group> define(uint32_t number, const std::string& name,
                                std::vector<uint32_t> ranks, uint64_t id);
  // All of its servers know it.
  void formed(const std::shared_ptr<Group>& group);
  // This rank calls nothing in it any more. kInvalidArgument: something is still in flight.
  Status destroy(const std::shared_ptr<Group>& group);
  // Likewise; nothing of it is in flight.
  void forget(const std::shared_ptr<Group>& group);

  // A process is dead.
  void peer_lost(const control::Loss& loss);
  // A rank has said goodbye: what still needs it fails.
  void rank_left(uint32_t rank);
  // A server's connection has ended.
  void link_closed(uint32_t server, const Status& why);
  void neighbour_closed(uint32_t rank, const Status& why);
  // A server has called off what moves in the group.
  void called_off_by_server(uint32_t group);
  // What moves in the group cannot go on.
  void fail_group(uint32_t group, const Status& why);
  // Call it now and then.
  void check_departures(Nanos now);
  void release_servers();

  // Nothing moves in the group any more, here or elsewhere; what has not ended is failed.
  void call_off(const std::shared_ptr<Group>& group, const Status& why);
  bool has_ended(uint32_t server) const { return ended_servers_.contains(server); }
  bool has_left(uint32_t rank) const { return std::ranges::find(left_, rank) != left_.end(); }

 private:
  std::vector<std::shared_ptr<Group>> groups() const;  // the world first
  bool affects(const control::Loss& loss, const Group& group) const;
  bool survives(const control::Loss& loss) const;
  void end_or_call_off(const std::shared_ptr<Group>& group, const Status& why);
  void check_link(uint32_t server, const std::string& how, uint64_t received);
  void fail_what_needs(uint32_t server);
  void tell_servers(const Group& group, uint8_t flags, const std::string& why);
  std::string departed(const Group& group) const;

  EngineCore& engine_;
  const control::Cluster& cluster_;
  const uint32_t rank_;
  const std::shared_ptr<Group> world_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;  // the others, by number
  std::vector<control::Loss> lost_;
  std::set<uint32_t> ended_servers_;
  std::vector<uint32_t> left_;                         // ranks, in that order
  std::map<uint32_t, uint32_t> staying_;  // servers to be released, and their ranks, which left
  Nanos left_since_ = 0;
};

}  // namespace herring::worker
