#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/hash.h"

namespace herring::plan {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr size_t kMinSegmentBytes = kKiB;
constexpr size_t kMaxSegmentBytes = kMiB;
constexpr size_t kMaxModelBytes = size_t{1} << 50;   // leaves room for every sum below
constexpr size_t kMaxBufferBytes = size_t{1} << 40;  // the number of its segments fits in 32 bits
constexpr size_t kMaxBuffers = size_t{1} << 20;      // more are a mistake and would use too much
                                                     // memory

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

class Hasher : public Fnv1a {
 public:
  using Fnv1a::add;
  void add(const Range& range) {
    add(uint64_t{range.offset});
    add(uint64_t{range.bytes});
  }
};

// A list is preceded by its length, so that no two plans share an encoding. The cluster's shape
// comes first: ranks that see different clusters must not agree, even if their shards are the same.
uint64_t hash_of(const Plan& plan, const Cluster& cluster) {
  Hasher hasher;
  hasher.add(1);  // version of this encoding
  hasher.add(cluster.nodes);
  hasher.add(cluster.weights.size());
  hasher.add(plan.gradients.size());
  for (const Gradient& gradient : plan.gradients) {
    hasher.add(gradient.elements);
    hasher.add(static_cast<uint64_t>(gradient.dtype));
  }
  for (const Placement& placement : plan.placements) {
    hasher.add(placement.arena);
    hasher.add(placement.range);
  }
  hasher.add(plan.arenas.size());
  for (const Arena& arena : plan.arenas) {
    hasher.add(static_cast<uint64_t>(arena.dtype));
    hasher.add(arena.bytes);
  }
  hasher.add(plan.buffers.size());
  for (const Buffer& buffer : plan.buffers) {
    hasher.add(buffer.arena);
    hasher.add(buffer.range);
    hasher.add(buffer.last_gradient);
    hasher.add(buffer.shards.size());
    for (const Shard& shard : buffer.shards) {
      hasher.add(shard.server);
      hasher.add(shard.offset);
      hasher.add(shard.bytes);
    }
  }
  hasher.add(plan.buffer_bytes);
  hasher.add(plan.segment_bytes);
  for (const std::vector<uint32_t>& touched : plan.buffers_of) {
    hasher.add(touched.size());
    for (uint32_t buffer : touched) hasher.add(buffer);
  }
  return hasher.value();
}

Status check_cluster(const Cluster& cluster) {
  if (cluster.nodes == 0) {
    return {Code::kConfiguration, "a plan needs at least 1 node, but the cluster has 0 nodes"};
  }
  if (cluster.weights.empty()) {
    return {Code::kConfiguration,
            "a plan needs at least 1 server, but the cluster has no server weights"};
  }
  bool any = false;
  for (size_t i = 0; i < cluster.weights.size(); ++i) {
    const double weight = cluster.weights[i];
    if (!std::isfinite(weight) || weight < 0) {
      return {Code::kConfiguration, concat("the weight of server ", i, " is ", weight,
                                           "; a weight must be finite and not negative")};
    }
    any = any || weight > 0;
  }
  if (!any) {
    return {Code::kConfiguration, concat("the weights of all ", cluster.weights.size(),
                                         " servers are 0; at least one must be positive")};
  }
  return {};
}

Status check_options(const Options& options) {
  const size_t segment = options.segment_bytes;
  if (segment < kMinSegmentBytes || segment > kMaxSegmentBytes || segment % kAlignment != 0) {
    return {Code::kConfiguration,
            concat("segment_bytes = ", segment, " must be a multiple of ", kAlignment, " from ",
                   kMinSegmentBytes, " to ", kMaxSegmentBytes)};
  }
  if (options.buffer_bytes != 0 && options.buffer_bytes < segment) {
    return {Code::kConfiguration,
            concat("buffer_bytes = ", options.buffer_bytes,
                   " must be 0 (automatic) or at least segment_bytes = ", segment)};
  }
  if (options.buffer_bytes > kMaxBufferBytes) {
    return {Code::kConfiguration, concat("buffer_bytes = ", options.buffer_bytes,
                                         " must be at most ", kMaxBufferBytes)};
  }
  return {};
}

// Fills placements and arenas; returns the number of bytes in the model.
Result<size_t> place(Plan& plan) {
  if (plan.gradients.size() > std::numeric_limits<uint32_t>::max()) {
    return Status(Code::kInvalidArgument,
                  concat(plan.gradients.size(), " gradients are more than a plan can hold"));
  }
  size_t total = 0;
  plan.placements.reserve(plan.gradients.size());
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    const Gradient& gradient = plan.gradients[i];
    if (static_cast<int>(gradient.dtype) >= kNumDTypes) {
      return Status(Code::kInvalidArgument, concat("gradient ", i, " has the unknown dtype number ",
                                                   static_cast<int>(gradient.dtype)));
    }
    const size_t size = size_of(gradient.dtype);
    if (gradient.elements > (kMaxModelBytes - total) / size) {
      return Status(Code::kInvalidArgument,
                    concat("gradient ", i, " with ", counted(gradient.elements, "element"), " of ",
                           name_of(gradient.dtype), " makes the model larger than ",
                           kMaxModelBytes, " bytes"));
    }
    auto arena = std::find_if(plan.arenas.begin(), plan.arenas.end(),
                              [&](const Arena& a) { return a.dtype == gradient.dtype; });
    if (arena == plan.arenas.end()) {
      plan.arenas.push_back({gradient.dtype, 0});
      arena = plan.arenas.end() - 1;
    }
    const size_t bytes = gradient.elements * size;
    plan.placements.push_back(
        {static_cast<uint32_t>(arena - plan.arenas.begin()), {arena->bytes, bytes}});
    arena->bytes += bytes;  // one dtype per arena: the next offset is aligned for its elements
    total += bytes;
  }
  return total;
}

