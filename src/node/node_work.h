// One buffer of a group, or one exchange in it, on its way through the node stage of this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "node/local_group.h"
#include "node/shared_memory.h"
#include "node/slice_adder.h"
#include "node/transfer.h"
#include "reduce/reduce.h"

namespace herring {

struct NodeStageOptions {
  uint32_t local_rank = 0;
  uint32_t threads = 1;                // for sums and copies, the engine's included
  size_t segment_bytes = default_of("segment_bytes").integer;
  std::vector<std::string> names;  // of the local ranks, for messages
  // The connection to a local rank has ended without a goodbye.
  std::function<void(uint32_t local_rank, const Status& why)> on_lost;
};

// A part of what a rank gets in an exchange inside a node.
struct NodePiece {
  static constexpr uint32_t kAll = ~0u;
  uint32_t from = kAll;                // place among the members here; kAll: reduced over them all
  size_t offset = 0;                   // where it begins in that buffer; `told`: where this uint64
  bool told = false;                   // of the buffer says
  size_t receive = 0;                  // offset in `out`
  size_t bytes = 0;
};

// Where a rank of the node has what it has posted.
struct PostedMemory {
  std::shared_ptr<SharedRegion> region;  // as it is mapped here; null: it is this rank's own
  uint64_t offset = 0;
};

// One buffer of an all-reduce, as every local rank posts it, or an exchange.
struct NodeTask {
  std::shared_ptr<const LocalGroup> group;
  wire::Key key;                           // of that group
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
  // Null: the processor combines the slice. Else the results of other slices stay with the ranks
  // whose they are, too; who wants them takes them from there. Without a wire dtype of its own.
  std::shared_ptr<SliceAdder> adder;
  // All have posted: by place among the group's members here. May be null.
  std::function<void(std::vector<PostedMemory>)> on_posted;
  // Of an exchange, in a group on one node: `data` is only read, and may be nothing.
  bool exchanges = false;
  std::vector<NodePiece> pieces;
  char* out = nullptr;                 // this rank's own memory
  // Once: the result is here, or the group's operations were called off and nobody touches the
  // buffer any more.
  std::function<void(uint32_t workers)> on_done;
  std::shared_ptr<void> keeps;         // what data and staging lie in; let go of when all is done
};

// A sum of 16-bit floats must not overflow before the servers divide it: it travels scaled by a
// power of two that the server takes back (exact, but for the smallest subnormals).
double wire_scale(const control::Group& members, DType wire, ReduceOp op);

struct NodeWork {
  struct Posted {
    bool here = false, active = true, done = false;
    std::shared_ptr<char> data;      // a neighbour's stays mapped, whatever it does meanwhile
    uint64_t bytes = 0;
    uint32_t region = 0;             // of a neighbour's, as it names it
    uint64_t offset = 0;
  };

  NodeWork(const NodeStageOptions& stage, const wire::Key& key, size_t local_size, Nanos now)
      : options(stage), ranks(local_size), since(now), moved(now) {
    task.key = key;
  }

  const LocalGroup& group() const { return *task.group; }
  uint32_t locals() const { return task.group->local_size(); }
  // No server is asked.
  bool last_stage() const { return task.exchanges || task.group->members().nodes() == 1; }
  // By place among the group's members here (bits).
  uint32_t active() const;
  Posted& own() { return ranks[options.local_rank]; }
  const Posted& own() const { return ranks[options.local_rank]; }

  // All have posted: finds this rank's part. An error of what was posted.
  Status begin();
  // Reduces, or takes, the next bytes of the slice: whole elements, of `slice.bytes` in all.
  void work(size_t bytes);
  // Likewise these bytes of it. Any thread, and several at a time, if their bytes are not the same.
  void work_on(size_t begin, size_t bytes) const;
  // There is nothing to add up, nor anything to change.
  bool leaves_as_is() const;
  // The slice, reduced over this node, is to be pushed: completes the transfer.
  void prepare_push();
  // Bytes of the slice have come from the servers: puts them into everybody's buffer.
  void place(plan::Range range);
  // For messages: who has not posted, or when all have, who is not done.
  std::string missing() const;

  const NodeStageOptions& options;
  bool mine = false;                 // posted by this rank
  NodeTask task;
  std::vector<Posted> ranks;         // by local rank
  uint32_t posted = 0, done = 0;
  uint32_t workers = 0;              // contributing, on this node
  uint32_t result_workers = 0;       // on all nodes, as the results of any local rank say
  Nanos since = 0, moved = 0;
  bool warned = false;
  Transfer transfer;                 // of this rank's slice
  plan::Range slice;                 // wire bytes; of an exchange, all that is taken
  size_t worked = 0;                 // of slice.bytes
  bool adding = false;               // the adder was started, and is not through
  bool pushed = false;               // the transfer is the Pusher's

 private:
  Status check_posted() const;
  Status find_pieces();
  reduce::Stage stage() const;
  // Reduces wire bytes [begin, begin + bytes) of the slice.
  void reduce(size_t begin, size_t bytes) const;
  void share(size_t element, size_t elements) const;
  // Takes bytes [begin, begin + bytes) of an exchange's pieces, as if they lay in a row.
  void take(size_t begin, size_t bytes) const;
  wire::Open open() const;
  double scale() const {
    return wire_scale(task.group->members(), task.wire, task.reduction.op);
  }
  bool converts() const { return task.wire != task.dtype; }
};

}  // namespace herring
