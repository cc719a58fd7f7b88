#include "simulate/failures.h"

#include <gtest/gtest.h>

#include "seeds.h"

namespace herring::simulate {
namespace {

// Whatever happens to servers, all workers get the same bits as without faults.
TEST(Failures, EveryRoundEndsWithTheSameBits) {
  const Seeds seeds = Seeds::of(1, 300);
  uint32_t kills = 0, cuts = 0, replacements = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const auto expected = run_with_failures({seed, false});
    ASSERT_TRUE(expected.ok()) << "seed " << seed << ": " << expected.status().message();
    const auto got = run_with_failures({seed, true});
    ASSERT_TRUE(got.ok()) << "HERRING_FIRST_SEED=" << seed << " HERRING_SEEDS=1: "
                          << got.status().message();
    ASSERT_EQ(got->results, expected->results)
        << "HERRING_FIRST_SEED=" << seed << " HERRING_SEEDS=1: " << got->description;
    kills += got->kills;
    cuts += got->cuts;
    replacements += got->replacements;
  }
  if (seeds.count < 100) return;
  EXPECT_GT(kills, seeds.count / 4);
  EXPECT_GT(cuts, seeds.count / 4);
  EXPECT_GT(replacements, seeds.count / 4);
}

}  // namespace
}  // namespace herring::simulate
