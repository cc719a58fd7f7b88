#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace herring::plan {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

struct Input {
  std::vector<Gradient> gradients;
  Cluster cluster;
  Options options;
};

Plan make(const Input& input) {
  Result<Plan> plan = make_plan(input.gradients, input.cluster, input.options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : Plan{};
}

Input random_input(std::mt19937_64& random) {
  const auto pick = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random);
  };
  Input input;
  const uint64_t dtypes = pick(1, 3);
  for (uint64_t count = pick(0, 60); count > 0; --count) {
    input.gradients.push_back({pick(0, 9) == 0 ? 0 : pick(1, uint64_t{1} << pick(0, 18)),
                               static_cast<DType>((pick(0, dtypes - 1) * 3 + 1) % kNumDTypes)});
  }
  input.cluster.nodes = static_cast<uint32_t>(pick(1, 20));
  input.cluster.weights =
      server_weights(input.cluster.nodes, static_cast<uint32_t>(pick(0, input.cluster.nodes + 2)));
  input.options.segment_bytes = kAlignment * pick(16, 256);
  if (pick(0, 2) > 0) {
    input.options.buffer_bytes = input.options.segment_bytes + pick(0, uint64_t{1} << pick(8, 20));
  }
  return input;
}

TEST(Plan, EveryByteOfEveryGradientIsInExactlyOneSegment) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    const Input input = random_input(random);
    const Plan plan = make(input);
    ASSERT_EQ(plan.placements.size(), input.gradients.size());
    ASSERT_EQ(plan.buffers_of.size(), input.gradients.size());
    EXPECT_EQ(plan.buffer_bytes % kAlignment, 0u);
    EXPECT_EQ(plan.segment_bytes, input.options.segment_bytes);

    // Gradients fill their dtype's arena in production order, without gaps.
    std::vector<size_t> filled(plan.arenas.size(), 0);
    for (size_t g = 0; g < input.gradients.size(); ++g) {
      const Placement& placement = plan.placements[g];
      ASSERT_LT(placement.arena, plan.arenas.size());
      EXPECT_EQ(plan.arenas[placement.arena].dtype, input.gradients[g].dtype);
      EXPECT_EQ(placement.range.bytes,
                input.gradients[g].elements * size_of(input.gradients[g].dtype));
      EXPECT_EQ(placement.range.offset, filled[placement.arena]);
      filled[placement.arena] = placement.range.end();
    }
    for (size_t a = 0; a < plan.arenas.size(); ++a) EXPECT_EQ(filled[a], plan.arenas[a].bytes);

    // The segments of all buffers and shards tile each arena. No boundary cuts an element.
    std::vector<std::map<size_t, size_t>> segments(plan.arenas.size());  // offset -> bytes
    for (const Buffer& buffer : plan.buffers) {
      EXPECT_LE(buffer.range.bytes, plan.buffer_bytes);
      for (const Shard& shard : buffer.shards) {
        for (uint32_t s = 0; s < segment_count(shard.bytes, plan.segment_bytes); ++s) {
          const size_t begin = s * plan.segment_bytes;
          const size_t bytes = std::min(plan.segment_bytes, shard.bytes - begin);
          const size_t offset = buffer.range.offset + shard.offset + begin;
          EXPECT_TRUE(segments[buffer.arena].emplace(offset, bytes).second);
          EXPECT_EQ(offset % kAlignment, 0u);
        }
      }
    }
    for (size_t a = 0; a < plan.arenas.size(); ++a) {
      size_t position = 0;
      for (const auto& [offset, bytes] : segments[a]) {
        EXPECT_EQ(offset, position);
        position += bytes;
      }
      EXPECT_EQ(position, plan.arenas[a].bytes);
    }
  }
}

TEST(Plan, BuffersAreEqualAndInPushOrder) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const Plan plan = make(random_input(random));
    std::vector<size_t> next(plan.arenas.size(), 0);
    uint32_t previous = 0;
    for (const Buffer& buffer : plan.buffers) {
      EXPECT_GE(buffer.last_gradient, previous);  // push order
      previous = buffer.last_gradient;
      EXPECT_EQ(buffer.range.offset, next[buffer.arena]);  // in arena order within an arena
      next[buffer.arena] = buffer.range.end();
      if (buffer.range.end() != plan.arenas[buffer.arena].bytes) {
        EXPECT_EQ(buffer.range.bytes, plan.buffer_bytes);  // only the last buffer may be smaller
      }
      const Placement& last = plan.placements[buffer.last_gradient];
      EXPECT_EQ(last.arena, buffer.arena);  // the buffer's last byte is this gradient's
      EXPECT_LT(last.range.offset, buffer.range.end());
      EXPECT_GE(last.range.end(), buffer.range.end());
    }
    for (size_t a = 0; a < plan.arenas.size(); ++a) EXPECT_EQ(next[a], plan.arenas[a].bytes);

    for (size_t g = 0; g < plan.placements.size(); ++g) {
      const auto& [arena, range] = plan.placements[g];
      std::vector<uint32_t> expected;
      for (uint32_t b = 0; b < plan.buffers.size(); ++b) {
        const Buffer& buffer = plan.buffers[b];
        if (range.bytes > 0 && buffer.arena == arena && buffer.range.offset < range.end() &&
            range.offset < buffer.range.end()) {
          expected.push_back(b);
        }
      }
      EXPECT_EQ(plan.buffers_of[g], expected);
    }
  }
}

