#include "server/aggregator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "fixture.h"

namespace herring::server {
namespace {

// Plays the workers: pushes segments straight into the lanes and collects the results.
class AggregatorTest : public testing::TestWithParam<uint32_t> {
 protected:
  AggregatorTest()
      : nodes(GetParam()),
        cluster(make_cluster(nodes)),
        groups(cluster),
        aggregator(cluster, groups, kSegment, 100,
                   [this](Slot& slot, std::span<const uint32_t> contributors) {
          if (on_result) {
            on_result(slot);
          } else {
            std::memcpy(result.data() + slot.segment * kSegment, slot.result, slot.result_bytes);
          }
          ++delivered;
          called_off += slot.called_off;
          given_workers = slot.given_workers;
          const auto answered =
              !contributors.empty()
                  ? static_cast<std::ptrdiff_t>(contributors.size())
                  : std::count_if(slot.contributions.begin(), slot.contributions.end(),
                                  [](const Contribution& one) {
                                    return one.state != Contribution::kLost;
                                  });
          for (int i = 0; i < answered; ++i) aggregator.result_sent(slot);
        }, monotonic_now, recorder) {}

  wire::Open open_message(size_t bytes) {
    wire::Open open;
    open.reduction.op = ReduceOp::kAverage;
    open.workers = 1;
    open.shard_bytes = bytes;
    open.deadline = {1000, 1000, 500};
    open.name = "op";
    return open;
  }

  Status push(uint32_t rank, uint32_t first, uint32_t count, const char* data, size_t bytes,
              uint8_t flags = 0, Key key = {}) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kData;
    header.first_segment = first;
    header.segments = static_cast<uint16_t>(count);
    header.payload = static_cast<uint32_t>(bytes);
    header.flags = flags;
    if (data == nullptr) header.flags |= wire::kFlagEmpty;
    header.round = key.round;
    header.home = static_cast<uint16_t>(key.home);
    header.epoch = key.epoch;
    transport::Destinations out;
    Slot* slots[transport::Destinations::kMaxPieces];
    auto begun = aggregator.begin(header, rank, nullptr, out, slots);
    if (!begun.ok()) return begun.status();
    if (*begun != Aggregator::Begun::kTaken) return {Code::kPeerLost, "called off"};
    for (int i = 0; i < out.count; ++i) {
      std::memcpy(out.pieces[i].iov_base, data, out.pieces[i].iov_len);
      data += out.pieces[i].iov_len;
    }
    for (uint32_t i = 0; i < count; ++i) aggregator.arrived(*slots[i], rank, monotonic_now());
    return {};
  }

  const uint32_t nodes;
  control::Cluster cluster;
  GroupTable groups;
  std::vector<char> result;
  std::function<void(const Slot&)> on_result;  // instead of keeping it in `result`
  std::atomic<uint32_t> delivered{0}, called_off{0}, given_workers{0};
  observe::Recorder recorder{0};
  Aggregator aggregator;
};

TEST_P(AggregatorTest, AnyOrderOfArrivalGivesTheSameBits) {
  const size_t count = 5 * kSegment / 4 + 7, bytes = count * sizeof(float);
  const uint32_t segments = 6;
  std::mt19937 random(nodes);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> inputs(nodes, std::vector<float>(count));
  for (auto& input : inputs) {
    for (float& value : input) value = normal(random);
  }
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<float> expected(count);
  reduce::combine(sources.data(), nodes, expected.data(), count,
                  {DType::kFloat32, DType::kFloat32, ReduceOp::kAverage, 1.0, double(nodes), 1.0});
  for (int attempt = 0; attempt < 5; ++attempt) {
    result.assign(bytes, 0);
    delivered = 0;
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      ASSERT_TRUE(aggregator.open({}, open_message(bytes), rank).ok());
    }
    std::vector<std::pair<uint32_t, uint32_t>> order;
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      for (uint32_t s = 0; s < segments; ++s) order.emplace_back(rank, s);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const auto& [rank, s] : order) {
      const size_t begin = s * kSegment, n = std::min(kSegment, bytes - begin);
      const auto* data = reinterpret_cast<const char*>(inputs[rank].data());
      ASSERT_TRUE(push(rank, s, 1, data + begin, n).ok());
    }
    EXPECT_EQ(delivered, segments);
    EXPECT_EQ(std::memcmp(result.data(), expected.data(), bytes), 0);
    EXPECT_TRUE(aggregator.idle());
  }
}

