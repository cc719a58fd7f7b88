#include "partial/round_owner.h"

#include <gtest/gtest.h>

namespace herring::partial {
namespace {

std::vector<uint32_t> ranks_of(const Closed& closed) {
  std::vector<uint32_t> ranks;
  for (const Contributor& one : closed.contributors) ranks.push_back(one.rank);
  return ranks;
}

using Ranks = std::vector<uint32_t>;

TEST(Quorum, NamesWhatIsWrong) {
  EXPECT_TRUE(check({4, 4, 0, 0}).ok());
  EXPECT_NE(check({4, 5, 0, 0}).message().find("quorum is 5"), std::string::npos);
  EXPECT_EQ(check({4, 0, 0, 0}).code(), Code::kInvalidArgument);
  EXPECT_NE(check({4, 1, -kSecond, 0}).message().find("grace is -1"), std::string::npos);
  EXPECT_EQ(check({4, 1, kMaxGrace + 1, 0}).code(), Code::kInvalidArgument);
  EXPECT_NE(check({4, 1, 0, kMaxStaleness + 1}).message().find("staleness is 1048577"),
            std::string::npos);
}

TEST(RoundOwner, ClosesWithTheQuorumAndNotBefore) {
  RoundOwner owner({4, 2, 0, 3}, false);
  EXPECT_TRUE(owner.join({2, 1, 1}, 10));
  EXPECT_FALSE(owner.close(10));
  EXPECT_TRUE(owner.join({0, 1, 1}, 20));
  const auto closed = owner.close(20);
  ASSERT_TRUE(closed);
  EXPECT_EQ(ranks_of(*closed), (Ranks{0, 2}));
  EXPECT_EQ(closed->members, (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(closed->contributors[1].waited, 10);
  EXPECT_TRUE(closed->contributors[0].active);
  EXPECT_EQ(owner.round(), 1u);
  EXPECT_FALSE(owner.close(20));
}

TEST(RoundOwner, ADuplicateIsOne) {
  RoundOwner owner({2, 2, 0, 1}, false);
  EXPECT_TRUE(owner.join({1, 1, 1}, 1));
  EXPECT_FALSE(owner.join({1, 1, 1}, 2));
  EXPECT_FALSE(owner.join({7, 1, 1}, 2));
  EXPECT_FALSE(owner.close(2));
}

TEST(RoundOwner, LateOnesEnterTheNextRoundButDoNotCloseIt) {
  RoundOwner owner({3, 1, 0, 5}, false);
  owner.join({0, 1, 1}, 100);
  ASSERT_TRUE(owner.close(100));
  owner.join({1, 1, 1}, 130);  // must wait: round 0 is closed
  owner.join({2, 1, 1}, 140);
  EXPECT_FALSE(owner.close(140));
  owner.join({0, 2, 2}, 200);
  const auto closed = owner.close(200);
  ASSERT_TRUE(closed);
  EXPECT_EQ(ranks_of(*closed), (Ranks{0, 1, 2}));
  EXPECT_TRUE(closed->contributors[0].active);
  EXPECT_FALSE(closed->contributors[1].active);
  EXPECT_EQ(closed->contributors[1].staleness, 1u);
  EXPECT_EQ(closed->contributors[1].waited, -30);
  EXPECT_EQ(closed->contributors[2].waited, -40);
}

TEST(RoundOwner, TellsHowLongWhatCameDuringAPushHasWaited) {
  RoundOwner owner({2, 1, 0, 5}, true);
  owner.join({0, 1, 1}, 10);
  owner.join({1, 1, 1}, 10);
  ASSERT_TRUE(owner.close(20));
  owner.join({1, 2, 1}, 30);
  owner.received(0, 0, 0);
  owner.received(1, 0, 0);
  owner.join({0, 2, 2}, 40);
  const auto closed = owner.close(40);
  ASSERT_TRUE(closed);
  ASSERT_EQ(ranks_of(*closed), (Ranks{0, 1}));
  EXPECT_EQ(closed->contributors[0].waited, 0);
  EXPECT_EQ(closed->contributors[1].waited, 10);
}

TEST(RoundOwner, WaitsForOneThatWouldBecomeTooOld) {
  RoundOwner owner({2, 1, 0, 2}, false);
  for (uint32_t round = 0; round < 2; ++round) {
    owner.join({0, round + 1, round + 1}, round);
    ASSERT_TRUE(owner.close(round));
  }
  owner.join({0, 3, 3}, 5);
  EXPECT_FALSE(owner.close(5));
  EXPECT_EQ(owner.missing(), (Ranks{1}));
  EXPECT_EQ(owner.waiting_since(), 5);
  owner.join({1, 1, 1}, 6);
  const auto closed = owner.close(6);
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->contributors[1].staleness, 2u);
}

TEST(RoundOwner, WithoutStalenessEverybodyIsInEveryRound) {
  RoundOwner owner({3, 1, 0, 0}, false);
  owner.join({0, 1, 1}, 0);
  owner.join({1, 1, 1}, 0);
  EXPECT_FALSE(owner.close(0));
  owner.join({2, 1, 1}, 0);
  EXPECT_EQ(ranks_of(*owner.close(0)), (Ranks{0, 1, 2}));
}

TEST(RoundOwner, GraceLetsOthersIn) {
  RoundOwner owner({3, 1, 50, 4}, false);
  owner.join({0, 1, 1}, 100);
  EXPECT_FALSE(owner.close(100));
  EXPECT_EQ(owner.wake_at(), 150);
  owner.join({1, 1, 1}, 120);
  EXPECT_FALSE(owner.close(120));
  EXPECT_EQ(ranks_of(*owner.close(150)), (Ranks{0, 1}));
  // The owner waits for no rank when all have joined.
  owner.join({0, 2, 2}, 200);
  owner.join({1, 2, 2}, 200);
  EXPECT_FALSE(owner.close(200));
  owner.join({2, 1, 1}, 201);
  EXPECT_TRUE(owner.close(201));
}

TEST(RoundOwner, TheDeadAreNotWaitedFor) {
  RoundOwner owner({3, 3, 0, 0}, false);
  owner.join({0, 1, 1}, 0);
  owner.join({2, 1, 1}, 0);
  owner.join({1, 1, 1}, 0);
  ASSERT_TRUE(owner.close(0));
  owner.join({0, 2, 2}, 0);
  owner.join({1, 2, 2}, 0);
  EXPECT_FALSE(owner.close(0));
  owner.lost(2);
  const auto closed = owner.close(0);
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->members, (Ranks{0, 1}));
  ASSERT_EQ(owner.losses().size(), 1u);
  EXPECT_EQ(owner.losses()[0].counted, 1u);
  EXPECT_EQ(owner.losses()[0].announced, 1u);
  EXPECT_FALSE(owner.join({2, 2, 2}, 0));
}

TEST(RoundOwner, ARoundIsRepeatedWithoutAContributorThatDies) {
  RoundOwner owner({3, 2, 0, 3}, true);
  owner.join({0, 1, 1}, 0);
  owner.join({1, 1, 1}, 0);
  ASSERT_TRUE(owner.close(0));
  EXPECT_FALSE(owner.close(0));
  owner.lost(1);
  // The first attempt is still on its way to the others, and the quorum is not met.
  EXPECT_FALSE(owner.received(0, 0, 0));
  EXPECT_FALSE(owner.received(2, 0, 0));
  EXPECT_FALSE(owner.close(1));
  owner.join({2, 1, 1}, 2);
  const auto again = owner.close(2);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->round, 0u);
  EXPECT_EQ(again->attempt, 1u);
  EXPECT_EQ(ranks_of(*again), (Ranks{0, 2}));
  EXPECT_FALSE(owner.received(0, 0, 0)) << "of the attempt that was given up";
  EXPECT_FALSE(owner.received(0, 0, 1, false)) << "a contribution is missing in it";
  EXPECT_TRUE(owner.received(2, 0, 1));
  EXPECT_EQ(owner.round(), 1u);
  EXPECT_EQ(owner.losses()[0].counted, 0u);
}

TEST(RoundOwner, ARoundIsNotRepeatedOnceItIsCommitted) {
  RoundOwner owner({2, 2, 0, 3}, true);
  owner.join({0, 1, 1}, 0);
  owner.join({1, 1, 1}, 0);
  ASSERT_TRUE(owner.close(0));
  EXPECT_TRUE(owner.received(0, 0, 0));
  owner.lost(1);
  EXPECT_EQ(owner.round(), 1u);
  EXPECT_EQ(owner.losses()[0].counted, 1u);
  owner.join({0, 2, 2}, 0);
  EXPECT_EQ(ranks_of(*owner.close(0)), (Ranks{0}));
}

TEST(RoundOwner, ANextRoundWaitsUntilAllHaveThisOne) {
  RoundOwner owner({2, 1, 0, 3}, true);
  owner.join({0, 1, 1}, 0);
  ASSERT_TRUE(owner.close(0));
  EXPECT_TRUE(owner.received(0, 0, 0));
  owner.join({0, 2, 2}, 0);
  EXPECT_FALSE(owner.close(0));
  EXPECT_FALSE(owner.received(1, 0, 0));
  EXPECT_TRUE(owner.close(0));
}

TEST(RoundOwner, TheLastRoundWaitsForAllAndEndsTheSeries) {
  RoundOwner owner({3, 1, 0, 9}, false);
  owner.join({0, 1, 1, true}, 0);
  EXPECT_FALSE(owner.close(0));
  owner.join({1, 1, 1, true}, 0);
  EXPECT_FALSE(owner.close(0)) << "rank 2 may still contribute, or flush";
  EXPECT_EQ(owner.missing(), (Ranks{2}));
  owner.join({2, 1, 1, true}, 0);
  const auto closed = owner.close(0);
  ASSERT_TRUE(closed);
  EXPECT_TRUE(closed->last);
  EXPECT_EQ(ranks_of(*closed), (Ranks{0, 1, 2}));
  EXPECT_TRUE(owner.ended());
}

TEST(RoundOwner, WhoHasFlushedFollowsUntilAllHave) {
  RoundOwner owner({3, 2, 0, 9}, false);
  EXPECT_TRUE(owner.join({0, 1, 1, true}, 0));
  EXPECT_TRUE(owner.join({1, 1, 1}, 0));
  EXPECT_FALSE(owner.close(0)) << "of those who contribute two must wait";
  EXPECT_TRUE(owner.join({2, 1, 1}, 0));
  auto closed = owner.close(0);
  ASSERT_TRUE(closed);
  EXPECT_FALSE(closed->last);
  EXPECT_EQ(ranks_of(*closed), (Ranks{0, 1, 2}));
  EXPECT_TRUE(owner.join({0, 1, 2, true}, 10));
  EXPECT_FALSE(owner.join({0, 1, 2, true}, 11)) << "a duplicate";
  EXPECT_EQ(owner.waiting_since(), 10);
  EXPECT_EQ(owner.missing(), (Ranks{1, 2}));
  owner.join({1, 2, 2, true}, 12);
  EXPECT_FALSE(owner.close(12));
  owner.join({2, 2, 2}, 12);
  closed = owner.close(12);
  ASSERT_TRUE(closed) << "fewer contribute than the quorum";
  EXPECT_EQ(closed->members, (Ranks{0, 1, 2}));
  EXPECT_EQ(closed->waiting, (Ranks{0, 1, 2}));
  EXPECT_EQ(ranks_of(*closed), (Ranks{1, 2}));
  owner.join({2, 3, 3, true}, 13);
  owner.join({0, 1, 3, true}, 13);
  EXPECT_FALSE(owner.close(13)) << "rank 1 has a result to take";
  EXPECT_EQ(owner.missing(), (Ranks{1}));
  owner.join({1, 2, 3, true}, 14);
  closed = owner.close(14);
  ASSERT_TRUE(closed);
  EXPECT_TRUE(closed->last);
  EXPECT_EQ(ranks_of(*closed), (Ranks{2}));
  EXPECT_EQ(closed->members, (Ranks{0, 1, 2}));
  EXPECT_TRUE(owner.ended());
}

TEST(RoundOwner, NobodyGetsFurtherAheadOfOneThatHasFlushedThanItsMemoryAllows) {
  RoundOwner owner({2, 1, 0, 2}, false);
  owner.join({0, 1, 1, true}, 0);
  for (uint32_t round = 0; round < 2; ++round) {
    owner.join({1, round + 1, round + 1}, 0);
    ASSERT_TRUE(owner.close(0)) << round;
  }
  owner.join({1, 3, 3}, 0);
  EXPECT_FALSE(owner.close(0));
  EXPECT_EQ(owner.missing(), (Ranks{0}));
  owner.join({0, 1, 2, true}, 0);  // rank 0 has taken the first of the two
  EXPECT_TRUE(owner.close(0));
}

TEST(RoundOwner, TheLastRoundIsEmptyWhenTheOnlyOneThatContributedHasDied) {
  for (const bool pushes : {false, true}) {
    RoundOwner owner({2, 1, 0, 9}, pushes);
    owner.join({0, 1, 1, true}, 0);
    owner.join({1, 1, 1}, 0);
    ASSERT_TRUE(owner.close(0));
    owner.received(0, 0, 0);
    owner.received(1, 0, 0);
    owner.join({0, 1, 2, true}, 0);
    EXPECT_FALSE(owner.close(0));
    owner.lost(1);
    const auto closed = owner.close(0);
    ASSERT_TRUE(closed);
    EXPECT_TRUE(closed->last && closed->contributors.empty());
    EXPECT_EQ(closed->members, (Ranks{0}));
    EXPECT_TRUE(owner.ended());
  }
}

TEST(RoundOwner, ALastRoundThatIsRepeatedIsTheLastAgain) {
  RoundOwner owner({2, 2, 0, 9}, true);
  owner.join({0, 1, 1, true}, 0);
  owner.join({1, 1, 1, true}, 0);
  EXPECT_TRUE(owner.close(0)->last);
  owner.lost(1);
  EXPECT_FALSE(owner.ended());
  EXPECT_FALSE(owner.received(0, 0, 0, false));
  const auto again = owner.close(0);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->last);
  EXPECT_EQ(again->attempt, 1u);
  EXPECT_EQ(ranks_of(*again), (Ranks{0}));
  EXPECT_TRUE(owner.received(0, 0, 1));
  EXPECT_TRUE(owner.ended());
}

