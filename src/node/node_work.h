// One buffer or exchange of a group on its way through this rank's node stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "links/transfer.h"
#include "node/local_group.h"
#include "node/shared_memory.h"
#include "node/slice_adder.h"
#include "observe/rank_states.h"
#include "reduce/reduce.h"

namespace herring {

struct NodeStageOptions {
  uint32_t local_rank = 0;
  uint32_t threads = 1;                // for sums and copies, including the engine's
  size_t segment_bytes = default_of("segment_bytes").integer;
  std::vector<std::string> names;  // of the local ranks, for messages
  std::vector<uint32_t> ranks;     // in the job, by local rank
  const observe::RankStates* states = nullptr;  // what messages say about them; null: nothing
  // Called when the connection to a local rank has ended without a goodbye.
  std::function<void(uint32_t local_rank, const Status& why)> on_lost;
  std::function<void(uint32_t local_rank)> on_left;
};

// One part of what a rank gets in an exchange inside a node.
struct NodePiece {
  static constexpr uint32_t kAll = ~0u;
  uint32_t from = kAll;                // local index of the source; kAll: reduced over all here
  size_t offset = 0;                   // where the piece begins in that buffer, or if `told`, where
  bool told = false;                   // the buffer has a uint64 that says so
  size_t receive = 0;                  // offset in `out`
  size_t bytes = 0;
};

// Where a rank of the node has posted its buffer.
struct PostedMemory {
  std::shared_ptr<SharedRegion> region;  // as mapped here; null: this rank's own
  uint64_t offset = 0;
};

// One buffer of an all-reduce, which every local rank posts, or an exchange.
struct NodeTask {
  std::shared_ptr<const LocalGroup> group;
  wire::Key key;                           // of that group
  std::string name;                    // for messages
  char* data = nullptr;                // this rank's buffer; in the shared heap if local_size > 1
  size_t bytes = 0;
  DType dtype = DType::kFloat32;       // of the buffer
  DType wire = DType::kFloat32;        // between nodes
  char* staging = nullptr;             // for bytes of the wire dtype, if it differs
  char* results = nullptr;             // for results, if they have to be apart from that
  float* residual = nullptr;           // of this rank's slice, for a packed wire dtype; may be null
  // With a residual, perhaps: gets what it was before the round, and whether the round changes it.
  float* before = nullptr;
  bool* changes = nullptr;
  Reduction reduction;
  bool active = true;                  // false: this worker has nothing to add
  Deadline deadline;
  bool lockstep = false;               // as in Transfer
  std::optional<uint32_t> attempt;     // likewise
  std::vector<plan::Shard> shards;     // of the buffer in wire bytes; one shard when nodes == 1
  // Null: the processor combines the slice. Otherwise the adder gives results to the ranks, or they
  // stay with the ranks that own the slices, and whoever wants them copies them from there. An
  // adder excludes a different wire dtype.
  std::shared_ptr<SliceAdder> adder;
  // Called when all have posted; memory by local index. May be null.
  std::function<void(std::vector<PostedMemory>)> on_posted;
  // For an exchange in a group on one node: `data` is only read, and may be empty.
  bool exchanges = false;
  std::vector<NodePiece> pieces;
  char* out = nullptr;                 // this rank's own memory
  // Called once, when the result is here, or when the group is called off and nobody accesses the
  // buffer any more. workers = 0: called off, or this rank's part of the attempt is lost.
  std::function<void(uint32_t workers)> on_done;
  std::shared_ptr<void> keeps;         // owns the memory of all these until all is done
  observe::Mark mark;                  // passes kReduced here, and kPushed with the slice
};

// Returns the scale of sums on the wire. A sum of 16-bit floats must not overflow before the
// servers divide it. So it is scaled by a power of two that the server undoes (exact except for the
// smallest subnormals).
double wire_scale(const control::Group& members, DType wire, ReduceOp op);

struct NodeWork {
  struct Posted {
    bool here = false, active = true, done = false;
    std::shared_ptr<char> data;      // stays mapped, whatever a neighbour does meanwhile
    uint64_t bytes = 0;
    uint32_t region = 0;             // of a neighbour, as it names it
    uint64_t offset = 0;
  };

