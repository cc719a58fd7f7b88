#include "collective/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "algorithms.h"
#include "play.h"

namespace herring::collective {
namespace {

constexpr size_t kItem = sizeof(int64_t);
constexpr uint64_t kCounts[] = {0, 1, 2, 3, 5, 7, 16, 17, 31, 64, 97, 240, 241, 1001};

std::vector<Schedule> schedules(Algorithm algorithm, uint32_t size, uint64_t count) {
  std::vector<Schedule> all;
  for (uint32_t rank = 0; rank < size; ++rank) {
    all.push_back(make_schedule(algorithm, rank, size, count, kItem));
  }
  return all;
}

// Runs a test for every algorithm, number of ranks and count.
template <typename Test>
void for_each(Test test) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 1; size <= 17; ++size) {
      for (const uint64_t count : kCounts) {
        SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count, " elements"));
        test(algorithm, size, count, schedules(algorithm, size, count));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

uint64_t bytes_of(const Schedule& schedule, Operation::Kind kind) {
  return std::accumulate(schedule.begin(), schedule.end(), uint64_t{0},
                         [&](uint64_t sum, const Operation& one) {
                           return sum + (one.kind == kind ? one.range.bytes : 0);
                         });
}
uint64_t sent_by(const Schedule& one) { return bytes_of(one, Operation::Kind::kSend); }
uint64_t received_by(const Schedule& one) { return bytes_of(one, Operation::Kind::kReceive); }

TEST(Schedule, EverySendMeetsItsReceiveInTheSameOrder) {
  for_each([](Algorithm, uint32_t size, uint64_t count, const std::vector<Schedule>& all) {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Range>> sends, receives;
    for (uint32_t rank = 0; rank < size; ++rank) {
      for (uint32_t i = 0; i < all[rank].size(); ++i) {
        const Operation& one = all[rank][i];
        EXPECT_GT(one.range.bytes, 0u);
        EXPECT_LE(one.range.end(), count * kItem);
        EXPECT_EQ(one.range.bytes % kItem, 0u);
        EXPECT_EQ(one.peer != kNobody, one.is_message());
        EXPECT_EQ(one.after, Operation::After::kAll);
        for (const uint32_t earlier : all[rank].needs(i)) EXPECT_LT(earlier, i);
        if (one.kind == Operation::Kind::kCompute) {
          EXPECT_EQ(all[rank][one.half].half, i);
          EXPECT_EQ(all[rank][one.half].range, one.range);
          continue;
        }
        ASSERT_LT(one.peer, size);
        ASSERT_NE(one.peer, rank);
        if (one.kind == Operation::Kind::kSend) sends[{rank, one.peer}].push_back(one.range);
        if (one.kind == Operation::Kind::kReceive) receives[{one.peer, rank}].push_back(one.range);
      }
    }
    EXPECT_EQ(sends, receives);
  });
}

// Returns whether what `later` does with the byte comes after what `earlier` does with it.
bool is_ordered(const Schedule& schedule, uint32_t earlier, uint32_t later, size_t byte) {
  const auto has = [&](uint32_t number) {
    return overlap(schedule[number].range, {byte, 1});
  };
  std::vector<bool> after(later + 1);
  after[earlier] = true;
  for (uint32_t i = earlier + 1; i <= later; ++i) {
    for (const uint32_t needed : schedule.needs(i)) {
      if (needed < earlier || !after[needed]) continue;
      const bool bytewise = overlap(schedule[needed].range, schedule[i].range);
      if (!bytewise || (has(needed) && has(i))) after[i] = true;
    }
  }
  return after[later];
}

// Only bytes that both only read, or that have places of their own, need no order.
TEST(Schedule, OperationsOnTheSameBytesAreOrdered) {
  for_each([](Algorithm, uint32_t size, uint64_t count, const std::vector<Schedule>& all) {
    if (size > 9 || count > 31) return;
    for (const Schedule& schedule : all) {
      for (uint32_t later = 0; later < schedule.size(); ++later) {
        for (uint32_t earlier = 0; earlier < later; ++earlier) {
          const Operation &a = schedule[earlier], &b = schedule[later];
          const bool both_send =
              a.kind == Operation::Kind::kSend && b.kind == Operation::Kind::kSend;
          if (!overlap(a.range, b.range) || both_send) continue;
          if (a.half == later) continue;
          // A receive for a sum touches its place alone.
          const bool a_aside = a.sums(), b_aside = b.sums();
          if (a_aside != b_aside) {
            const Operation& sum = a_aside ? b : a;
            const bool reads_a_place = sum.kind == Operation::Kind::kCompute &&
                                       schedule[sum.half].kept && (a_aside ? a : b).kept;
            if (!reads_a_place || schedule[sum.half].place != (a_aside ? a : b).place) continue;
          }
          if (a_aside && b_aside && (!a.kept || !b.kept || a.place != b.place)) continue;
          for (size_t byte = std::max(a.range.offset, b.range.offset);
               byte < std::min(a.range.end(), b.range.end()); byte += kItem) {
            ASSERT_TRUE(is_ordered(schedule, earlier, later, byte))
                << earlier << " and " << later << " on byte " << byte;
          }
        }
      }
    }
  });
}

std::vector<Schedule> bytewise(Algorithm algorithm, uint32_t size, uint64_t count) {
  std::vector<Schedule> all;
  for (uint32_t rank = 0; rank < size; ++rank) {
    all.push_back(make_schedule(algorithm, rank, size, count, 1));
  }
  return all;
}

// Whatever runs first, each contribution is in each result once, each result is finished once, and
// all ranks have combined in the same order.
TEST(Schedule, EveryOrderOfUpToFourRanksComputesTheSame) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 1; size <= 4; ++size) {
      for (const uint64_t count : {1u, 3u, 4u}) {
        SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count, " elements"));
        size_t states = 0;
        ASSERT_EQ(play_all_orders(Play(bytewise(algorithm, size, count), count), states), "");
        if (size == 4) {
          EXPECT_GT(states, 10u);
        }
      }
    }
  }
}

