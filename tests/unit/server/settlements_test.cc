#include "server/settlements.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace herring::server {
namespace {

using wire::Settled, wire::Subject;
using Kind = Subject::Kind;

constexpr Subject kPlan{Kind::kStream, 7};

class SettlementsTest : public testing::Test {
 protected:
  void say(uint32_t rank, Subject subject, uint64_t upto, uint32_t group = 0) {
    EXPECT_TRUE(settlements.say(rank, group, encode(std::vector<Settled>{{subject, upto}})).ok());
  }
  // Returns what each rank is told now.
  std::map<uint32_t, std::vector<Settled>> told() {
    std::vector<Answer> answers;
    settlements.settle(answers);
    std::map<uint32_t, std::vector<Settled>> told;
    for (const Answer& one : answers) {
      EXPECT_EQ(one.header.type, wire::FrameType::kSettled);
      EXPECT_EQ(one.header.group, group_told);
      const auto all = wire::decode_settled(one.payload);
      EXPECT_TRUE(all.ok());
      if (!all.ok()) continue;
      auto& list = told[one.rank];
      list.insert(list.end(), all->begin(), all->end());
    }
    return told;
  }
  void define() {
    for (const uint32_t rank : {0u, 2u}) {
      EXPECT_TRUE(groups.define(5, "pair", {0, 2}, rank, rank + 1).ok());
    }
    groups.take_defined();
    group_told = 5;
  }

  uint32_t group_told = 0;
  control::Cluster cluster = make_cluster(3);
  GroupTable groups{cluster};
  Settlements settlements{groups};
};

TEST_F(SettlementsTest, RanksAreToldWhatAllOfThemHaveSaid) {
  say(0, kPlan, 4);
  say(2, kPlan, 4);
  EXPECT_TRUE(told().empty());
  say(1, kPlan, 4);
  const std::vector<Settled> expected{{kPlan, 4}};
  EXPECT_EQ(told(), (std::map<uint32_t, std::vector<Settled>>{
                        {0, expected}, {1, expected}, {2, expected}}));
  EXPECT_TRUE(told().empty()) << "once";
  EXPECT_EQ(settlements.open(), 0u) << "nothing is kept of what is settled";
}

TEST_F(SettlementsTest, TheRankThatIsBehindCounts) {
  say(0, kPlan, 9);
  say(1, kPlan, 4);
  say(2, kPlan, 6);
  EXPECT_EQ(told()[0], (std::vector<Settled>{{kPlan, 4}}));
  say(2, kPlan, 9);
  EXPECT_TRUE(told().empty());
  say(1, kPlan, 3);  // it says again what it has said before
  EXPECT_TRUE(told().empty());
  say(1, kPlan, 9);
  EXPECT_EQ(told()[1], (std::vector<Settled>{{kPlan, 9}}));
  EXPECT_EQ(settlements.open(), 0u);
}

// Another server has told some ranks before it died. All say it again to the next one.
TEST_F(SettlementsTest, WhatWasSettledCanBeSettledAgain) {
  for (int time = 0; time < 2; ++time) {
    for (uint32_t rank = 0; rank < 3; ++rank) say(rank, kPlan, 4);
    EXPECT_EQ(told().size(), 3u);
  }
}

TEST_F(SettlementsTest, SubjectsAreApart) {
  for (uint32_t rank = 0; rank < 3; ++rank) say(rank, {Kind::kAnswers, 7}, 4);
  say(0, kPlan, 4);
  say(1, {Kind::kSeries, 7}, 1);
  EXPECT_EQ(told()[2], (std::vector<Settled>{{{Kind::kAnswers, 7}, 4}}));
  EXPECT_EQ(settlements.open(), 2u);
}

TEST_F(SettlementsTest, NobodyWaitsForARankThatIsGone) {
  say(0, kPlan, 4);
  say(1, kPlan, 4);
  EXPECT_TRUE(told().empty());
  groups.rank_gone(2, "is gone");
  settlements.some_gone();
  const auto now = told();
  EXPECT_EQ(now.size(), 2u);
  EXPECT_FALSE(now.contains(2));
}

TEST_F(SettlementsTest, OnlyMembersCountAndNoneThatHasDestroyedTheGroup) {
  define();
  EXPECT_FALSE(settlements.say(1, 5, encode(std::vector<Settled>{{kPlan, 4}})).ok());
  say(0, kPlan, 4, 5);
  EXPECT_TRUE(told().empty());
  groups.find(5)->add_gone(2, kDestroyedGroup);
  settlements.some_gone();
  EXPECT_EQ(told().size(), 1u);
}

// It goes on with partial all-reduces of the group.
TEST_F(SettlementsTest, WhoHasCalledTheGroupOffIsWaitedFor) {
  define();
  groups.find(5)->add_gone(2, "has called it off: another rank has died");
  say(0, kPlan, 4, 5);
  settlements.some_gone();
  EXPECT_TRUE(told().empty());
  say(2, kPlan, 4, 5);
  EXPECT_EQ(told().size(), 2u);
}

TEST_F(SettlementsTest, AGroupThatIsGoneLeavesNothing) {
  define();
  say(0, kPlan, 4, 5);
  for (const uint32_t rank : {0u, 2u}) groups.leave(5, rank);
  settlements.some_gone();
  EXPECT_TRUE(told().empty());
  EXPECT_EQ(settlements.open(), 0u);
  say(0, kPlan, 4, 5);  // it was on its way
  EXPECT_EQ(settlements.open(), 0u);
}

TEST_F(SettlementsTest, WhatIsNotedHasABound) {
  std::vector<Settled> all(wire::kMostSettled);
  uint64_t id = 0;
  while (id < Settlements::kMostOpen + 5000) {
    for (Settled& one : all) one = {{Kind::kStream, id++}, 1};
    ASSERT_TRUE(settlements.say(0, 0, encode(all)).ok());
  }
  EXPECT_EQ(settlements.open(), Settlements::kMostOpen);
  EXPECT_TRUE(told().empty());
  // What was noted is settled; a message has room for so many.
  id = 0;
  while (id < Settlements::kMostOpen) {
    for (Settled& one : all) one = {{Kind::kStream, id++}, 1};
    for (const uint32_t rank : {1u, 2u}) ASSERT_TRUE(settlements.say(rank, 0, encode(all)).ok());
  }
  EXPECT_EQ(told()[0].size(), Settlements::kMostOpen);
  EXPECT_EQ(settlements.open(), 0u);
}

TEST_F(SettlementsTest, NonsenseIsRefused) {
  EXPECT_FALSE(settlements.say(0, 0, "nonsense").ok());
  EXPECT_TRUE(settlements.say(0, 77, encode(std::vector<Settled>{{kPlan, 4}})).ok())
      << "a group that the others have destroyed";
}

}  // namespace
}  // namespace herring::server
