// The plan: a pure function from gradients (in production order) and the cluster to arenas, fusion
// buffers, shards and segments (paper, III-A and III-B). Every rank computes the plan alone; equal
// hashes mean equal plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace herring::plan {

// In bytes. Every shard boundary except the end of the last shard is a multiple of this.
inline constexpr size_t kAlignment = 64;
// The payload of a jumbo frame, header included.
inline constexpr size_t kDefaultSegmentBytes = 8192;

// A contiguous range of bytes.
struct Range {
  size_t offset = 0;
  size_t bytes = 0;
  size_t end() const { return offset + bytes; }
  bool operator==(const Range&) const = default;
};

// The part of a fusion buffer that one server owns; `offset` counts from the start of the buffer.
struct Shard {
  uint32_t server = 0;
  size_t offset = 0;
  size_t bytes = 0;
  bool operator==(const Shard&) const = default;
};

// Splits `bytes` over servers in proportion to `weights`. Boundaries fall on multiples of
// `alignment`. With equal weights, shards differ by at most so many bytes, plus the unaligned
// rest of the last shard. Servers that get nothing are left out. Shards are in server order and
// cover [0, bytes) exactly. At least one weight is needed; all must be finite and >= 0, not all 0.
std::vector<Shard> shard_layout(size_t bytes, const std::vector<double>& weights,
                                size_t alignment = kAlignment);

// Returns the weight of each server for n nodes with k dedicated servers.
// Dedicated servers come first, then one colocated server per node, if there are colocated ones.
// k = 0: n colocated servers, 1/n each; 0 < k < n: k + n servers; k >= n: k dedicated, 1/k each.
std::vector<double> server_weights(uint32_t nodes, uint32_t dedicated);

// Returns the number of grid segments in a shard of `bytes`.
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

// Returns what local rank `local_rank` of `local_size` owns in the node stage. The segments of all
// shards, in order, are split into local_size contiguous parts that differ by at most one segment.
// The runs are in order, none is empty, and their byte ranges are contiguous in the buffer.
std::vector<SegmentRun> local_slice(const std::vector<Shard>& shards, size_t segment_bytes,
                                    uint32_t local_rank, uint32_t local_size);

// Returns the byte range in its buffer that a run of segments covers.
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
  size_t buffer_bytes = 0;   // 0: chosen from the model and cluster size
  size_t segment_bytes = kDefaultSegmentBytes;
  bool on_devices = false;   // gradients lie on GPUs, where larger buffers pay off
  bool alone = false;        // each rank is alone on its node
};

// Where a gradient lies: byte range `range` of arena `arena`. An arena holds its gradients in
// production order without padding; since all have one dtype, each is aligned for its elements.
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
  uint32_t last_gradient = 0;     // complete when its arena has all gradients up to this one
  std::vector<Shard> shards;
};

struct Plan {
  std::vector<Gradient> gradients;     // as given
  std::vector<Placement> placements;   // one per gradient
  std::vector<Arena> arenas;           // one per dtype, in order of first appearance
  std::vector<Buffer> buffers;         // in push order: by last_gradient, then arena
  size_t buffer_bytes = 0;
  size_t segment_bytes = 0;
  // For each gradient, the indices in `buffers` of the fusion buffers that it touches: two or more
  // if the gradient straddles buffers, none if it has 0 elements.
  std::vector<std::vector<uint32_t>> buffers_of;
  uint64_t hash = 0;                   // FNV-1a of all members above and the cluster's shape, in a
                                       // canonical encoding
};

// Makes the plan. An empty list of gradients gives an empty plan, and a gradient of 0 elements is
// in no buffer. segment_bytes must be a multiple of kAlignment from 1 KiB to 1 MiB, buffer_bytes
// must be 0 or at least segment_bytes, and weights must be as in shard_layout().
// Errors: kInvalidArgument or kConfiguration, with the value.
Result<Plan> make_plan(const std::vector<Gradient>& gradients, const Cluster& cluster,
                       const Options& options);

// Chooses the fusion buffer size. The comment at the definition gives the reasoning.
size_t choose_buffer_bytes(size_t model_bytes, uint32_t nodes, uint32_t servers,
                           size_t segment_bytes, bool on_devices = false, bool alone = false);

}  // namespace herring::plan
