// The slot table: which segments of which operations are being summed, and which contributions are
// missing.
//
// A slot holds one segment in one round. Every contribution is received into its own lane. The
// thread that completes a group of adjacent lanes combines them; the thread that completes the slot
// rounds the result. All contributors get the result from one buffer, which is freed when the last
// copy has been sent. Proxies share the table. Its mutex is held for bookkeeping only, never during
// a sum or a system call.
//
// After the loss of a server, others stand in for it (control::ServerSet), and workers push again
// what it may not have answered. A worker that has the result of a segment gives the result instead
// of its contribution. Then all who lack it get it at once, and nothing is summed. Such an
// operation seldom becomes whole, because nobody pushes what all workers have. It stays until no
// worker can push more of it (again.cc).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/lane_pool.h"
#include "control/cluster.h"
#include "control/server_set.h"
#include "observe/lateness.h"
#include "observe/recorder.h"
#include "reduce/reduce.h"
#include "server/group_table.h"
#include "server/view.h"
#include "transport/transport.h"
#include "wire/key.h"
#include "wire/messages.h"

namespace herring::server {

using wire::Key;

class Peer;  // one flow of a worker, see peer.h
struct Slot;

struct Contribution {
  enum State : uint8_t { kNone = 0, kReceiving, kHere, kLost };  // kLost: there is nobody to answer
  char* lane = nullptr;  // null: nothing to add
  Peer* from = nullptr;
  uint32_t rank = 0;     // the worker of the flow `from`
  State state = kNone;
  bool wants_result = false;
  bool gives = false;     // the lane holds the result
  bool answered = false;  // only set if the slot's result was given
};

// The state of kBlockSegments segments. Blocks exist only while their segments are in use. So an
// operation takes memory only for segments on their way, whatever its size.
inline constexpr uint32_t kBlockSegments = 64;
struct Block {
  std::array<Slot*, kBlockSegments> slots{};  // null before the first and after the last use
  uint64_t done = 0;                          // bits: completed, so it must not come again
  uint32_t released = 0;                      // segments whose results have all been sent
};

// One node or rank of the group that takes part in an operation.
struct Contributor {
  bool opened = false;
  uint32_t arrived = 0;  // segments
  uint32_t result_workers = 0;  // workers in the results that it gives
  size_t later = 0;      // operations of the stream that it has opened since this was pushed again
};

// One shard of one buffer in one round.
struct Operation {
  Key key;
  std::shared_ptr<JobGroup> group;
  wire::Open open;
  Nanos since = 0;
  bool warned = false;
  uint32_t expected = 0;               // contributors
  uint32_t together = reduce::kTreeGroup;  // of these, that are added in one step
  uint64_t workers = 0;                // workers in the contributions opened so far
  std::vector<Contributor> contributors;
  uint32_t unopened = 0;               // contributors that have not opened it and may
  uint32_t first_rank = 0;             // the rank that opened it first
  uint32_t segments = 0;
  std::vector<Block*> blocks;          // null before the first use, kAllReleased after the last
  uint32_t released = 0;               // segments whose results have all been sent
  uint32_t slots = 0;                  // slots in use now
  uint32_t combined = 0;               // segments whose results exist
  bool broken = false;                 // some contributions are lost, so there is no whole result
  bool again = false;                  // pushed again, so it may never become whole
  std::atomic<bool> moved{false};      // its home serves again, so it goes on there
  bool dropped = false;                // nobody needs it any more
  bool compares = false;               // who comes last is counted
  Nanos called = 0;                    // when it was opened first
  Nanos newest = 0;                    // when its latest contribution arrived
  std::atomic<Nanos> handed{0};        // when a result was last given to a flow
  observe::Mark mark;
};

// Adjacent contributors that are combined together.
struct Subtree {
  uint32_t members = 0, arrived = 0;
  char* partial = nullptr;  // in the accumulator type
  LanePool* pool = nullptr;  // of `partial`
  bool combining = false;   // some thread combines its lanes
};

struct Slot {
  Operation* op = nullptr;
  uint32_t segment = 0;
  uint32_t bytes = 0;         // of each contribution
  uint32_t result_bytes = 0;
  uint32_t groups_done = 0;
  std::vector<Contribution> contributions;  // by contributor
  std::vector<Subtree> groups;              // each of up to Operation::together contributors
  LanePool* results = nullptr;  // the pool of `result`, and of results that workers give
  char* result = nullptr;
  uint32_t added = 0;  // contributors that had something to add
  uint32_t arrived = 0;  // contributions
  Nanos newest = 0;      // when the latest of them arrived
  bool called_off = false;  // some contributions are lost, so there is no result
  bool given = false;       // a worker gave the result
  uint32_t given_workers = 0;  // workers in that
  bool over = false;        // its result was given, and everybody who needs it is answered
  bool unread = false;      // a flow to which the result was lent has ended
  uint32_t combining = 0;   // groups of contributions that some thread combines
  std::atomic<uint32_t> results_pending{0};
};

class Aggregator {
 public:
  // Called when the slot's result is ready, to send it to contributions[i].from for each i of
  // `contributors`; if that is empty, for all that are not lost.
  using Deliver = std::function<void(Slot&, std::span<const uint32_t> contributors)>;