// Proxies push and sum at the same time, in several rounds at once.
TEST_P(AggregatorTest, ThreadsShareTheTable) {
  constexpr uint32_t kThreads = 4, kRounds = 90, kSegments = 6;
  const auto of = [](uint32_t round, uint32_t segment) {
    return static_cast<float>(round * kSegments + segment);
  };
  std::atomic<uint32_t> wrong{0};
  on_result = [&](const Slot& slot) {
    const auto* const values = reinterpret_cast<const float*>(slot.result);
    const float sum = static_cast<float>(nodes) * of(slot.op->key.round, slot.segment);
    wrong += std::count(values, values + kSegment / 4, sum) != kSegment / 4;
  };
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t round = 0; round < kRounds; ++round) {
        const Key key{.round = round};
        for (uint32_t rank = thread; rank < nodes; rank += kThreads) {
          wire::Open open = open_message(kSegments * kSegment);
          open.reduction.op = ReduceOp::kSum;
          ASSERT_TRUE(aggregator.open(key, std::move(open), rank).ok());
          for (uint32_t segment = 0; segment < kSegments; ++segment) {
            const std::vector<float> own(kSegment / 4, of(round, segment));
            ASSERT_TRUE(push(rank, segment, 1, reinterpret_cast<const char*>(own.data()), kSegment,
                             0, key).ok());
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(delivered, kRounds * kSegments);
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(aggregator.idle());
}

TEST_P(AggregatorTest, ThoseWithNothingToAddAreNoPartOfTheAverage) {
  result.assign(kSegment, 0);
  const std::vector<float> six(kSegment / 4, 6.0f);
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    wire::Open open = open_message(kSegment);
    open.workers = rank == 0 ? 1 : 0;
    ASSERT_TRUE(aggregator.open({}, std::move(open), rank).ok());
    ASSERT_TRUE(rank == 0 ? push(0, 0, 1, reinterpret_cast<const char*>(six.data()), kSegment).ok()
                          : push(rank, 0, 1, nullptr, 0).ok());
  }
  EXPECT_EQ(std::memcmp(result.data(), six.data(), kSegment), 0);
}

TEST_P(AggregatorTest, NothingUnexpectedTouchesMemory) {
  if (nodes == 1) return;  // one contribution completes, so nothing comes twice
  const std::vector<char> data(4 * kSegment);
  EXPECT_FALSE(push(0, 0, 1, data.data(), kSegment).ok());  // not opened
  ASSERT_TRUE(aggregator.open({}, open_message(2 * kSegment), 0).ok());
  EXPECT_FALSE(push(0, 1, 2, data.data(), 2 * kSegment).ok());   // beyond the end
  EXPECT_FALSE(push(0, 0, 1, data.data(), kSegment - 4).ok());   // too short
  EXPECT_FALSE(push(0, 0xffffffff, 1, data.data(), kSegment).ok());
  EXPECT_FALSE(push(1, 0, 1, data.data(), kSegment).ok());       // from a rank that did not open it
  EXPECT_TRUE(push(0, 0, 1, data.data(), kSegment).ok());
  EXPECT_FALSE(push(0, 0, 1, data.data(), kSegment).ok());       // twice
  EXPECT_EQ(aggregator.open({}, open_message(3 * kSegment), 1).code(), Code::kMismatch);
}

TEST_P(AggregatorTest, NamesWhoIsMissing) {
  if (nodes == 1) return;
  ASSERT_TRUE(aggregator.open({}, open_message(kSegment), 0).ok());
  const Nanos now = monotonic_now();
  EXPECT_TRUE(aggregator.overdue(now).empty());
  auto late = aggregator.overdue(now + 600 * kMillisecond);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_FALSE(late[0].fatal);
  EXPECT_NE(late[0].text.find("rank 1 ("), std::string::npos) << late[0].text;
  EXPECT_EQ(late[0].awaited.present, std::vector<uint32_t>{0});
  late = aggregator.overdue(now + 2 * kSecond);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_TRUE(late[0].fatal);
}

TEST_P(AggregatorTest, WaitsWhileBytesMoveAndNamesWhoIsBehind) {
  if (nodes == 1) return;
  const std::vector<char> data(2 * kSegment);
  result.assign(2 * kSegment, 0);
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    wire::Open open = open_message(2 * kSegment);
    // The shortest deadline counts, whichever rank gives it.
    open.deadline = {60'000, rank == 1 ? 1000u : 60'000u, 60'000};
    ASSERT_TRUE(aggregator.open({}, std::move(open), rank).ok());
  }
  ASSERT_TRUE(push(0, 0, 2, data.data(), 2 * kSegment).ok());
  for (uint32_t rank = 1; rank < nodes; ++rank) {
    ASSERT_TRUE(push(rank, 0, 1, data.data(), kSegment).ok());
  }
  const Nanos now = monotonic_now();
  EXPECT_TRUE(aggregator.overdue(now + 900 * kMillisecond).empty());
  const auto late = aggregator.overdue(now + 1100 * kMillisecond);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_TRUE(late[0].fatal);
  EXPECT_NE(late[0].text.find("segments of rank 1 ("), std::string::npos) << late[0].text;
  EXPECT_NE(late[0].text.find("; 1 of 2 have arrived"), std::string::npos) << late[0].text;
}

// Where they wait for another server, for example.
TEST_P(AggregatorTest, BlamesNobodyWhereAllHaveSentTheSame) {
  if (nodes == 1) return;
  const std::vector<char> data(kSegment);
  result.assign(2 * kSegment, 0);
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    ASSERT_TRUE(aggregator.open({}, open_message(2 * kSegment), rank).ok());
    ASSERT_TRUE(push(rank, 0, 1, data.data(), kSegment).ok());
  }
  const auto late = aggregator.overdue(monotonic_now() + 600 * kMillisecond);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_NE(late[0].text.find("segments that no rank has sent yet; 1 of 2 have arrived from each"),
            std::string::npos)
      << late[0].text;
  ServerView view;
  aggregator.report(monotonic_now() + 600 * kMillisecond, view);
  EXPECT_TRUE(view.missing.empty());
}