TEST(RoundOwner, ToldWhatNobodyCanSayItNamesIt) {
  RoundOwner owner({2, 2, 0, 9}, false);
  EXPECT_TRUE(owner.check({0, 1, 1}).ok());
  EXPECT_NE(owner.check({0, 1, 2}).message().find("base 2 after 0, while round 0 is open"),
            std::string::npos);
  owner.join({0, 1, 1, true}, 0);
  EXPECT_TRUE(owner.check({0, 1, 1, true}).ok());
  EXPECT_NE(owner.check({0, 2, 1}).message().find("contribution 2 after the last one, 1"),
            std::string::npos);
  owner.join({1, 1, 1}, 0);
  EXPECT_FALSE(owner.check({1, 2, 0}).ok());
}

TEST(RoundOwner, AReplayClosesWithTheRecordedContributorsAlone) {
  for (const bool pushes : {false, true}) {
    RoundOwner owner({4, 4, kSecond, 0, true}, pushes);
    EXPECT_TRUE(owner.join({3, 2, 2, false, 1, 1}, 1));  // rank 3 belongs to the next round
    EXPECT_FALSE(owner.close(1));
    EXPECT_TRUE(owner.join({1, 1, 1, false, 0, 2}, 2));
    EXPECT_FALSE(owner.close(2));
    EXPECT_EQ(owner.waiting_since(), 1);
    EXPECT_EQ(owner.missing(), (Ranks{0, 2}));
    EXPECT_TRUE(owner.join({2, 3, 1, false, 0, 2}, 3));
    const auto first = owner.close(3);
    ASSERT_TRUE(first);
    EXPECT_EQ(ranks_of(*first), (Ranks{1, 2}));
    EXPECT_EQ(first->contributors[1].upto, 3u);
    EXPECT_EQ(first->members, (Ranks{0, 1, 2, 3}));
    for (uint32_t rank = 0; pushes && rank < 4; ++rank) owner.received(rank, 0, 0);
    EXPECT_EQ(owner.waiting_since(), 3) << "for this round";
    const auto second = owner.close(4);
    ASSERT_TRUE(second);
    EXPECT_EQ(ranks_of(*second), (Ranks{3}));
    EXPECT_FALSE(owner.close(5));
  }
}

}  // namespace
}  // namespace herring::partial