  // `most_open`: maximum number of operations in progress that one rank was the first to open.
  // `recorder` gets an entry for each operation. All references must outlive this object.
  Aggregator(const control::Cluster& cluster, const GroupTable& groups, size_t segment_bytes,
             size_t most_open, Deliver deliver, std::function<Nanos()> now,
             observe::Recorder& recorder);
  ~Aggregator();

  // Handles a kOpen from `rank`. Returns kMismatch if it contradicts another contributor.
  Status open(const Key& key, wire::Open open, uint32_t rank);
  // Reserves lanes for the segments of a kData header from `rank`. Fills `out` for the payload, and
  // header.segments entries of `slots`. Checks everything before it changes anything. Unless it
  // returns kTaken, nobody waits for these segments here: the group is called off, or their home
  // serves again.
  enum class Begun { kTaken, kCalledOff, kMoved };
  Result<Begun> begin(const wire::FrameHeader& header, uint32_t rank, Peer* from,
                     transport::Destinations& out, Slot** slots);
  // Handles a rank that is gone and whose flows are closed. Rounds of partial all-reduces go on
  // without it, now and later. The other operations of its groups are called off. If the rank has
  // `left`, they go on, because its part in them is over, unless it broke off inside a segment. On
  // a proxy's thread.
  void rank_gone(uint32_t rank, bool left);
  // Calls off the operations in a group, except rounds of partial all-reduces. Contributions that
  // have arrived are answered as parts of a failed operation; later ones are not begun. On a
  // proxy's thread.
  void break_group(JobGroup& group);
  // Adopts a later version of the set of servers. What this server did for homes that serve again
  // goes on there. `window`: segments that a worker may have outstanding here. On a proxy's thread.
  void serve(const control::ServerSet& set, size_t window);
  // The contribution of `rank` to this slot is complete since `now`.
  void arrived(Slot& slot, uint32_t rank, Nanos now);
  // One contributor's result has been sent. The last one frees the slot.
  void result_sent(Slot& slot);
  // Like result_sent(), but the result was lent to a flow that has ended. The worker may still read
  // what has reached its system, so the memory of this result is not used again.
  void result_unread(Slot& slot);

  // The ranks of the job that have opened an operation, and those for which it waits: those that
  // have not opened it or, if all have, those that have sent the fewest segments.
  struct Awaited {
    std::vector<uint32_t> present, missing, behind;
    uint32_t fewest = 0;

    // Whether all have sent the same segments, so that none of them holds up the others here. They
    // may all wait for another server.
    bool level() const {
      return missing.empty() && behind.size() > 1 && behind.size() == present.size();
    }
  };
  // An operation that has waited longer than its warning or deadline; the text says who is missing.
  // Those who are present are to be told.
  struct Overdue {
    bool fatal = false;
    std::string text;
    Awaited awaited;
  };
  std::vector<Overdue> overdue(Nanos now);
  // Returns the groups in which an operation waits for a member that has destroyed the group, and
  // texts that say so: its part was over, but what others lack of it was lost with a server. In a
  // change of the coordinator.
  // `by_left`: also those in which one waits for a member that has left the job, because nobody
  // else tells workers of that.
  std::map<std::shared_ptr<JobGroup>, std::string> stranded(Nanos now, bool by_left);
  // Adds what there is to tell about operations. Takes a time bounded by their number.
  void report(Nanos now, ServerView& view);