  NodeWork(const NodeStageOptions& stage, const wire::Key& key, size_t local_size, Nanos now)
      : options(stage), ranks(local_size), since(now), moved(now) {
    task.key = key;
  }

  const LocalGroup& group() const { return *task.group; }
  uint32_t locals() const { return task.group->local_size(); }
  // Returns whether no server takes part.
  bool last_stage() const { return task.exchanges || task.group->members().nodes() == 1; }
  // Returns bits by local index of the members that have something to add.
  uint32_t active() const;
  // Returns whether this rank's slice has been pushed, in this round.
  bool was_pushed() const { return pushed || giving || own().done; }
  Posted& own() { return ranks[options.local_rank]; }
  const Posted& own() const { return ranks[options.local_rank]; }

  // Called when all have posted: finds this rank's part. Returns an error if a posted buffer is
  // invalid.
  Status begin();
  // Reduces or copies the next `bytes` of the slice, in whole elements; slice.bytes in all.
  void work(size_t bytes);
  // Processes these bytes of the slice. Any thread; several may run at a time on different bytes.
  void work_on(size_t begin, size_t bytes) const;
  // Returns how many bytes of the buffer are worked on for a pack or for kPackBytes on the wire.
  size_t step_bytes() const {
    return is_sparse(task.wire) ? pack_numbers(task.wire) * sizeof(float) : kPackBytes;
  }
  // Returns about how many bytes of the buffer so many bytes on the wire stand for.
  size_t bytes_in(size_t wire_bytes) const { return wire_bytes * step_bytes() / kPackBytes; }
  // Returns whether there is nothing to add up and nothing to change.
  bool leaves_as_is() const;
  // Prepares the transfer for pushing the slice, which is reduced over this node.
  void prepare_push();
  // Bytes of the slice have arrived from the servers: copies them into everybody's buffer.
  void place(plan::Range range);
  // Returns who has not posted or, when all have, who is not done.
  std::vector<uint32_t> missing() const;
  // Returns the place of this rank in the order in which local ranks warn of the missing ones.
  uint32_t turn_to_warn(const std::vector<uint32_t>& missing) const;

  const NodeStageOptions& options;
  bool mine = false;                 // posted by this rank
  NodeTask task;
  std::vector<Posted> ranks;         // by local rank
  uint32_t posted = 0, done = 0;
  uint32_t workers = 0;              // contributing, on this node
  uint32_t result_workers = 0;       // on all nodes, as the results of any local rank report
  Nanos since = 0, moved = 0;
  bool warned = false;
  links::Transfer transfer;          // of this rank's slice
  plan::Range slice;                 // in wire bytes; of an exchange, all that is copied
  size_t worked = 0;                 // of slice.bytes
  bool adding = false;               // the adder was started and is not done
  bool giving = false;               // the adder gives the result
  bool combined = false;             // to be pushed, or pushed already
  bool pushed = false;               // the Pusher uses the transfer

 private:
  Status check_posted() const;
  Status find_pieces();
  reduce::Stage stage() const;
  // Reduces wire bytes [begin, begin + bytes) of the slice.
  void reduce(size_t begin, size_t bytes) const;
  void share(size_t element, size_t elements) const;
  // Reduces the numbers of the buffer from `element` on to one pack.
  void pack(const std::vector<const void*>& sources, size_t element, size_t count) const;
  void give_back(size_t element, size_t count) const;
  // Copies bytes [begin, begin + bytes) of an exchange's pieces, as if the pieces lay in a row.
  void take(size_t begin, size_t bytes) const;
  wire::Open open() const;
  double scale() const {
    return wire_scale(task.group->members(), task.wire, task.reduction.op);
  }
  bool converts() const { return task.wire != task.dtype; }
  // Returns how many numbers begin before this byte of the wire's form of the buffer. The last pack
  // may have fewer than others.
  size_t numbers_before(size_t wire_byte) const {
    return std::min(numbers_in(wire_byte, task.wire), task.bytes / size_of(task.dtype));
  }
};

}  // namespace herring
