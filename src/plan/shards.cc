// Splits a fusion buffer over servers (shards) and over the local ranks of a node (slices).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/plan.h"

namespace herring::plan {

std::vector<double> server_weights(uint32_t nodes, uint32_t dedicated) {
  if (dedicated >= nodes) return std::vector<double>(dedicated, 1.0 / dedicated);
  if (dedicated == 0) return std::vector<double>(nodes, 1.0 / nodes);
  const double n = nodes;
  const double k = dedicated;
  const double denominator = n * n + k * n - 2 * k;
  std::vector<double> weights(dedicated, 2 * (n - 1) / denominator);
  weights.insert(weights.end(), nodes, (n - k) / denominator);
  return weights;
}

// Largest remainders: every server gets the whole units of its exact proportion. Each remaining
// unit goes to the next largest fraction, the lower index first, so no server is more than one unit
// from its proportion. The computation uses only IEEE doubles in a fixed order, so every rank gets
// the same result.
std::vector<Shard> shard_layout(size_t bytes, const std::vector<double>& weights,
                                size_t alignment) {
  const size_t servers = weights.size();
  const double largest = servers == 0 ? 0 : *std::max_element(weights.begin(), weights.end());
  if (bytes == 0 || !(largest > 0)) return {};
  std::vector<double> scaled(servers);  // in [0, 1], so that the sum is always finite
  for (size_t i = 0; i < servers; ++i) scaled[i] = weights[i] / largest;
  const double total = std::accumulate(scaled.begin(), scaled.end(), 0.0);

  const size_t whole = bytes / alignment;
  std::vector<size_t> units(servers);
  std::vector<double> fraction(servers);
  std::vector<size_t> order;  // servers with a positive weight, largest fraction first
  size_t given = 0;
  for (size_t i = 0; i < servers; ++i) {
    if (!(scaled[i] > 0)) continue;
    const double exact = static_cast<double>(whole) * (scaled[i] / total);
    // Rounding must not hand out more units than there are.
    units[i] = std::min(static_cast<size_t>(exact), whole - given);
    fraction[i] = exact - static_cast<double>(units[i]);
    given += units[i];
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return fraction[a] > fraction[b]; });
  for (size_t next = 0; given < whole; ++given, ++next) ++units[order[next % order.size()]];

  std::vector<Shard> shards;
  size_t offset = 0;
  for (size_t i = 0; i < servers; ++i) {
    if (units[i] == 0) continue;
    shards.push_back({static_cast<uint32_t>(i), offset, units[i] * alignment});
    offset += shards.back().bytes;
  }
  if (shards.empty()) {  // less than a unit: all of it goes to the strongest server
    const auto strongest = std::max_element(scaled.begin(), scaled.end()) - scaled.begin();
    return {{static_cast<uint32_t>(strongest), 0, bytes}};
  }
  shards.back().bytes += bytes - offset;  // the unaligned rest; with equal weights, the last shard
                                          // is one of the smallest
  return shards;
}

std::vector<SegmentRun> local_slice(const std::vector<Shard>& shards, size_t segment_bytes,
                                    uint32_t local_rank, uint32_t local_size) {
  if (segment_bytes == 0 || local_rank >= local_size) return {};
  uint64_t total = 0;
  for (const Shard& shard : shards) total += segment_count(shard.bytes, segment_bytes);
  const uint64_t begin = total * local_rank / local_size;
  const uint64_t end = total * (uint64_t{local_rank} + 1) / local_size;

  std::vector<SegmentRun> runs;
  uint64_t position = 0;  // of the first segment of the shard, counted over all shards
  for (size_t i = 0; i < shards.size() && position < end; ++i) {
    const uint64_t count = segment_count(shards[i].bytes, segment_bytes);
    const uint64_t first = std::max(begin, position);
    const uint64_t last = std::min(end, position + count);
    if (first < last) {
      runs.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(first - position),
                      static_cast<uint32_t>(last - first)});
    }
    position += count;
  }
  return runs;
}

Range run_range(const std::vector<Shard>& shards, size_t segment_bytes, const SegmentRun& run) {
  const Shard& shard = shards[run.shard];
  const size_t begin = std::min(shard.bytes, run.first * segment_bytes);
  const size_t end = std::min(shard.bytes, (size_t{run.first} + run.count) * segment_bytes);
  return {shard.offset + begin, end - begin};
}

}  // namespace herring::plan