// Cuts every arena into buffers, in push order.
void cut(Plan& plan, const std::vector<double>& weights) {
  std::vector<Buffer>& buffers = plan.buffers;
  const std::vector<Shard> full_shards = shard_layout(plan.buffer_bytes, weights);
  for (uint32_t a = 0; a < plan.arenas.size(); ++a) {
    const size_t arena_bytes = plan.arenas[a].bytes;
    for (size_t offset = 0; offset < arena_bytes; offset += plan.buffer_bytes) {
      Buffer buffer;
      buffer.arena = a;
      buffer.range = {offset, std::min(plan.buffer_bytes, arena_bytes - offset)};
      buffer.shards = buffer.range.bytes == plan.buffer_bytes
                          ? full_shards
                          : shard_layout(buffer.range.bytes, weights);
      buffers.push_back(std::move(buffer));
    }
  }

  // The gradient that holds a buffer's last byte completes it.
  std::vector<size_t> next(plan.arenas.size() + 1, 0);  // the first open buffer of each arena
  for (size_t a = 0, b = 0; a < plan.arenas.size(); ++a) {
    next[a] = b;
    while (b < buffers.size() && buffers[b].arena == a) ++b;
  }
  for (size_t g = 0; g < plan.placements.size(); ++g) {
    const auto& [arena, range] = plan.placements[g];
    size_t& b = next[arena];
    while (b < buffers.size() && buffers[b].arena == arena &&
           buffers[b].range.end() <= range.end()) {
      buffers[b++].last_gradient = static_cast<uint32_t>(g);
    }
  }
  // The sort is stable, so buffers that the same gradient completes stay in arena order.
  std::stable_sort(buffers.begin(), buffers.end(), [](const Buffer& x, const Buffer& y) {
    return x.last_gradient < y.last_gradient;
  });
}

void index_gradients(Plan& plan) {
  std::vector<std::vector<uint32_t>> of_arena(plan.arenas.size());  // n-th buffer of an arena ->
                                                                    // push index
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    of_arena[plan.buffers[b].arena].push_back(static_cast<uint32_t>(b));
  }
  plan.buffers_of.resize(plan.placements.size());
  for (size_t g = 0; g < plan.placements.size(); ++g) {
    const auto& [arena, range] = plan.placements[g];
    if (range.bytes == 0) continue;
    const auto begin = of_arena[arena].begin();
    plan.buffers_of[g].assign(begin + range.offset / plan.buffer_bytes,
                              begin + (range.end() - 1) / plan.buffer_bytes + 1);
  }
}

}  // namespace