TEST(Plan, ShardsAreTheLayoutOfTheirBuffer) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 200; ++i) {
    const Input input = random_input(random);
    for (const Buffer& buffer : make(input).buffers) {
      EXPECT_EQ(buffer.shards, shard_layout(buffer.range.bytes, input.cluster.weights));
    }
  }
}

TEST(Plan, SameInputSameHashAndAnyDifferenceShows) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    Input input = random_input(random);
    if (input.gradients.size() < 2) continue;
    input.gradients[0].elements += 100000;  // the plan must not be empty
    const Plan plan = make(input);
    EXPECT_EQ(plan.hash, make(input).hash);

    std::set<uint64_t> hashes = {plan.hash};
    const auto expect_new = [&](const Input& changed, const char* what) {
      EXPECT_TRUE(hashes.insert(make(changed).hash).second) << what;
    };
    const size_t g = random() % input.gradients.size();
    Input changed = input;
    ++changed.gradients[g].elements;
    expect_new(changed, "elements");
    changed = input;
    changed.gradients[g].dtype =
        static_cast<DType>((static_cast<int>(input.gradients[g].dtype) + 1) % kNumDTypes);
    expect_new(changed, "dtype");
    changed = input;
    changed.gradients.pop_back();
    expect_new(changed, "one gradient less");
    changed = input;
    changed.gradients.push_back({0, DType::kBool});
    expect_new(changed, "one empty gradient more");
    changed = input;
    ++changed.cluster.nodes;
    expect_new(changed, "nodes");
    changed = input;
    changed.cluster.weights.push_back(changed.cluster.weights.back());
    expect_new(changed, "servers");
    changed = input;
    changed.options.segment_bytes += kAlignment;
    changed.options.buffer_bytes = plan.buffer_bytes + kAlignment;
    expect_new(changed, "segment_bytes and buffer_bytes");
    changed = input;
    changed.options.buffer_bytes = plan.buffer_bytes + kAlignment;
    expect_new(changed, "buffer_bytes");
    changed = input;
    std::swap(changed.gradients.front(), changed.gradients.back());
    if (changed.gradients.front().elements != input.gradients.front().elements ||
        changed.gradients.front().dtype != input.gradients.front().dtype) {
      expect_new(changed, "order");
    }
    if (input.cluster.weights.size() > 1) {
      changed = input;
      changed.cluster.weights.front() *= 3;
      expect_new(changed, "weights");
    }
  }
}

// Ranks with different builds must agree, so a change of this value is a change of the protocol.
TEST(Plan, HashIsTheSameOnEveryMachine) {
  const Plan plan = make({{{1000, DType::kFloat32}, {7, DType::kInt64}, {300000, DType::kFloat32}},
                          {4, server_weights(4, 2)},
                          {}});
  EXPECT_EQ(plan.hash, 3110220982447349137u);
}

TEST(Plan, GradientMayStraddleBuffers) {
  const Plan plan = make({{{256, DType::kFloat32}, {2048, DType::kFloat32}, {3, DType::kFloat64}},
                          {2, {1, 1}},
                          {4096, 1024}});
  // float32 has 1 KiB + 8 KiB, in buffers of 4, 4 and 1 KiB. float64 has one buffer of 24 bytes,
  // which is complete last.
  ASSERT_EQ(plan.buffers.size(), 4u);
  EXPECT_EQ(plan.buffers_of, (std::vector<std::vector<uint32_t>>{{0}, {0, 1, 2}, {3}}));
  EXPECT_EQ(plan.buffers[0].last_gradient, 1u);
  EXPECT_EQ(plan.buffers[2].range, (Range{8192, 1024}));
  EXPECT_EQ(plan.buffers[3].arena, 1u);
  EXPECT_EQ(plan.buffers[3].shards, (std::vector<Shard>{{0, 0, 24}}));
}