TEST(Schedule, RandomOrdersOfUpToSixtyFourRanksComputeTheSame) {
  std::mt19937 lot(53);
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 5; size <= 64; size += size < 17 ? 1 : lot() % 7 + 1) {
      const uint64_t count = lot() % (size + 3) + 1;
      SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count, " elements"));
      ASSERT_EQ(play_at_random(Play(bytewise(algorithm, size, count), count), lot), "");
    }
    SCOPED_TRACE(wire::name_of(algorithm));
    ASSERT_EQ(play_at_random(Play(bytewise(algorithm, 64, 65), 65), lot), "");
  }
}

// Returns how many units of time the schedules take if a rank sends at most one message and
// receives at most one in each, and sums take no time.
uint64_t steps_of(const std::vector<Schedule>& all, uint64_t count) {
  Play play(all, count);
  for (uint64_t steps = 0;; ++steps) {
    std::vector<Play::Event> sends;
    std::vector<bool> has_sent(all.size());
    for (const Play::Event& event : play.events()) {
      if (all[event.rank][event.operation].kind != Operation::Kind::kSend) continue;
      if (!has_sent[event.rank]) sends.push_back(event);
      has_sent[event.rank] = true;
    }
    if (sends.empty() && play.events().empty()) return play.done() ? steps : 0;
    for (const Play::Event& event : sends) play.run(event);
    std::vector<bool> has_received(all.size());
    std::vector<Play::Event> receives;
    for (const Play::Event& event : play.events()) {
      if (all[event.rank][event.operation].kind != Operation::Kind::kReceive) continue;
      if (!has_received[event.rank]) receives.push_back(event);
      has_received[event.rank] = true;
    }
    for (const Play::Event& event : receives) play.run(event);
    for (bool sums = true; std::exchange(sums, false);) {
      for (const Play::Event& event : play.events()) {
        if (all[event.rank][event.operation].kind != Operation::Kind::kCompute) continue;
        play.run(event);
        sums = true;
      }
    }
  }
}

