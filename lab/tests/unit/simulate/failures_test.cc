#include "simulate/failures.h"

#include <gtest/gtest.h>

#include <iostream>
#include <utility>

#include "seeds.h"

namespace herring::simulate {
namespace {

constexpr uint32_t kSchedules = 8;  // for the job of each seed

// Whatever happens to servers, all workers get the same bits as without faults.
TEST(Failures, EveryRoundEndsWithTheSameBits) {
  const Seeds seeds = Seeds::of(1, 100);
  uint64_t kills = 0, cuts = 0, replacements = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const auto expected = run_with_failures({seed, 0});
    ASSERT_TRUE(expected.ok()) << Seeds::command(seed) << ": " << expected.status().message();
    for (uint32_t schedule = 1; schedule <= kSchedules; ++schedule) {
      if (!Seeds::wants(schedule)) continue;
      const auto got = run_with_failures({seed, schedule});
      ASSERT_TRUE(got.ok()) << Seeds::command(seed, schedule) << ": " << got.status().message();
      ASSERT_EQ(got->results, expected->results)
          << Seeds::command(seed, schedule) << ": " << got->description;
      kills += got->kills;
      cuts += got->cuts;
      replacements += got->replacements;
    }
  }
  const uint64_t schedules = kSchedules * seeds.count;
  std::cout << schedules << " schedules: " << kills << " servers killed, " << cuts << " cut off, "
            << replacements << " replaced\n";
  if (seeds.count < 50) return;
  EXPECT_GT(kills, schedules / 4);
  EXPECT_GT(cuts, schedules / 4);
  EXPECT_GT(replacements, schedules / 4);
}

// A rank that knows a later version of the set pushes some buffers elsewhere. So what others see of
// one buffer on a stand-in does not say that this rank has the results of the other ones.
TEST(Failures, ResultsAreKeptWhileRanksKnowDifferentStandIns) {
  for (const auto& [seed, schedule] : {std::pair(1036382u, 5u), {1000594, 7}, {1021108, 8},
                                       {1030873, 3}, {1039014, 2}}) {
    const auto got = run_with_failures({seed, schedule});
    ASSERT_TRUE(got.ok()) << "seed " << seed << ": " << got.status().message();
    EXPECT_EQ(got->results, run_with_failures({seed, 0})->results) << "seed " << seed;
  }
}

}  // namespace
}  // namespace herring::simulate