// Every segment that was sent is answered once, the other segments are not waited for, and nothing
// stays behind.
TEST_P(AggregatorTest, ABrokenGroupIsCalledOff) {
  if (nodes == 1) return;
  const std::vector<char> data(3 * kSegment);
  result.assign(3 * kSegment, 0);
  ASSERT_TRUE(aggregator.open({}, open_message(3 * kSegment), 0).ok());
  ASSERT_TRUE(aggregator.open({0, 1}, open_message(kSegment), 0).ok());  // no data of it comes
  ASSERT_TRUE(push(0, 0, 2, data.data(), 2 * kSegment).ok());
  // One segment is still being received.
  wire::FrameHeader header;
  header.type = wire::FrameType::kData;
  header.first_segment = 2;
  header.segments = 1;
  header.payload = kSegment;
  transport::Destinations out;
  Slot* slot = nullptr;
  ASSERT_EQ(*aggregator.begin(header, 0, nullptr, out, &slot), Aggregator::Begun::kTaken);
  aggregator.break_group(*groups.world());
  // Another contributor opens the operation that is still being received.
  EXPECT_TRUE(aggregator.open({}, open_message(3 * kSegment), 1).ok());
  EXPECT_EQ(push(1, 0, 1, data.data(), kSegment).code(), Code::kPeerLost);
  EXPECT_EQ(delivered, 2u);
  EXPECT_FALSE(aggregator.idle());
  aggregator.arrived(*slot, 0, monotonic_now());
  EXPECT_EQ(delivered, 3u);
  EXPECT_TRUE(aggregator.idle());
  // Data that arrives later is read and answered, and nothing else is done with it.
  EXPECT_TRUE(aggregator.open({0, 2}, open_message(kSegment), 1).ok());
  EXPECT_EQ(push(1, 0, 1, data.data(), kSegment).code(), Code::kPeerLost);
  EXPECT_TRUE(aggregator.idle());
  EXPECT_EQ(called_off, 3u);
  aggregator.break_group(*groups.world());
}