TEST(Plan, ArenasInterleaveInPushOrder) {
  const Plan plan = make({{{512, DType::kFloat32},
                           {256, DType::kFloat64},
                           {512, DType::kFloat32},
                           {256, DType::kFloat64}},
                          {2, {1, 1}},
                          {2048, 1024}});
  std::vector<uint32_t> arenas;
  for (const Buffer& buffer : plan.buffers) arenas.push_back(buffer.arena);
  EXPECT_EQ(arenas, (std::vector<uint32_t>{0, 1, 0, 1}));
}

TEST(Plan, NothingAndEmptyGradients) {
  Plan plan = make({{}, {1, {1}}, {}});
  EXPECT_TRUE(plan.buffers.empty());
  EXPECT_TRUE(plan.arenas.empty());
  plan = make({{{0, DType::kFloat32}, {5, DType::kFloat32}, {0, DType::kInt8}}, {1, {1}}, {}});
  ASSERT_EQ(plan.buffers.size(), 1u);
  EXPECT_EQ(plan.buffers[0].last_gradient, 1u);
  EXPECT_EQ(plan.buffers_of, (std::vector<std::vector<uint32_t>>{{}, {0}, {}}));
}

TEST(Plan, BufferBytesAreRoundedUpToTheAlignment) {
  EXPECT_EQ(make({{{100000, DType::kFloat32}}, {2, {1, 1}}, {10001, 1024}}).buffer_bytes, 10048u);
}

// --- bad input ---

void expect_error(const Input& input, Code code, const std::vector<std::string>& words) {
  const Result<Plan> plan = make_plan(input.gradients, input.cluster, input.options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), code) << plan.status().to_string();
  for (const std::string& word : words) {
    EXPECT_NE(plan.status().message().find(word), std::string::npos)
        << "'" << word << "' is not in: " << plan.status().message();
  }
}

TEST(Plan, BadInputIsNamed) {
  const std::vector<Gradient> one = {{10, DType::kFloat32}};
  const Code configuration = Code::kConfiguration;
  for (const size_t bad : {size_t{0}, size_t{960}, size_t{1025}, 2 * kMiB}) {
    expect_error({one, {1, {1}}, {0, bad}}, configuration,
                 {"segment_bytes = " + std::to_string(bad), "64", "1024", "1048576"});
  }
  expect_error({one, {1, {1}}, {4096, 8192}}, configuration,
               {"buffer_bytes = 4096", "segment_bytes = 8192"});
  expect_error({one, {1, {1}}, {SIZE_MAX, 8192}}, configuration,
               {"buffer_bytes = " + std::to_string(SIZE_MAX)});
  expect_error({{{uint64_t{1} << 40, DType::kInt8}}, {1, {1}}, {8192, 8192}}, configuration,
               {"buffer_bytes = 8192", "1099511627776"});
  expect_error({one, {0, {1}}, {}}, configuration, {"has 0 nodes"});
  expect_error({one, {1, {}}, {}}, configuration, {"server"});
  expect_error({one, {1, {0, 0}}, {}}, configuration, {"0", "2 servers"});
  expect_error({one, {1, {1, -0.5}}, {}}, configuration, {"server 1", "-0.5"});
  expect_error({one, {1, {INFINITY, 1}}, {}}, configuration, {"server 0", "inf"});
  expect_error({one, {1, {1, NAN}}, {}}, configuration, {"server 1", "nan"});
  expect_error({{{1, DType::kInt8}, {1, static_cast<DType>(200)}}, {1, {1}}, {}},
               Code::kInvalidArgument, {"gradient 1", "200"});
  expect_error({{{5, DType::kInt8}, {UINT64_MAX / 4, DType::kFloat64}}, {1, {1}}, {}},
               Code::kInvalidArgument, {"gradient 1", "float64", std::to_string(UINT64_MAX / 4)});
}

// --- the automatic buffer size ---

TEST(ChooseBufferBytes, WithinItsBounds) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 2000; ++i) {
    const size_t model = random() >> (random() % 40 + 20);
    const uint32_t nodes = 1 + random() % 300;
    const uint32_t servers = 1 + random() % 300;
    const size_t segment = kAlignment * (16 + random() % 1000);
    const size_t bytes = choose_buffer_bytes(model, nodes, servers, segment);
    SCOPED_TRACE(testing::Message() << model << " " << nodes << " " << servers << " " << segment);
    EXPECT_GE(bytes, kMiB);
    EXPECT_LE(bytes, 32 * kMiB);
    EXPECT_EQ(bytes % kAlignment, 0u);
    EXPECT_GE(choose_buffer_bytes(model, nodes, servers + 1, segment) + servers * segment, bytes);
  }
}