  bool idle();
  size_t segment_bytes() const { return segment_bytes_; }

 private:
  static constexpr uint32_t kNobody = ~0u;

  // Limit for all operations in progress together: 1 TB in segments of 8 KiB.
  static constexpr uint64_t kMostSegments = uint64_t{1} << 27;
  static Block* const kAllReleased;

  static uint32_t expected_by(const control::Group& group, const wire::Open& open);
  static uint32_t contributor_of(const control::Group& group, const wire::Open& open,
                                 uint32_t rank);
  Status check(const control::Group& group, const wire::Open& open, uint32_t rank) const;
  Result<Operation*> add(const Key& key, std::shared_ptr<JobGroup> group, const wire::Open& open,
                         uint32_t rank);
  void erase(Operation& op, Nanos now);
  void opened(Operation& op);
  static Slot* slot_of(const Operation& op, uint32_t segment);
  static bool is_done(const Operation& op, uint32_t segment);
  void mark_done(const Slot& slot);
  template <typename Action>
  void for_each_slot(Operation& op, const Action& action);
  static bool goes_on_without(const Operation& op);
  static bool has_ended(const Operation& op);
  bool has_moved(const Key& key, const JobGroup& group) const;
  static bool rests(const Operation& op);
  Status open_locked(const Key& key, const std::shared_ptr<JobGroup>& group, wire::Open open,
                     uint32_t rank, std::vector<Slot*>& over);
  void note_later(const Key& key, uint32_t contributor, std::vector<Slot*>& over);
  void take_given(Slot& slot, uint32_t contributor);
  bool end_given(Slot& slot);
  struct Missing {
    Slot* slot;
    uint32_t contributor;
  };
  void call_off(JobGroup& group, std::vector<Missing>& missing);
  void give_up(Operation& op, std::vector<Missing>& missing);
  void settle_missing(const std::vector<Missing>& missing);
  Slot* take_slot(Operation& op, uint32_t segment);
  void settle(Slot& slot, uint32_t contributor, Contribution::State state, Nanos now);
  void compare(Slot& slot, uint32_t rank, Nanos now);
  // Returns the pool for a lane with so many bytes for each byte of a contribution.
  LanePool& pool_for(size_t times);
  LanePool& pool_of(const Slot& slot, const Contribution& contribution);
  void combine_group(Slot& slot, uint32_t group);
  void finish(Slot& slot);
  Awaited awaited(const Operation& op) const;
  std::string describe(const Operation& op, const Awaited& awaited) const;

  const control::Cluster& cluster_;
  const GroupTable& groups_;
  const size_t segment_bytes_, most_open_;
  const Deliver deliver_;
  const std::function<Nanos()> now_;
  observe::Recorder& recorder_;

  std::mutex mutex_;  // guards everything below
  std::map<Key, std::unique_ptr<Operation>> operations_;
  LanePool lanes_;
  // For partial sums of 16-bit floats, and of packs, which take less than four times their bytes;
  // and for results that are larger than contributions.
  LanePool wide_lanes_, widest_lanes_;
  std::vector<std::unique_ptr<Slot>> all_slots_;
  std::vector<Slot*> free_slots_;
  std::vector<std::unique_ptr<Block>> all_blocks_;
  std::vector<Block*> free_blocks_;
  Nanos moved_ = 0;            // when a contribution or a result was last complete
  std::vector<Operation*> again_;       // those that were pushed again, by age
  control::ServerSet servers_;
  size_t window_ = SIZE_MAX;   // before serve(): workers may hear first that a server is gone
  std::vector<size_t> open_;   // by rank: operations that it was the first to open
  uint64_t segments_ = 0;      // of all operations
  std::vector<uint32_t> lost_;  // ranks
  std::vector<observe::Lateness> lateness_;  // by rank
  uint64_t sums_ = 0;
  Nanos sum_time_ = 0;
};

template <typename Action>
void Aggregator::for_each_slot(Operation& op, const Action& action) {
  for (Block* block : op.blocks) {
    if (block == nullptr) continue;
    for (Slot* slot : block->slots) {
      if (slot != nullptr) action(*slot);
    }
  }
}

}  // namespace herring::server