// A buffer's size is a trade-off:
// - Every server should be busy while a buffer is on its way, and its receiving, summing and
//   sending should overlap (paper, IV-A), so a shard needs many segments. With 16 segments, filling
//   and draining the pipeline costs a sixteenth of a buffer's time even if no buffer follows. The
//   unfilled last segment of a shard wastes at most a sixteenth of its slots. This term grows with
//   servers * segment_bytes.
// - The backward pass should overlap with pushing. At least the last buffer remains exposed after
//   it: with 32 buffers, about 3 % of the time that the model takes on the wire. A model so small
//   that the first term would make it a single buffer still gets about 4 buffers.
// - Each buffer costs a meeting of the local ranks and some bookkeeping, tens of microseconds. A
//   buffer of 1 MiB (84 us at 100 Gbit/s, 840 us at 10) still hides these costs; a smaller one
//   would not.
// - Above 32 MiB (2.7 ms at 100 Gbit/s) these costs are negligible and only the exposed tail grows.
// - On GPUs, a buffer's copy to the host, its sum and its copy back run one after the other, and
//   each step ends with a flag that a thread or the device must see. The flags cost a few hundred
//   microseconds, about the time that 4 MiB take on a GPU's link. With eight buffers, an eighth of
//   the copies is exposed. Where each rank is alone on its node, nobody meets and no GPU adds, so
//   twice as many cost little. (On an H100, 100 MB came back after 2.65 ms instead of 2.75.)
// Within one node nothing is pushed, so the first term does not apply. If this grid is fine enough,
// sizes are rounded to whole segments on all servers. With equal weights, only the last buffer of a
// model then has short segments.
size_t choose_buffer_bytes(size_t model_bytes, uint32_t nodes, uint32_t servers,
                           size_t segment_bytes, bool on_devices, bool alone) {
  const size_t minimum = on_devices ? 4 * kMiB : kMiB;
  constexpr size_t kMaximum = 32 * kMiB;
  constexpr size_t kSegmentsPerShard = 16;
  const size_t per_model = !on_devices ? 32 : alone ? 16 : 8;
  constexpr size_t kFewestBuffers = 4;

  const size_t grid = std::max<size_t>(servers, 1) * std::max(segment_bytes, kAlignment);
  const size_t busy = nodes > 1 ? std::min(kMaximum, grid * kSegmentsPerShard) : 0;
  size_t size = std::max(busy, model_bytes / per_model);
  size = std::min(size, model_bytes / kFewestBuffers);
  size = std::clamp(size, minimum, kMaximum);

  const size_t unit = grid <= size / 8 ? round_up(grid, kAlignment) : kAlignment;
  size = round_up(size, unit);
  return size > kMaximum ? size - unit : size;
}

Result<Plan> make_plan(const std::vector<Gradient>& gradients, const Cluster& cluster,
                       const Options& options) {
  HERRING_RETURN_IF_ERROR(check_cluster(cluster));
  HERRING_RETURN_IF_ERROR(check_options(options));

  Plan plan;
  plan.gradients = gradients;
  const Result<size_t> model_bytes = place(plan);
  if (!model_bytes.ok()) return model_bytes.status();
  plan.segment_bytes = options.segment_bytes;
  plan.buffer_bytes =
      options.buffer_bytes != 0
          ? round_up(options.buffer_bytes, kAlignment)
          : choose_buffer_bytes(*model_bytes, cluster.nodes,
                                static_cast<uint32_t>(cluster.weights.size()),
                                options.segment_bytes, options.on_devices, options.alone);
  if (const size_t count = *model_bytes / plan.buffer_bytes; count > kMaxBuffers) {
    return Status(Code::kConfiguration,
                  concat("buffer_bytes = ", plan.buffer_bytes, " cuts a model of ", *model_bytes,
                         " bytes into ", count, " fusion buffers, more than ", kMaxBuffers));
  }
  cut(plan, cluster.weights);
  index_gradients(plan);
  plan.hash = hash_of(plan, cluster);
  return plan;
}

}  // namespace herring::plan
