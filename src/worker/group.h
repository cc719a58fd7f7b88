// A group as one of its members uses it: who is in it, who owns what of it, and whether it still
// can do anything.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/local_group.h"

namespace herring::worker {

class Group : public LocalGroup {
 public:
  // `rank`: this worker's in the job, a member.
  Group(const control::Cluster& cluster, control::Group members, uint32_t rank);

  bool is_world() const { return members().is_world(); }
  uint32_t size() const { return members().size(); }
  uint32_t rank(uint32_t index) const { return members().ranks()[index]; }

  const control::ShardMap& shards() const { return shards_; }
  // Those that must know of it: what it uses, and dedicated ones, which would otherwise end with a
  // worker's death.
  const std::vector<uint32_t>& servers() const { return servers_; }
  bool is_known_to(uint32_t server) const {
    return std::binary_search(servers_.begin(), servers_.end(), server);
  }

  // Buffers go through the node stage when any node has several members, or there is one node.
  bool uses_node_stage() const { return members().nodes() == 1 || members().most_on_a_node() > 1; }

  // Its first rank steers the credit of all its members.
  bool steers() const { return index() == 0; }
  uint32_t next_stream() { return next_stream_++; }  // any thread; streams of plans

  // How often all its members have joined: calls that some of them did without are counted anew
  // after each. Any thread.
  uint32_t joins() const { return joins_.load(std::memory_order_relaxed); }
  void count_join() { joins_.fetch_add(1, std::memory_order_relaxed); }

  // Its state, which all who hold it share: open, left by a member, or called off. Any thread.
  // Why nothing can complete in it any more but partial all-reduces, and messages if a member has
  // only left; ok: it can.
  Status failure() const;
  // Why nothing moves in it any more, here or elsewhere; ok: it is not called off.
  Status called_off() const;
  // The first reason stays. False: there was one already.
  bool call_off(const Status& why);
  // A member has left: what all its members do fails with `why`, now and later.
  void leave(const Status& why);

  // Engine thread: all-reduces that this rank has called since all have joined.
  uint64_t called = 0;
  // Engine thread: its members tell each other where they are, and have done so.
  bool meets = false, met = false;

 private:
  const control::ShardMap shards_;
  std::vector<uint32_t> servers_;
  std::atomic<uint32_t> next_stream_;
  std::atomic<uint32_t> joins_{0};

  mutable std::mutex mutex_;
  Status left_, called_off_;  // guarded by mutex_; whichever came first is failure()
};

}  // namespace herring::worker
