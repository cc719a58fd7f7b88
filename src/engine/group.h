// A group from the point of view of one member. It knows who is in the group, which server owns
// which part of its data, and whether operations can still complete.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/local_group.h"

namespace herring::engine {

class Group : public LocalGroup {
 public:
  // `rank`: this worker's rank in the job; it must be a member.
  Group(const control::Cluster& cluster, control::Group members, uint32_t rank);

  bool is_world() const { return members().is_world(); }
  uint32_t size() const { return members().size(); }
  uint32_t rank(uint32_t index) const { return members().ranks()[index]; }

  const control::ShardMap& shards() const { return shards_; }
  // The servers that must know the group: those that it uses, and all dedicated servers. A
  // dedicated server that did not know the group would end when a worker dies.
  const std::vector<uint32_t>& servers() const { return servers_; }
  bool is_known_to(uint32_t server) const {
    return std::binary_search(servers_.begin(), servers_.end(), server);
  }

  // Whether buffers go through the node stage: some node has several members, or there is one node.
  bool uses_node_stage() const { return members().nodes() == 1 || members().most_on_a_node() > 1; }

  // Whether this rank steers the credit of all members: the first rank of the group does.
  bool steers() const { return index() == 0; }
  uint32_t next_stream() { return next_stream_++; }  // any thread; for streams of plans

  // How many times all members have joined. Calls that some members did without are counted anew
  // after each time. Any thread.
  uint32_t joins() const { return joins_.load(std::memory_order_relaxed); }
  void count_join() { joins_.fetch_add(1, std::memory_order_relaxed); }

  // The state of the group is open, left by a member, or called off. Everyone who holds the group
  // shares this state. Any thread.
  // Returns why nothing new can complete in the group. Partial all-reduces still can, and so can
  // messages if a member has only left. Returns ok if everything can.
  Status failure() const;
  // Returns why nothing moves in the group any more, here or elsewhere; ok if it is not called off.
  Status called_off() const;
  // Calls the group off. The first reason stays; returns false if there already was one.
  bool call_off(const Status& why);
  // Records that a member has left. Every operation that needs all members fails with `why` from
  // now on.
  void leave(const Status& why);

  // Number of all-reduces that this rank has called since all members last joined. Engine thread.
  uint64_t called = 0;
  // Whether members have begun to exchange their addresses, and have finished. Engine thread.
  bool meets = false, met = false;

 private:
  const control::ShardMap shards_;
  std::vector<uint32_t> servers_;
  std::atomic<uint32_t> next_stream_;
  std::atomic<uint32_t> joins_{0};

  mutable std::mutex mutex_;
  Status left_, called_off_;  // guarded by mutex_; whichever was set first is failure()
};

}  // namespace herring::engine