TEST_P(AggregatorTest, WhatWasCompleteBeforeAMemberLeftIsAResult) {
  const std::vector<char> data(2 * kSegment);
  result.assign(2 * kSegment, 0);
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    ASSERT_TRUE(aggregator.open({}, open_message(2 * kSegment), rank).ok());
    ASSERT_TRUE(push(rank, 0, 1, data.data(), kSegment).ok());
  }
  ASSERT_TRUE(push(0, 1, 1, data.data(), kSegment).ok());
  const uint32_t complete = nodes == 1 ? 2 : 1;
  EXPECT_EQ(delivered, complete);
  aggregator.break_group(*groups.world());
  EXPECT_EQ(delivered, 2u);
  EXPECT_EQ(called_off, 2 - complete);
}

TEST_P(AggregatorTest, NobodyWaitsForLongForAMemberThatHasDestroyedTheGroup) {
  if (nodes < 2) return;
  ASSERT_TRUE(groups.define(4, "g", {0, 1}, 0).ok());
  ASSERT_TRUE(aggregator.open({0, 0, 0, 4}, open_message(kSegment), 1).ok());
  const Nanos now = monotonic_now();
  EXPECT_TRUE(aggregator.stranded(now + 2 * kSecond, false).empty()) << "it may still come";
  groups.find(4)->add_gone(0, kDestroyedGroup);
  EXPECT_TRUE(aggregator.stranded(now, false).empty()) << "a moment may be needed";
  const auto stranded = aggregator.stranded(now + 2 * kSecond, false);
  ASSERT_EQ(stranded.size(), 1u);
  const auto& [group, why] = *stranded.begin();
  EXPECT_EQ(group, groups.find(4));
  EXPECT_NE(why.find("rank 0 ("), std::string::npos) << why;
  aggregator.break_group(*group);
  EXPECT_TRUE(aggregator.stranded(now + 2 * kSecond, false).empty());
}

// Workers hear from the rendezvous who has left, unless that has left, too.
TEST_P(AggregatorTest, NobodyWaitsForLongForWhoHasLeftIfNobodyElseTells) {
  if (nodes < 2) return;
  ASSERT_TRUE(groups.define(4, "g", {0, 1}, 0).ok());
  ASSERT_TRUE(aggregator.open({0, 0, 0, 4}, open_message(kSegment), 1).ok());
  groups.find(4)->add_gone(0, kLeftJob);
  const Nanos later = monotonic_now() + 2 * kSecond;
  EXPECT_TRUE(aggregator.stranded(later, false).empty()) << "workers find it themselves";
  const auto stranded = aggregator.stranded(later, true);
  ASSERT_EQ(stranded.size(), 1u);
  EXPECT_NE(stranded.begin()->second.find("has left the job"), std::string::npos);
  aggregator.break_group(*stranded.begin()->first);
}

TEST_P(AggregatorTest, ADeathCallsOffItsGroupsAndNoOthers) {
  if (nodes < 3) return;
  ASSERT_TRUE(groups.define(4, "g", {0, 1}, 0).ok());
  ASSERT_TRUE(groups.define(5, "h", {0, 2}, 0).ok());
  const std::vector<char> data(kSegment);
  result.assign(kSegment, 0);
  const Key with{0, 0, 0, 4}, without{0, 0, 0, 5};
  ASSERT_TRUE(aggregator.open(with, open_message(kSegment), 0).ok());
  ASSERT_TRUE(aggregator.open(without, open_message(kSegment), 0).ok());
  EXPECT_FALSE(aggregator.open(with, open_message(kSegment), 2).ok()) << "no member";
  wire::FrameHeader header;
  header.type = wire::FrameType::kData;
  header.segments = 1;
  header.payload = kSegment;
  transport::Destinations out;
  Slot *dead = nullptr, *living = nullptr;
  header.group = 4;
  ASSERT_TRUE(aggregator.open(with, open_message(kSegment), 1).ok());
  ASSERT_EQ(*aggregator.begin(header, 1, nullptr, out, &dead), Aggregator::Begun::kTaken);
  header.group = 5;
  ASSERT_EQ(*aggregator.begin(header, 0, nullptr, out, &living), Aggregator::Begun::kTaken);
  // The dead rank was sending, and its lane is given back.
  aggregator.rank_gone(1, false);
  EXPECT_TRUE(groups.find(4)->called_off);
  EXPECT_FALSE(groups.find(5)->called_off);
  aggregator.arrived(*living, 0, monotonic_now());
  EXPECT_EQ(living->contributions[1].state, Contribution::kNone);
}

