#include "simulate/failures.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace herring::simulate {
namespace {

// HERRING_FIRST_SEED and HERRING_SEEDS choose what is run, for long runs and to repeat a failure.
uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Whatever happens to servers, all workers get the same bits as without faults.
TEST(Failures, EveryRoundEndsWithTheSameBits) {
  const uint64_t first = from_environment("HERRING_FIRST_SEED", 1);
  const uint64_t seeds = from_environment("HERRING_SEEDS", 300);
  uint32_t kills = 0, cuts = 0, replacements = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
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
  if (seeds < 100) return;
  EXPECT_GT(kills, seeds / 4);
  EXPECT_GT(cuts, seeds / 4);
  EXPECT_GT(replacements, seeds / 4);
}

}  // namespace
}  // namespace herring::simulate
