#include "collective/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "algorithms.h"

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

uint64_t sent_by(const Schedule& schedule) {
  return std::accumulate(schedule.begin(), schedule.end(), uint64_t{0},
                         [](uint64_t sum, const Step& step) { return sum + step.send.bytes; });
}

uint64_t received_by(const Schedule& schedule) {
  return std::accumulate(schedule.begin(), schedule.end(), uint64_t{0},
                         [](uint64_t sum, const Step& step) { return sum + step.receive.bytes; });
}

TEST(Schedule, EverySendMeetsItsReceiveInTheSameOrder) {
  for_each([](Algorithm, uint32_t size, uint64_t count, const std::vector<Schedule>& all) {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Range>> sends, receives;
    for (uint32_t rank = 0; rank < size; ++rank) {
      for (const Step& step : all[rank]) {
        EXPECT_EQ(step.to == kNobody, step.send.bytes == 0);
        EXPECT_EQ(step.from == kNobody, step.receive.bytes == 0);
        EXPECT_LE(step.send.end(), count * kItem);
        EXPECT_LE(step.receive.end(), count * kItem);
        EXPECT_EQ(step.send.bytes % kItem, 0u);
        EXPECT_TRUE(step.send.bytes == 0 || step.receive.bytes == 0 ||
                    step.send.end() <= step.receive.offset ||
                    step.receive.end() <= step.send.offset)
            << "both halves of a step touch the same bytes";
        if (step.to != kNobody) {
          ASSERT_LT(step.to, size);
          ASSERT_NE(step.to, rank);
          sends[{rank, step.to}].push_back(step.send);
        }
        if (step.from != kNobody) {
          ASSERT_LT(step.from, size);
          ASSERT_NE(step.from, rank);
          receives[{step.from, rank}].push_back(step.receive);
        }
      }
    }
    EXPECT_EQ(sends, receives);
  });
}

// Plays one step after the other, with all halves of a step at the same time. Each pair of ranks
// has a queue of messages.
TEST(Schedule, EveryRankEndsWithTheExactSum) {
  for_each([](Algorithm, uint32_t size, uint64_t count, const std::vector<Schedule>& all) {
    std::vector<std::vector<int64_t>> arrays(size);
    std::vector<int64_t> expected(count, 0);
    std::vector<int> finished(count, 0);
    for (uint32_t rank = 0; rank < size; ++rank) {
      for (uint64_t i = 0; i < count; ++i) {
        arrays[rank].push_back(static_cast<int64_t>((rank + 1) * 1000003 + i * 7919));
        expected[i] += arrays[rank][i];
      }
    }
    std::map<std::pair<uint32_t, uint32_t>, std::deque<std::vector<int64_t>>> letters;
    std::vector<size_t> next(size, 0);
    std::vector<bool> posted(size, false);
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t rank = 0; rank < size; ++rank) {
        if (next[rank] == all[rank].size()) continue;
        const Step& step = all[rank][next[rank]];
        auto& array = arrays[rank];
        if (!posted[rank]) {
          posted[rank] = moved = true;
          const auto first = array.begin() + step.send.offset / kItem;
          if (step.to != kNobody) {
            letters[{rank, step.to}].emplace_back(first, first + step.send.bytes / kItem);
          }
        }
        if (step.from != kNobody) {
          auto& box = letters[{step.from, rank}];
          if (box.empty()) continue;
          ASSERT_EQ(box.front().size() * kItem, step.receive.bytes);
          for (size_t i = 0; i < box.front().size(); ++i) {
            const size_t at = step.receive.offset / kItem + i;
            array[at] = box.front()[i] + (step.combine == Combine::kCopy ? 0 : array[at]);
            finished[at] += step.combine == Combine::kFinish;
          }
          box.pop_front();
        }
        ++next[rank];
        posted[rank] = false;
        moved = true;
      }
    }
    for (uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(next[rank], all[rank].size()) << "rank " << rank << " is stuck";
      EXPECT_EQ(arrays[rank], expected) << "rank " << rank;
    }
    for (const auto& [pair, box] : letters) EXPECT_TRUE(box.empty());
    if (size > 1) {
      EXPECT_EQ(finished, std::vector<int>(count, 1));
    }
  });
}

uint32_t floor_log2(uint32_t n) { return 31 - __builtin_clz(n); }
uint32_t ceil_log2(uint32_t n) { return n < 2 ? 0 : floor_log2(n - 1) + 1; }

// Checks the formulas of docs/algorithms.md, for counts that all blocks divide.
TEST(Schedule, BytesAndStepsFollowTheFormulas) {
  for (uint32_t p = 2; p <= 17; ++p) {
    SCOPED_TRACE(p);
    const uint32_t q = 1u << floor_log2(p);
    const uint64_t count = uint64_t{p} * q * 3, n = count * kItem;
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
    };
    for (const Expected& one : expected) {
      SCOPED_TRACE(wire::name_of(one.algorithm));
      uint64_t steps = 0, all = 0, out = 0, in = 0;
      for (const Schedule& schedule : schedules(one.algorithm, p, count)) {
        steps = std::max<uint64_t>(steps, schedule.size());
        all += sent_by(schedule);
        out = std::max(out, sent_by(schedule));
        in = std::max(in, received_by(schedule));
      }
      EXPECT_EQ(steps, one.steps);
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
        EXPECT_EQ(schedule.size(), 2 * (p - 1));
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
            "'butterfly', 'cuda-butterfly'");
}

}  // namespace
}  // namespace herring::collective