TEST_P(AggregatorTest, WhoLeavesCallsOffOnlyWhatItBreaksOff) {
  if (nodes < 3) return;
  ASSERT_TRUE(groups.define(4, "g", {0, 1}, 0).ok());
  ASSERT_TRUE(groups.define(5, "h", {0, 2}, 0).ok());
  const std::vector<char> data(kSegment);
  result.assign(kSegment, 0);
  transport::Destinations out;
  std::map<uint32_t, Slot*> slots;
  wire::FrameHeader header;
  header.type = wire::FrameType::kData;
  header.segments = 1;
  header.payload = kSegment;
  for (const uint32_t group : {4, 5}) {
    header.group = group;
    ASSERT_TRUE(aggregator.open({0, 0, 0, group}, open_message(kSegment), 0).ok());
    ASSERT_EQ(*aggregator.begin(header, 0, nullptr, out, &slots[group]),
              Aggregator::Begun::kTaken);
    if (group == 4) aggregator.arrived(*slots[group], 0, monotonic_now());
  }
  aggregator.rank_gone(0, true);
  EXPECT_FALSE(groups.find(4)->called_off) << "all that it sent is here";
  EXPECT_TRUE(groups.find(5)->called_off);
  EXPECT_EQ(slots[4]->contributions[1].state, Contribution::kNone);
}

// Some ranks have the result already, whose server has died. One gives it at any moment, while
// others have contributed, are about to, or never do.
TEST_P(AggregatorTest, AGivenResultAnswersAllWhoLackIt) {
  if (nodes == 1) return;
  for (uint32_t giver = 0; giver < nodes; ++giver) {
    const Key key{0, giver, 0, 0, 1, 2};
    result.assign(kSegment, 0);
    delivered = 0;
    const std::vector<char> gradients(kSegment, 1), sum(kSegment, 7);
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      wire::Open open = open_message(kSegment);
      open.again = true;
      // Only what the giver says counts.
      open.result_workers = rank == giver ? nodes : nodes + 1;
      ASSERT_TRUE(aggregator.open(key, std::move(open), rank).ok());
    }
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      const bool gives = rank == giver;
      ASSERT_TRUE(push(rank, 0, 1, gives ? sum.data() : gradients.data(), kSegment,
                       gives ? wire::kFlagGives : wire::kFlagWant, key).ok());
      EXPECT_EQ(delivered, rank < giver ? 0 : rank - giver + 1) << giver;
    }
    EXPECT_EQ(result, sum);
    EXPECT_EQ(given_workers, nodes);
    EXPECT_TRUE(aggregator.idle());
  }
}

// Results of a pair of wire dtypes are larger than contributions, given or summed.
TEST_P(AggregatorTest, ResultsMayBeLargerThanContributions) {
  uint32_t round = 0;
  for (const char* wire : {"fp8/bfloat16", "int8/float16", "fp8_e5m2/float32"}) {
    const DType pair = *parse_wire_dtype(wire);
    const size_t bytes = result_bytes(kSegment, pair), numbers = numbers_in(kSegment, pair);
    std::vector<float> ones(numbers, 1);
    std::vector<char> packs(kSegment), expected(bytes);
    for (size_t i = 0; i < kSegment / kPackBytes; ++i) {
      reduce::pack(&ones[i * kPackNumbers], kPackNumbers, pair, &packs[i * kPackBytes], nullptr);
    }
    reduce::convert(ones.data(), DType::kFloat32, expected.data(), result_of(pair), numbers, 1.0);
    for (const bool given : {false, true}) {
      if (given && nodes == 1) continue;
      const Key key{0, round++, 0, 0, given ? 1u : 0u, given ? 2u : 0u};
      result.assign(bytes, 0);
      for (uint32_t rank = 0; rank < nodes; ++rank) {
        wire::Open open = open_message(kSegment);
        open.dtype = pair;
        open.again = given;
        ASSERT_TRUE(aggregator.open(key, std::move(open), rank).ok());
      }
      for (uint32_t rank = 0; rank < nodes; ++rank) {
        const bool gives = given && rank == 1;
        if (gives) {
          EXPECT_FALSE(push(rank, 0, 1, packs.data(), kSegment, wire::kFlagGives, key).ok());
        }
        ASSERT_TRUE(push(rank, 0, 1, gives ? expected.data() : packs.data(),
                         gives ? bytes : kSegment, gives ? wire::kFlagGives : wire::kFlagWant,
                         key).ok());
      }
      EXPECT_EQ(result, expected) << wire << given;
      EXPECT_TRUE(aggregator.idle());
    }
  }
}

