// The node stage (paper, III-B, steps 1, 2 and 5, in shared memory): a group's ranks on a node post
// a buffer, each reduces its slice over all of them, pushes it if there are other nodes, and
// writes the result into everybody's buffer.
//
// Slice r of every rank's memory is read and written by local rank r alone between the moment that
// all have posted and the moment that r says done; so two rounds of small messages are all the
// synchronization there is. An exchange inside a node goes the same way: each rank posts what it
// has, and takes from its neighbours' buffers what it gets. Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/ring.h"
#include "node/local_bus.h"
#include "transport/descriptor_loop.h"
#include "worker/group.h"
#include "worker/links.h"
#include "worker/transfer.h"

namespace herring::worker {

// A part of what a rank gets in an exchange inside a node.
struct NodePiece {
  static constexpr uint32_t kAll = ~0u;
  uint32_t from = kAll;                // place among the members here; kAll: reduced over them all
  size_t offset = 0;                   // where it begins in that buffer; `told`: where this uint64
  bool told = false;                   // of the buffer says
  size_t receive = 0;                  // offset in `out`
  size_t bytes = 0;
};

// One buffer of an all-reduce, as every local rank posts it, or an exchange.
struct NodeTask {
  std::shared_ptr<const Group> group;
  Key key;                             // of that group
  std::string name;                    // for messages
  char* data = nullptr;                // this rank's buffer: in the shared heap if local_size > 1
  size_t bytes = 0;
  DType dtype = DType::kFloat32;       // of the buffer
  DType wire = DType::kFloat32;        // between nodes
  char* staging = nullptr;             // for the wire dtype's bytes, when it differs
  Reduction reduction;
  bool active = true;                  // false: this worker has nothing to add
  Deadline deadline;
  std::vector<plan::Shard> shards;     // of the buffer in wire bytes; one shard when nodes == 1
  // Of an exchange, in a group on one node: `data` is only read, and may be nothing.
  bool exchanges = false;
  std::vector<NodePiece> pieces;
  char* out = nullptr;                 // this rank's own memory
  // Once: the result is here, or the group's operations were called off and nobody touches the
  // buffer any more.
  std::function<void(uint32_t workers)> on_done;
  std::shared_ptr<void> keeps;         // what data and staging lie in; let go of when all is done
};

class NodeStage : private TransferOwner {
 public:
  using OnFailure = std::function<void(const Status&)>;

  struct Options {
    uint32_t local_rank = 0;
    size_t segment_bytes = default_of("segment_bytes").integer;
    std::vector<std::string> names;  // of the local ranks, for messages
    // The connection to a local rank has ended without a goodbye.
    std::function<void(uint32_t local_rank, const Status& why)> on_lost;
  };

  NodeStage(transport::EventLoop& loop, LocalBus& bus, SharedHeap& heap, Links& links,
            Options options, OnFailure on_failure);
  ~NodeStage() override;
  // Puts the bus into the loop; before the first post().
  void attach();

  void post(NodeTask task);
  // The regions that are gone can be let go by the peers.
  void release_regions();
  // Who is missing for how long; fails what is past its deadline. Where servers keep deadlines too,
  // they have `servers_margin` to say so first.
  void check_deadlines(Nanos now, Nanos servers_margin);
  bool busy(uint32_t group) const;
  // A buffer of the group has still to be pushed to servers.
  bool has_unpushed(uint32_t group) const;
  // A buffer of the group cannot be completed: a neighbour has ended without its part.
  bool waits_for_gone(uint32_t group) const;
  // When neighbours last said something of the group's buffers, or one was worked on here.
  Nanos moved_at(uint32_t group) const;
  // Groups of which something is kept.
  size_t known_groups() const { return called_off_.size() + let_go_.size() + forgotten_.size(); }
  // Ends all tasks of the group, now and later: on_done() is called for each when no neighbour that
  // lives touches its memory any more. The group's transfers were called off.
  void call_off(const std::shared_ptr<const Group>& group);
  // This rank leaves the group; none of its tasks is in flight.
  void forget(const Group& group);
  // Forgets all tasks, for good: afterwards nothing here touches anybody's memory.
  void clear();

