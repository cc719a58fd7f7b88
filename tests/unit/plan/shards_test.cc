#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "plan/plan.h"

namespace herring::plan {
namespace {

// Expects that the shards cover [0, bytes) without gaps, in server order, with aligned boundaries.
void expect_partition(const std::vector<Shard>& shards, size_t bytes, size_t servers) {
  size_t position = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(shards[i].offset, position);
    EXPECT_EQ(shards[i].offset % kAlignment, 0u);
    EXPECT_GT(shards[i].bytes, 0u);
    EXPECT_LT(shards[i].server, servers);
    if (i > 0) {
      EXPECT_GT(shards[i].server, shards[i - 1].server);
    }
    position += shards[i].bytes;
  }
  EXPECT_EQ(position, bytes);
}

size_t bytes_of(const std::vector<Shard>& shards, uint32_t server) {
  for (const Shard& shard : shards) {
    if (shard.server == server) return shard.bytes;
  }
  return 0;
}

size_t random_bytes(std::mt19937_64& random) {  // all magnitudes, often unaligned
  const int bits = std::uniform_int_distribution<int>(0, 34)(random);
  return std::uniform_int_distribution<size_t>(0, size_t{1} << bits)(random);
}

TEST(ShardLayout, EqualWeightsDifferByAtMostOneUnit) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const size_t bytes = random_bytes(random);
    const size_t servers = std::uniform_int_distribution<size_t>(1, 300)(random);
    SCOPED_TRACE(testing::Message() << bytes << " bytes over " << servers);
    const double weight = std::uniform_real_distribution<double>(1e-3, 1e3)(random);
    const auto shards = shard_layout(bytes, std::vector<double>(servers, weight));
    expect_partition(shards, bytes, servers);
    if (bytes == 0) continue;
    const auto by_bytes = [](const Shard& a, const Shard& b) { return a.bytes < b.bytes; };
    const auto [least, most] = std::minmax_element(shards.begin(), shards.end(), by_bytes);
    EXPECT_LE(most->bytes - least->bytes, kAlignment);
    EXPECT_EQ(shards.size(), std::clamp<size_t>(bytes / kAlignment, 1, servers));
  }
}

TEST(ShardLayout, WeightedShardsStayWithinOneUnitOfTheirProportion) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> weight(0, 1);
  for (int i = 0; i < 1000; ++i) {
    const size_t bytes = random_bytes(random);
    const size_t servers = std::uniform_int_distribution<size_t>(1, 100)(random);
    std::vector<double> weights(servers);
    for (double& w : weights) w = weight(random) < 0.2 ? 0 : weight(random) * weight(random);
    weights[random() % servers] = 0.5;
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    SCOPED_TRACE(testing::Message() << bytes << " bytes over " << servers);
    const auto shards = shard_layout(bytes, weights);
    expect_partition(shards, bytes, servers);
    for (uint32_t s = 0; s < servers; ++s) {
      const double exact = static_cast<double>(bytes) * weights[s] / total;
      const double rest = static_cast<double>(bytes % kAlignment);
      EXPECT_NEAR(static_cast<double>(bytes_of(shards, s)), exact, kAlignment + rest + 1e-3);
      if (weights[s] == 0) {
        EXPECT_EQ(bytes_of(shards, s), 0u);
      }
    }
  }
}

TEST(ShardLayout, ExtremeWeights) {
  const double huge = std::numeric_limits<double>::max();
  expect_partition(shard_layout(6400, {huge, huge, huge}), 6400, 3);
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(shard_layout(6400, {tiny, tiny}),
            (std::vector<Shard>{{0, 0, 3200}, {1, 3200, 3200}}));
  EXPECT_EQ(shard_layout(6400, {tiny, huge}), (std::vector<Shard>{{1, 0, 6400}}));
  EXPECT_EQ(shard_layout(10, {0.1, 0.7, 0.2}), (std::vector<Shard>{{1, 0, 10}}));
  EXPECT_TRUE(shard_layout(0, {1}).empty());
  EXPECT_TRUE(shard_layout(100, {}).empty());
  EXPECT_TRUE(shard_layout(100, {0, 0}).empty());
}

TEST(ShardLayout, TheRestDoesNotGoToALargerShard) {
  EXPECT_EQ(shard_layout(64 * 5 + 7, {1, 1, 1}),
            (std::vector<Shard>{{0, 0, 128}, {1, 128, 128}, {2, 256, 71}}));
}

