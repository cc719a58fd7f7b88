#include "base/lists.h"

#include <gtest/gtest.h>

namespace herring {
namespace {

TEST(Lists, HaveWhatIsMadeOfEachEntry) {
  EXPECT_EQ(list_of(std::vector<std::string>{}), "");
  EXPECT_EQ(list_of(std::vector<std::string>{"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(list_of(std::vector<int>{1, 2}, [](int n) { return 2 * n; }, " and "), "2 and 4");
}

TEST(Lists, NumbersAreListedInRanges) {
  EXPECT_EQ(list_numbers({}), "");
  EXPECT_EQ(list_numbers({3}), "3");
  EXPECT_EQ(list_numbers({4, 3}), "3-4");
  EXPECT_EQ(list_numbers({9, 0, 2, 3, 4, 5, 9}), "0, 2-5, 9");
  std::vector<uint32_t> odd;
  for (uint32_t i = 0; i < 20; ++i) odd.push_back(2 * i + 1);
  EXPECT_EQ(list_numbers(odd),
            "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 and 4 more");
  EXPECT_EQ(list_numbers(odd, 2), "1, 3 and 18 more");
}

TEST(Lists, RanksAreListedInRanges) {
  EXPECT_EQ(list_ranks({3}), "rank 3");
  EXPECT_EQ(list_ranks({0, 1, 2, 3, 6}), "ranks 0-3, 6");
  EXPECT_EQ(list_ranks({0, 2, 3}), "ranks 0, 2-3");
}

}  // namespace
}  // namespace herring
