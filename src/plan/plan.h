// The plan: a pure function from gradients (in production order) and the cluster to arenas, fusion
// buffers, shards and segments (paper, III-A and III-B). Every rank computes it alone; equal hashes
// mean equal plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace herring::plan {

// Bytes; every shard boundary but the last end.
inline constexpr size_t kAlignment = 64;
// A jumbo frame's payload, header included.
inline constexpr size_t kDefaultSegmentBytes = 8192;

// A contiguous range of bytes.
struct Range {
  size_t offset = 0;
  size_t bytes = 0;
  size_t end() const { return offset + bytes; }
  bool operator==(const Range&) const = default;
};

// Part of a fusion buffer that one server owns; `offset` counts from the buffer's start.
struct Shard {
  uint32_t server = 0;
  size_t offset = 0;
  size_t bytes = 0;
  bool operator==(const Shard&) const = default;
};

// Splits `bytes` over servers in proportion to `weights` (all equal: an even split). Boundaries
// fall on multiples of kAlignment; with equal weights the shards differ by at most one kAlignment
// unit (plus the unaligned rest of the last). Servers that get nothing are left out. Shards are in
// server order and cover [0, bytes) exactly. weights: at least one, finite, >= 0, not all 0.
std::vector<Shard> shard_layout(size_t bytes, const std::vector<double>& weights);

// The weight of each server for n nodes with k dedicated servers.
// Dedicated servers come first in server order, then one colocated server per node.
// k = 0: n colocated, 1/n each; 0 < k < n: k + n servers; k >= n: k dedicated, 1/k each.
std::vector<double> server_weights(uint32_t nodes, uint32_t dedicated);

// Number of segments a shard of `bytes` has on the grid.
inline uint32_t segment_count(size_t bytes, size_t segment_bytes) {
  return static_cast<uint32_t>((bytes + segment_bytes - 1) / segment_bytes);
}

// A run of consecutive segments of one shard.
struct SegmentRun {
  uint32_t shard = 0;  // index in the vector of shards
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const SegmentRun&) const = default;
};

// What local rank `local_rank` of `local_size` owns in the node stage: the segments of all shards,
// in order, are split into local_size contiguous parts that differ by at most one segment. Returns
// the runs in order, none empty; their byte ranges are contiguous in the buffer.
std::vector<SegmentRun> local_slice(const std::vector<Shard>& shards, size_t segment_bytes,
                                    uint32_t local_rank, uint32_t local_size);

// The byte range in its buffer that a run of segments covers.
Range run_range(const std::vector<Shard>& shards, size_t segment_bytes, const SegmentRun& run);

struct Gradient {
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
};

struct Cluster {
  uint32_t nodes = 1;
  std::vector<double> weights;  // per server, see server_weights()
};

struct Options {
  size_t buffer_bytes = 0;   // 0: chosen from model and cluster size
  size_t segment_bytes = kDefaultSegmentBytes;
  bool on_devices = false;   // gradients lie on GPUs, so that a buffer should be larger
};

// Where a gradient lies: arena `arena`, at byte range `range` (in production order, packed without
// padding but for its own element alignment).
struct Placement {
  uint32_t arena = 0;
  Range range;
};

struct Arena {
  DType dtype = DType::kFloat32;
  size_t bytes = 0;
};

struct Buffer {
  uint32_t arena = 0;
  Range range;                    // in the arena
  uint32_t last_gradient = 0;     // complete when gradients up to this one (of its arena) are there
  std::vector<Shard> shards;
};

struct Plan {
  std::vector<Gradient> gradients;     // as given
  std::vector<Placement> placements;   // one per gradient
  std::vector<Arena> arenas;           // one per dtype, in order of first appearance
  std::vector<Buffer> buffers;         // in push order: by last_gradient, then arena
  size_t buffer_bytes = 0;
  size_t segment_bytes = 0;
  // Gradient -> first and last (inclusive) index in the buffers of its arena that it touches, as
  // indices into `buffers`; a gradient may straddle two or more.
  std::vector<std::vector<uint32_t>> buffers_of;
  uint64_t hash = 0;                   // of everything above: FNV-1a over a canonical encoding
};

// Errors (kInvalidArgument, kConfiguration) name the value: no gradients is fine (an empty plan), a
// gradient of 0 elements is fine (it is in no buffer), segment_bytes must be a multiple of
// kAlignment in [1 KiB, 1 MiB], buffer_bytes 0 or at least segment_bytes, weights as in
// shard_layout().
Result<Plan> make_plan(const std::vector<Gradient>& gradients, const Cluster& cluster,
                       const Options& options);

// The automatic fusion buffer size: see the comment at its definition for the reasoning.
size_t choose_buffer_bytes(size_t model_bytes, uint32_t nodes, uint32_t servers,
                           size_t segment_bytes, bool on_devices = false);

}  // namespace herring::plan