uint32_t ceil_log2(uint32_t n) { return n < 2 ? 0 : floor_log2(n - 1) + 1; }

// Checks the formulas of docs/algorithms.md, for counts that all blocks divide.
TEST(Schedule, BytesAndStepsFollowTheFormulas) {
  for (uint32_t p = 2; p <= 17; ++p) {
    SCOPED_TRACE(p);
    const uint32_t q = 1u << floor_log2(p);
    const uint64_t count = uint64_t{p} * q * 3, n = count;
    const bool power = p == q;
    struct Expected {
      Algorithm algorithm;
      uint64_t steps, all, busiest_out, busiest_in;
    };
    const uint64_t exchange = 2 * (q - 1) * n / q;
    const Expected expected[] = {
        {Algorithm::kServer, 2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n, (p - 1) * n},
        {Algorithm::kTree, 2 * ceil_log2(p), 2 * (p - 1) * n, ceil_log2(p) * n,
         ceil_log2(p) * n},
        {Algorithm::kRing, 2 * (p - 1), 2 * (p - 1) * n, 2 * (p - 1) * n / p,
         2 * (p - 1) * n / p},
        {Algorithm::kButterfly, 2 * floor_log2(p) + (power ? 0 : 2),
         q * exchange + 2 * (p - q) * n, exchange + (power ? 0 : n), exchange + (power ? 0 : n)},
        {Algorithm::kDoubling, floor_log2(p) + (power ? 0 : 2),
         q * floor_log2(p) * n + 2 * (p - q) * n, floor_log2(p) * n + (power ? 0 : n),
         floor_log2(p) * n + (power ? 0 : n)},
    };
    for (const Expected& one : expected) {
      SCOPED_TRACE(wire::name_of(one.algorithm));
      uint64_t all = 0, out = 0, in = 0;
      const std::vector<Schedule> ranks = bytewise(one.algorithm, p, count);
      for (const Schedule& schedule : ranks) {
        all += sent_by(schedule);
        out = std::max(out, sent_by(schedule));
        in = std::max(in, received_by(schedule));
      }
      EXPECT_EQ(steps_of(ranks, count), one.steps);
      EXPECT_EQ(all, one.all);
      EXPECT_EQ(out, one.busiest_out);
      EXPECT_EQ(in, one.busiest_in);
    }
  }
}

// Blocks differ by at most one element, so the bytes per rank and step differ from the formulas by
// at most as much.
TEST(Schedule, OddCountsCostAtMostOneElementMorePerStep) {
  for (uint32_t p = 2; p <= 17; ++p) {
    for (const uint64_t count : kCounts) {
      for (const Schedule& schedule : schedules(Algorithm::kRing, p, count)) {
        const double even = 2.0 * (p - 1) * static_cast<double>(count * kItem) / p;
        EXPECT_NEAR(static_cast<double>(sent_by(schedule)), even, 2.0 * (p - 1) * kItem);
      }
    }
  }
}

TEST(Schedule, AloneThereIsNothingToDo) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_TRUE(make_schedule(algorithm, 0, 1, 100, 4).empty());
  }
}

TEST(Schedule, NamesAreThoseOfTheInterface) {
  for (int i = 0; i < wire::kNumAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    const auto parsed = parse_algorithm(wire::name_of(algorithm));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->algorithm, algorithm);
    EXPECT_FALSE(parsed->device_sums);
  }
  const auto on_device = parse_algorithm("cuda-butterfly");
  ASSERT_TRUE(on_device.ok());
  EXPECT_EQ(on_device->algorithm, Algorithm::kButterfly);
  EXPECT_TRUE(on_device->device_sums);
  const auto wrong = parse_algorithm("rings");
  EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(wrong.status().message(),
            "algorithm 'rings' does not exist; use one of 'herring', 'server', 'tree', 'ring', "
            "'butterfly', 'doubling', 'cuda-butterfly'");
}

}  // namespace
}  // namespace herring::collective
