// The slot table: which segments of which operations are being summed, and what is still missing.
//
// A slot holds one segment in one round. Every contribution lands in a lane of its own; whoever
// completes a group of adjacent lanes combines them, whoever completes the slot rounds the result.
// The result goes to every contributor from one buffer and is freed when the last has been sent.
// Proxies share the table: its mutex is held for bookkeeping only, never across a sum or a system
// call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "reduce/reduce.h"
#include "server/group_table.h"
#include "server/lane_pool.h"
#include "transport/transport.h"
#include "wire/key.h"
#include "wire/messages.h"

namespace herring::server {

using wire::Key;

class Peer;  // one flow of a worker, see peer.h
struct Slot;

struct Contribution {
  enum State : uint8_t { kNone = 0, kReceiving, kHere, kLost };  // kLost: nobody to answer
  char* lane = nullptr;  // null: nothing to add
  Peer* from = nullptr;
  uint32_t rank = 0;     // whose flow that is
  State state = kNone;
  bool wants_result = false;
};

// What is known of kBlockSegments segments. Blocks come and go as their segments do, so that an
// operation takes memory for what is on its way, whatever its size.
inline constexpr uint32_t kBlockSegments = 64;
struct Block {
  std::array<Slot*, kBlockSegments> slots{};  // null before the first and after the last use
  uint64_t done = 0;                          // bits: completed once, never again
  uint32_t released = 0;                      // segments whose results have all been sent
};

// One node or rank of the group that takes part in an operation.
struct Contributor {
  bool opened = false;
  uint32_t arrived = 0;  // segments
};

// One shard of one buffer in one round.
struct Operation {
  Key key;
  std::shared_ptr<JobGroup> group;
  wire::Open open;
  Nanos since = 0;
  bool warned = false;
  uint32_t expected = 0;               // contributors
  uint64_t workers = 0;                // workers in the contributions opened so far
  std::vector<Contributor> contributors;
  uint32_t first_rank = 0;             // that opened it
  uint32_t segments = 0;
  std::vector<Block*> blocks;          // null before the first use, kAllReleased after the last
  uint32_t released = 0;               // segments whose results have all been sent
  uint32_t slots = 0;                  // in use now
};

// Adjacent contributors that are combined at once.
struct Subtree {
  uint16_t members = 0, arrived = 0;
  char* partial = nullptr;  // in the accumulator type
  bool wide = false;        // partial is from the wide pool
};

struct Slot {
  Operation* op = nullptr;
  uint32_t segment = 0;
  uint32_t bytes = 0;
  uint32_t groups_done = 0;
  std::vector<Contribution> contributions;  // by contributor
  std::vector<Subtree> groups;              // of reduce::kTreeGroup contributors
  char* result = nullptr;
  uint32_t given = 0;  // contributors that had something to add
  bool called_off = false;  // completed without some: its result is none
  std::atomic<uint32_t> results_pending{0};
};

class Aggregator {
 public:
  // `deliver(slot)`: the slot's result is there; send it to slot.contributions[i].from for each i.
  using Deliver = std::function<void(Slot&)>;

  // `most_open`: operations that one rank may have begun and that are still in progress.
  Aggregator(const control::Cluster& cluster, const GroupTable& groups, size_t segment_bytes,
             size_t most_open, Deliver deliver, std::function<Nanos()> now);
  ~Aggregator();

  // kOpen from `rank`. kMismatch when it contradicts what another contributor said.
  Status open(const Key& key, wire::Open open, uint32_t rank);
  // Reserves lanes for the segments of a kData header from `rank`; fills `out` for its payload and
  // `slots` (header.segments of them). Everything is checked before anything is changed. False: the
  // group is called off, and nobody waits for these segments.
  Result<bool> begin(const wire::FrameHeader& header, uint32_t rank, Peer* from,
                     transport::Destinations& out, Slot** slots);
  // The rank is gone and its flows are closed: rounds of partial all-reduces go on without it, now
  // and later, and the other operations of its groups are called off. Where it has `left`, they go
  // on, as its part in them is over, unless it broke off inside a segment. On a proxy's thread.
  void rank_gone(uint32_t rank, bool left);
  // Calls off what is in progress in a group, but for rounds of partial all-reduces: what has come
  // is answered, as the remains of an operation that has failed, and what comes is not begun. On a
  // proxy's thread.
  void break_group(JobGroup& group);
  // The contribution of `rank` to this slot is complete.
  void arrived(Slot& slot, uint32_t rank);
  // One contributor's result has left; frees the slot with the last.
  void result_sent(Slot& slot);

  // Operations that wait longer than their warning or deadline: text says who is missing.
  struct Overdue {
    Key key;
    bool fatal = false;
    std::string text;
    std::vector<uint32_t> ranks;  // to tell
  };
  std::vector<Overdue> overdue(Nanos now);

  bool idle() {
    std::lock_guard lock(mutex_);
    return operations_.empty();
  }
  size_t segment_bytes() const { return segment_bytes_; }

 private:
  static constexpr uint32_t kNobody = ~0u;

  // All segments of the operations in progress: 1 TB of segments of 8 KiB.
  static constexpr uint64_t kMostSegments = uint64_t{1} << 27;
  static Block* const kAllReleased;

  static uint32_t expected_by(const control::Group& group, const wire::Open& open);
  static uint32_t contributor_of(const control::Group& group, const wire::Open& open,
                                 uint32_t rank);
  Status check(const control::Group& group, const wire::Open& open, uint32_t rank) const;
  Result<Operation*> add(const Key& key, std::shared_ptr<JobGroup> group, const wire::Open& open,
                         uint32_t rank);
  void erase(Operation& op);
  static Slot* slot_of(const Operation& op, uint32_t segment);
  static bool is_done(const Operation& op, uint32_t segment);
  void mark_done(const Slot& slot);
  template <typename Action>
  void for_each_slot(Operation& op, const Action& action);
  static bool goes_on_without(const Operation& op);
  struct Missing {
    Slot* slot;
    uint32_t contributor;
  };
  void call_off(JobGroup& group, std::vector<Missing>& missing);
  void settle_missing(const std::vector<Missing>& missing);
  Slot* take_slot(Operation& op, uint32_t segment);
  void settle(Slot& slot, uint32_t contributor, Contribution::State state);
  void combine_group(Slot& slot, uint32_t group);
  void finish(Slot& slot);
  std::string describe_missing(const Operation& op, std::vector<uint32_t>* present) const;

  const control::Cluster& cluster_;
  const GroupTable& groups_;
  const size_t segment_bytes_, most_open_;
  const Deliver deliver_;
  const std::function<Nanos()> now_;

  std::mutex mutex_;  // guards everything below
  std::map<Key, std::unique_ptr<Operation>> operations_;
  LanePool lanes_;
  LanePool wide_lanes_;  // partial sums of 16-bit floats
  std::vector<std::unique_ptr<Slot>> all_slots_;
  std::vector<Slot*> free_slots_;
  std::vector<std::unique_ptr<Block>> all_blocks_;
  std::vector<Block*> free_blocks_;
  Nanos moved_ = 0;            // when a contribution or a result was last complete
  std::vector<size_t> open_;   // by rank: operations that it was the first to open
  uint64_t segments_ = 0;      // of all operations
  std::vector<uint32_t> lost_;  // ranks
};

}  // namespace herring::server