// Nobody needs to push what all ranks have, so the operation rests until no rank can push more.
TEST_P(AggregatorTest, WhatWasPushedAgainRestsUntilLaterOnesHaveBegun) {
  if (nodes == 1) return;
  control::ServerSet set = control::ServerSet::all(1);
  aggregator.serve(set, 2);
  const auto open_round = [&](uint32_t round, bool again) {
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      wire::Open open = open_message(2 * kSegment);
      open.again = again;
      ASSERT_TRUE(aggregator.open({0, round, 0, 0, 1, 2}, std::move(open), rank).ok());
    }
  };
  result.assign(2 * kSegment, 0);
  open_round(0, true);
  const std::vector<char> sum(kSegment, 7);
  ASSERT_TRUE(push(0, 1, 1, sum.data(), kSegment, wire::kFlagGives, {0, 0, 0, 0, 1, 2}).ok());
  EXPECT_EQ(delivered, 1u);
  EXPECT_TRUE(aggregator.idle());
  EXPECT_TRUE(aggregator.overdue(monotonic_now() + 3600 * kSecond).empty());
  ServerView view;
  aggregator.report(monotonic_now() + 3600 * kSecond, view);
  EXPECT_TRUE(view.missing.empty()) << view.missing.front().what;
  EXPECT_EQ(view.in_flight, 0u);
  for (uint32_t round = 1; round <= 3; ++round) {
    open_round(round, false);
  }
  // It is forgotten: a late contribution is an error, but not a result that nobody lacks.
  EXPECT_EQ(push(1, 1, 1, sum.data(), kSegment, wire::kFlagGives, {0, 0, 0, 0, 1, 2}).code(),
            Code::kPeerLost);
  EXPECT_FALSE(push(1, 1, 1, sum.data(), kSegment, wire::kFlagWant, {0, 0, 0, 0, 1, 2}).ok());
}

// A replacement serves before it has heard of a version of the set. One rank of a node may be ahead
// of another, which still has to push.
TEST_P(AggregatorTest, NothingIsForgottenBeforeTheWindowIsKnown) {
  if (nodes == 1) return;
  const auto open_round = [&](uint32_t round) {
    for (uint32_t rank = 0; rank < nodes; ++rank) {
      wire::Open open = open_message(kSegment);
      open.again = true;
      ASSERT_TRUE(aggregator.open({0, round, 0, 0, 1, 2}, std::move(open), rank).ok());
    }
  };
  result.assign(kSegment, 0);
  for (uint32_t round = 0; round <= 3; ++round) open_round(round);
  const std::vector<char> sum(kSegment, 7);
  EXPECT_TRUE(push(1, 0, 1, sum.data(), kSegment, wire::kFlagGives, {0, 0, 0, 0, 1, 2}).ok());
}

// Only operations that are pushed again may have results, and only whole ones.
TEST_P(AggregatorTest, ResultsAreGivenOnlyAgain) {
  const std::vector<char> sum(kSegment, 7);
  result.assign(kSegment, 0);
  for (uint32_t rank = 0; rank < nodes; ++rank) {
    ASSERT_TRUE(aggregator.open({}, open_message(kSegment), rank).ok());
  }
  EXPECT_EQ(push(0, 0, 1, sum.data(), kSegment, wire::kFlagGives).code(), Code::kProtocol);
  EXPECT_EQ(push(0, 0, 1, nullptr, 0, wire::kFlagGives).code(), Code::kProtocol);
}

INSTANTIATE_TEST_SUITE_P(Nodes, AggregatorTest, testing::Values(1, 2, 3, 8, 9, 17));

}  // namespace
}  // namespace herring::server