 private:
  // kCalledOff: the sender touches no memory of this group any more.
  enum Kind : uint8_t { kPost = 1, kDone = 2, kCalledOff = 3 };
  static constexpr uint8_t kInactive = 1;
  static constexpr size_t kWorkBytes = 512 << 10;  // reduced before the loop looks at its events

  struct Posted {
    bool here = false, active = true, done = false;
    std::shared_ptr<char> data;      // a neighbour's stays mapped, whatever it does meanwhile
    uint64_t bytes = 0;
  };
  struct Entry {
    bool mine = false;               // posted by this rank
    NodeTask task;
    std::vector<Posted> ranks;       // by local rank
    uint32_t posted = 0, done = 0;
    uint32_t workers = 0;            // contributing, on this node
    uint32_t result_workers = 0;     // on all nodes, as the results of any local rank say
    Nanos since = 0, moved = 0;
    bool warned = false;
    Transfer transfer;               // of this rank's slice
    plan::Range slice;               // wire bytes
    size_t reduced = 0;              // of slice.bytes
    bool pushed = false;             // the transfer is the links'
    const Group& group() const { return *task.group; }
    uint32_t locals() const { return task.group->local_size(); }
    bool last_stage() const { return task.group->members().nodes() == 1; }
  };
  // A group whose tasks were called off here.
  struct CalledOff {
    std::shared_ptr<const Group> group;
    bool told = false;               // the neighbours: nothing here touches their memory
  };

  // One socket of the bus in the loop.
  struct BusSocket : transport::DescriptorHandler {
    void on_ready(uint32_t readiness) override;
    LocalBus* bus = nullptr;
    int fd = -1;
  };

  Entry& entry(const Key& key);
  void send(const Entry& entry, LocalMessage message);
  Entry* find(const Key& key);
  void on_message(const LocalMessage& message);
  void all_posted(Entry& entry);
  Status check_posted(const Entry& entry) const;
  Status find_pieces(Entry& entry) const;
  void work();
  void schedule_work();
  // Reduces wire bytes [begin, begin + bytes) of the slice.
  void reduce(Entry& entry, size_t begin, size_t bytes);
  void share(Entry& entry, size_t element, size_t elements);
  // Takes bytes [begin, begin + bytes) of an exchange's pieces, as if they lay in a row.
  void take(Entry& entry, size_t begin, size_t bytes);
  void push_slice(const std::shared_ptr<Entry>& entry);
  void slice_done(Entry& entry);
  void maybe_finish(Entry& entry);
  void let_go(const Group& group);
  void settle(uint32_t group);
  bool untouched(const CalledOff& one) const;
  void on_result(Transfer&, plan::Range range) override;
  void on_transfer_done(Transfer&) override;
  wire::Open open_of(const Entry& entry) const;
  double wire_scale(const NodeTask& task) const;
  bool converts(const NodeTask& task) const { return task.wire != task.dtype; }

  transport::EventLoop& loop_;
  LocalBus& bus_;
  SharedHeap& heap_;
  Links& links_;
  const Options options_;
  const OnFailure on_failure_;
  const uint32_t local_size_;
  std::unordered_map<int, BusSocket> sockets_;
  std::unordered_map<Key, std::shared_ptr<Entry>, KeyHash> tasks_;
  Ring<Key> ready_;                  // all posted, to be reduced in this order
  std::map<uint32_t, CalledOff> called_off_;             // by group
  std::map<uint32_t, std::set<uint32_t>> let_go_;        // by group: neighbours that said so
  std::map<uint32_t, std::set<uint32_t>> forgotten_;     // likewise: those that have still to
  std::vector<bool> gone_;           // by local rank: its socket has ended
  bool work_scheduled_ = false;
  bool cleared_ = false;
  Nanos moved_ = 0;                  // when a neighbour last said something, or work was done here
};

}  // namespace herring::worker
