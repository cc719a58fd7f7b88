#include "worker/options.h"

#include <gtest/gtest.h>

namespace herring::worker {
namespace {

constexpr uint64_t kGbit = 1'000'000'000;

TEST(Proxies, AreAsManyAsTheLinkKeepsBusy) {
  EXPECT_EQ(proxies_for({64, kGbit}, 32), 1u);
  EXPECT_EQ(proxies_for({64, 10 * kGbit}, 32), 2u);
  EXPECT_EQ(proxies_for({64, 25 * kGbit}, 32), 4u);
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 32), 15u);
  EXPECT_EQ(proxies_for({64, 400 * kGbit}, 32), 16u);
  EXPECT_EQ(proxies_for({64, ~0ull / 2}, 32), 16u);
  EXPECT_EQ(proxies_for({64, 0}, 32), 8u) << "as in the paper, where the rate is not known";
}

TEST(Proxies, AreNoMoreThanNodesOrHalfOfTheCores) {
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 2), 2u);
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 8), 8u);
  EXPECT_EQ(proxies_for({64, 0}, 1), 1u);
  EXPECT_EQ(proxies_for({2, 100 * kGbit}, 64), 1u);
  EXPECT_EQ(proxies_for({8, 0}, 64), 4u);
  EXPECT_EQ(proxies_for({1, 0}, 0), 1u);
}

}  // namespace
}  // namespace herring::worker