TEST(ChooseBufferBytes, KnownModels) {
  const size_t bert = 680'000'000;  // the paper's BERT-large, fp16
  for (const uint32_t nodes : {8u, 16u, 32u, 64u}) {
    const size_t bytes = choose_buffer_bytes(bert, nodes, nodes, kDefaultSegmentBytes);
    EXPECT_EQ(bytes % (nodes * kDefaultSegmentBytes), 0u);   // whole segments everywhere
    EXPECT_GE(bytes, nodes * 16 * kDefaultSegmentBytes);     // many per shard
    EXPECT_GE(bert / bytes, 20u);                            // tens of buffers
    EXPECT_LE(bert / bytes, 40u);
  }
  EXPECT_EQ(choose_buffer_bytes(1000, 8, 8, kDefaultSegmentBytes), kMiB);
  EXPECT_EQ(choose_buffer_bytes(25'000'000, 8, 8, kDefaultSegmentBytes), kMiB);
  // The size grows with the number of servers, but a small model still has several buffers.
  EXPECT_EQ(choose_buffer_bytes(100'000'000, 64, 64, kDefaultSegmentBytes), 8 * kMiB);
  EXPECT_LE(choose_buffer_bytes(16 * kMiB, 64, 64, kDefaultSegmentBytes), 4 * kMiB + 512 * kKiB);
  EXPECT_EQ(choose_buffer_bytes(size_t{1} << 40, 512, 512, kDefaultSegmentBytes), 32 * kMiB);
  EXPECT_EQ(choose_buffer_bytes(100 * kMiB, 1, 1, kDefaultSegmentBytes, true), 25 * kMiB / 2);
  EXPECT_EQ(choose_buffer_bytes(100 * kMiB, 1, 1, kDefaultSegmentBytes, true, true),
            25 * kMiB / 4);
  EXPECT_EQ(choose_buffer_bytes(100 * kMiB, 1, 1, kDefaultSegmentBytes, false, true),
            choose_buffer_bytes(100 * kMiB, 1, 1, kDefaultSegmentBytes));
  EXPECT_EQ(choose_buffer_bytes(1000, 1, 1, kDefaultSegmentBytes, true), 4 * kMiB);
}

// --- the paper's Table III from its Table II ---

// Gradient lengths in the order in which gradients are produced. The dtype is fp16.
const std::vector<uint64_t> kTableTwo = {4194304, 4096,    4194304, 1024,    1024,    1024,
                                         1048576, 1024,    1048576, 1024,    1048576, 1024,
                                         1048576, 1024,    1024,    2048,    524288,  31260672};

double mebibytes(size_t bytes) { return static_cast<double>(bytes) / kMiB; }

// Places variables as atomic units, in the way that is best for the busiest server: the largest
// first, each on the server with the fewest bytes. Returns the bytes of the server that hosts
// parameter 0.
size_t atomic_bytes(const std::vector<uint64_t>& lengths, size_t servers) {
  std::vector<uint64_t> sorted = lengths;
  std::sort(sorted.rbegin(), sorted.rend());
  std::vector<size_t> load(servers, 0);
  for (uint64_t length : sorted) *std::min_element(load.begin(), load.end()) += 2 * length;
  return load[0];  // parameter 0 is the largest and was placed first
}

TEST(TableThree, ServerTrafficIsConstantWhereAtomicPlacementGrows) {
  std::vector<Gradient> gradients;
  for (uint64_t length : kTableTwo) gradients.push_back({length, DType::kFloat16});
  for (const uint32_t nodes : {8u, 16u, 32u, 64u}) {
    for (const size_t buffer_bytes : {size_t{0}, size_t{86684 * kKiB}}) {
      SCOPED_TRACE(testing::Message() << nodes << " nodes, buffer_bytes " << buffer_bytes);
      const Plan plan = make({gradients, {nodes, server_weights(nodes, nodes)}, {buffer_bytes}});
      std::vector<size_t> received(nodes, 0);
      for (const Buffer& buffer : plan.buffers) {
        for (const Shard& shard : buffer.shards) received[shard.server] += nodes * shard.bytes;
      }
      for (size_t bytes : received) {
        const size_t tolerance = nodes * kAlignment * plan.buffers.size();
        EXPECT_NEAR(static_cast<double>(bytes), 86684.0 * kKiB, static_cast<double>(tolerance));
        EXPECT_NEAR(mebibytes(bytes), 84.65, 0.01 + mebibytes(tolerance));
      }
    }
    EXPECT_EQ(nodes * atomic_bytes(kTableTwo, nodes), nodes * 61056 * kKiB);
    EXPECT_DOUBLE_EQ(mebibytes(nodes * atomic_bytes(kTableTwo, nodes)), 477.0 * nodes / 8);
  }
}

}  // namespace
}  // namespace herring::plan
