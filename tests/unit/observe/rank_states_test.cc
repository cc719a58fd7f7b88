#include "observe/rank_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace herring::observe {
namespace {

TEST(RankStates, DescribesOnlyRanksThatItKnows) {
  RankStates states;
  EXPECT_EQ(states.describe({0, 1, 2}), "");
  states.set({{3, "has been computing for 12 s (train.py:40 in load)"},
              {4, ": its process is stopped"},
              {5, ""}});
  EXPECT_EQ(states.describe({0, 1, 2, 5}), "");
  EXPECT_EQ(states.describe({1, 4}), "; rank 4: its process is stopped");
  EXPECT_EQ(states.describe({3, 4, 5}),
            "; rank 3 has been computing for 12 s (train.py:40 in load); rank 4: its process is "
            "stopped");
  states.set({});
  EXPECT_EQ(states.describe({3, 4, 5}), "");
}

TEST(RankStates, RanksInTheSameStateShareAText) {
  RankStates states;
  states.set({{1, ": its process is stopped"}, {2, "has been computing for 3 s"},
              {4, ": its process is stopped"}, {5, ": its process is stopped"}});
  EXPECT_EQ(states.describe({1, 2, 4, 5}),
            "; each of ranks 1, 4-5: its process is stopped; rank 2 has been computing for 3 s");
}

TEST(RankStates, ManyStatesDoNotFillALog) {
  RankStates states;
  std::map<uint32_t, std::string> all;
  std::vector<uint32_t> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (const uint32_t rank : ranks) {
    all[rank] = "has been computing for " + std::to_string(rank) + " s";
  }
  states.set(all);
  const std::string text = states.describe(ranks);
  EXPECT_EQ(std::ranges::count(text, ';'), 9);
  EXPECT_TRUE(text.ends_with("; rank 7 has been computing for 7 s; and more")) << text;
  ranks.resize(8);
  EXPECT_TRUE(states.describe(ranks).ends_with("; rank 7 has been computing for 7 s"));
}

}  // namespace
}  // namespace herring::observe
