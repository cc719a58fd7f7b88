#include <gtest/gtest.h>

#include "coordinator_fixture.h"

namespace herring::server {
namespace {

using wire::Collective;

Call join(uint64_t id) {
  Call call;
  call.message.id = id;
  call.message.what = wire::Join{};
  call.message.name = wire::kJoinName;
  call.message.inline_payload = true;
  call.message.timeout_ms = 10'000;
  call.message.warn_ms = 5000;
  return call;
}

std::string_view result_in(const Answer& answer) {
  std::string_view result;
  EXPECT_EQ(answer.header.type, wire::FrameType::kReply);
  EXPECT_TRUE(wire::decode_go(answer.payload, &result).ok());
  return result;
}

TEST_F(CoordinatorTest, AllReducesGoOnWithoutWhoHasJoined) {
  Call mean = small(1, floats({1}));
  mean.message.what = wire::AllReduce{{ReduceOp::kAverage}};
  Call other = small(2, floats({8}));
  other.message.name = "y";
  // One call waits already when rank 2 joins, and another comes later.
  EXPECT_TRUE(say(0, mean).empty());
  mean.payload = floats({4});
  EXPECT_TRUE(say(1, mean).empty());
  EXPECT_TRUE(say(1, other).empty());
  auto answers = say(2, join(9));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[1].rank, 1u);
  EXPECT_EQ(result_in(answers[1]), floats({2.5}));
  answers = say(0, other);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(result_in(answers[0]), floats({16}));
  // Rank 0 joins too, so rank 1 completes alone: the call needs no other rank.
  EXPECT_TRUE(say(0, join(3)).empty());
  answers = say(1, mean);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(result_in(answers[0]), floats({4}));
  answers = say(1, join(4));
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) {
    std::string_view rest;
    EXPECT_EQ(wire::decode_go(answer.payload, &rest)->counts, std::vector<uint64_t>{1});
  }
  // From here on all ranks are needed again.
  EXPECT_TRUE(say(0, mean).empty());
  EXPECT_TRUE(say(1, mean).empty());
  EXPECT_EQ(say(2, mean).size(), 3u);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, AveragesDivideByTheNumberInTheCall) {
  Call mean = small(1, floats({1}));
  mean.message.what = wire::AllReduce{{ReduceOp::kAverage, 1.0, 1.0, 4}};
  EXPECT_TRUE(say(0, mean).empty());
  mean.payload = floats({4});
  EXPECT_TRUE(say(1, mean).empty());
  auto answers = say(2, join(9));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(result_in(answers[0]), floats({1.25}));
  // Ranks that divide by other numbers disagree.
  EXPECT_TRUE(say(0, mean).empty());
  mean.message.what = wire::AllReduce{{ReduceOp::kAverage}};
  answers = say(1, mean);
  ASSERT_FALSE(answers.empty());
  EXPECT_NE(answers[0].payload.find("divided by 4"), std::string::npos);
}

TEST_F(CoordinatorTest, WhoHasCalledMostWasLastWhateverTheOrderOfNews) {
  const auto last_of = [this](std::vector<std::pair<uint32_t, uint64_t>> ranks_and_called) {
    std::vector<Answer> answers;
    for (const auto& [rank, called] : ranks_and_called) {
      Call call = join(10 + rank);
      call.message.what = wire::Join{called};
      answers = say(rank, call);
    }
    std::string_view rest;
    return wire::decode_go(answers.at(0).payload, &rest)->counts.at(0);
  };
  EXPECT_EQ(last_of({{0, 1}, {2, 3}, {1, 2}}), 2u);
  EXPECT_EQ(last_of({{2, 3}, {1, 2}, {0, 1}}), 2u);
  EXPECT_EQ(last_of({{2, 3}, {0, 3}, {1, 1}}), 0u) << "as many: who came last";
}

TEST_F(CoordinatorTest, WhoHasJoinedHasAPartOfLargeAllReduces) {
  Call large = small(7, {});
  large.message.inline_payload = false;
  large.message.arrays = {{DType::kFloat32, {1 << 20}}};
  EXPECT_TRUE(say(2, large).empty()) << "made before it joined: counts";
  EXPECT_TRUE(say(2, join(9)).empty());
  EXPECT_TRUE(say(0, large).empty());
  auto answers = say(1, large);
  ASSERT_EQ(answers.size(), 3u);
  std::string_view rest;
  EXPECT_EQ(wire::decode_go(answers[2].payload, &rest)->id, 7u);
  EXPECT_TRUE(say(0, large).empty());
  answers = say(1, large);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[2].rank, 2u);
  EXPECT_EQ(answers[2].header.round, answers[0].header.round);
  EXPECT_EQ(wire::decode_go(answers[2].payload, &rest)->id, 0u);
  const auto announced = wire::decode_announce(rest);
  ASSERT_TRUE(announced.ok());
  EXPECT_EQ(announced->name, "x");
  EXPECT_EQ(announced->arrays.at(0).shape, large.message.arrays.at(0).shape);
}

TEST_F(CoordinatorTest, WhatCannotDoWithoutAJoinedRankNamesIt) {
  Call barrier = small(1, {});
  barrier.message.what = wire::Barrier{};
  barrier.message.arrays.clear();
  Call ring = small(2, {});
  ring.message.name = "ring";
  ring.message.inline_payload = false;
  ring.message.what = wire::AllReduce{{}, wire::Algorithm::kRing};
  EXPECT_TRUE(say(0, barrier).empty());
  auto answers = say(2, join(9));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kMismatch);
  EXPECT_NE(error_in(answers[0]).text.find("rank 2 called join()"), std::string::npos);
  answers = say(1, barrier);
  ASSERT_EQ(answers.size(), 1u) << "the same call, the same error";
  EXPECT_EQ(error_in(say(1, ring).front()).code, Code::kMismatch);
  EXPECT_EQ(error_in(say(0, ring).front()).code, Code::kMismatch);
  // Ranks that disagree are told so without the ranks that have joined.
  EXPECT_TRUE(say(0, small(3, floats({1}))).empty());
  answers = say(1, small(4, floats({1, 2})));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(error_in(answers[0]).text.find("rank 1: allreduce of float32 [2]"), std::string::npos);
  // A call that rank 2 makes after join() counts once.
  EXPECT_TRUE(say(2, small(7, floats({1}))).empty());
  EXPECT_TRUE(say(0, small(7, floats({1}))).empty());
  EXPECT_EQ(say(1, small(7, floats({1}))).size(), 3u);
  EXPECT_TRUE(say(0, join(5)).empty());
  EXPECT_EQ(say(1, join(6)).size(), 3u);
  EXPECT_EQ(say(0, barrier).size() + say(1, barrier).size() + say(2, barrier).size(), 3u);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, ADeathOrADeadlineEndsAJoin) {
  EXPECT_TRUE(say(2, join(9)).empty());
  EXPECT_TRUE(say(0, small(1, floats({1}))).empty());
  auto answers = overdue(11 * kSecond);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_TRUE(say(1, small(1, floats({1}))).size() == 1) << "failed with its deadline";
  EXPECT_EQ(say(0, join(10)).size(), 1u) << "the same error";
  EXPECT_TRUE(coordinator.idle());
  EXPECT_EQ(say(1, join(11)).size(), 1u);
  EXPECT_TRUE(say(2, join(12)).empty());
  answers = leave(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kPeerLost);
  EXPECT_TRUE(coordinator.idle());
}

}  // namespace
}  // namespace herring::server