TEST(ServerWeights, SumToOneAndFollowTheFormula) {
  for (uint32_t n = 1; n <= 64; ++n) {
    for (uint32_t k = 0; k <= n + 3; ++k) {
      SCOPED_TRACE(testing::Message() << n << " nodes, " << k << " dedicated");
      const auto weights = server_weights(n, k);
      EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1.0, 1e-12);
      if (k == 0 || k >= n) {
        ASSERT_EQ(weights.size(), k == 0 ? n : k);
        for (double w : weights) EXPECT_DOUBLE_EQ(w, 1.0 / (k == 0 ? n : k));
        continue;
      }
      ASSERT_EQ(weights.size(), n + k);
      const double bottom = double(n) * n + double(k) * n - 2.0 * k;
      for (uint32_t s = 0; s < n + k; ++s) {
        EXPECT_DOUBLE_EQ(weights[s], (s < k ? 2.0 * (n - 1) : double(n) - k) / bottom);
      }
      // All links are equally busy. A dedicated server receives its share from n nodes. A colocated
      // server's link carries its share from the n - 1 others, and what its node's worker gets
      // back.
      const double d = weights.front();
      const double c = weights.back();
      EXPECT_NEAR(n * d, (n - 1) * c + (1 - c), 1e-12);
      EXPECT_NEAR(n * d, 2.0 * n * (n - 1) / bottom, 1e-12);
    }
  }
}

TEST(LocalSlice, PartitionsAllSegmentsForEveryLocalSize) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = std::uniform_int_distribution<size_t>(0, 1 << 22)(random);
    const size_t segment = kAlignment * std::uniform_int_distribution<size_t>(16, 400)(random);
    std::vector<double> weights(std::uniform_int_distribution<size_t>(1, 12)(random));
    for (double& w : weights) w = std::uniform_real_distribution<double>(0.01, 1)(random);
    const auto shards = shard_layout(bytes, weights);
    uint32_t total = 0;
    for (const Shard& shard : shards) total += segment_count(shard.bytes, segment);
    for (const uint32_t local_size : {1u, 2u, 3u, 4u, 7u, 8u, 64u, total + 1, 3 * total + 5}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, " << total << " segments of " << segment
                                      << ", local size " << local_size);
      size_t position = 0;
      std::vector<uint32_t> seen(shards.size(), 0);
      for (uint32_t rank = 0; rank < local_size; ++rank) {
        uint32_t mine = 0;
        for (const SegmentRun& run : local_slice(shards, segment, rank, local_size)) {
          ASSERT_LT(run.shard, shards.size());
          EXPECT_GT(run.count, 0u);
          EXPECT_EQ(run.first, seen[run.shard]);
          seen[run.shard] += run.count;
          mine += run.count;
          const Range range = run_range(shards, segment, run);
          EXPECT_EQ(range.offset, position);  // contiguous within the slice and between slices
          position = range.end();
        }
        EXPECT_GE(mine, total / local_size);
        EXPECT_LE(mine, (total + local_size - 1) / local_size);
      }
      EXPECT_EQ(position, bytes);
      for (size_t s = 0; s < shards.size(); ++s) {
        EXPECT_EQ(seen[s], segment_count(shards[s].bytes, segment));
      }
    }
  }
}

TEST(LocalSlice, NobodyOutsideTheNodeOwnsAnything) {
  const auto shards = shard_layout(1 << 20, {1, 1});
  EXPECT_TRUE(local_slice(shards, 8192, 2, 2).empty());
  EXPECT_TRUE(local_slice(shards, 8192, 0, 0).empty());
  EXPECT_TRUE(local_slice({}, 8192, 0, 1).empty());
}

TEST(RunRange, LastSegmentOfAShardIsShort) {
  const auto shards = shard_layout(20000, {1, 1});  // 9984 + 10016: 156 units each, and 32 bytes
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_EQ(run_range(shards, 8192, {0, 1, 1}), (Range{8192, shards[0].bytes - 8192}));
  EXPECT_EQ(run_range(shards, 8192, {1, 0, 2}), (Range{shards[1].offset, shards[1].bytes}));
}

}  // namespace
}  // namespace herring::plan
