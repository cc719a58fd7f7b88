#include "base/ranks.h"

#include <gtest/gtest.h>

namespace herring {
namespace {

TEST(Ranks, AreListedInRanges) {
  EXPECT_EQ(list_ranks({3}), "rank 3");
  EXPECT_EQ(list_ranks({0, 1, 2, 3, 6}), "ranks 0-3, 6");
  EXPECT_EQ(list_ranks({0, 2, 3}), "ranks 0, 2-3");
}

}  // namespace
}  // namespace herring
