#include "server/coordinator.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "coordinator_fixture.h"

namespace herring::server {
namespace {

using wire::Collective;

TEST_F(CoordinatorTest, SumsWhatRodeAlong) {
  EXPECT_TRUE(say(2, small(12, floats({4, 5}))).empty());
  EXPECT_TRUE(say(0, small(10, floats({1, 2}))).empty());
  const auto answers = say(1, small(11, floats({10, 20})));
  ASSERT_EQ(answers.size(), 3u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(answers[rank].rank, rank);
    EXPECT_EQ(answers[rank].header.type, wire::FrameType::kReply);
    std::string_view result;
    const auto head = wire::decode_go(answers[rank].payload, &result);
    ASSERT_TRUE(head.ok());
    EXPECT_EQ(head->id, 10 + rank);
    EXPECT_EQ(result, floats({15, 27}));
  }
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, LargerOnesGetTicketsInOneOrder) {
  for (uint32_t ticket = 0; ticket < 3; ++ticket) {
    std::vector<Answer> answers;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Call call = small(rank, "");
      call.message.inline_payload = false;
      call.message.arrays = {{DType::kFloat32, {1 << 20}}};
      answers = say(rank, call);
    }
    ASSERT_EQ(answers.size(), 3u);
    EXPECT_EQ(answers[0].header.type, wire::FrameType::kGo);
    EXPECT_EQ(answers[0].header.stream, 5u);
    EXPECT_EQ(answers[0].header.round, ticket);
  }
}

TEST_F(CoordinatorTest, DisagreementSaysWhoHadWhat) {
  say(0, small(0, floats({1})));
  say(1, small(1, floats({1, 2})));
  const auto answers = say(2, small(2, floats({1})));
  ASSERT_EQ(answers.size(), 3u);
  const auto error = wire::decode_op_error(answers[1].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kMismatch);
  EXPECT_NE(error->text.find("ranks 0, 2: allreduce of float32 [1]"), std::string::npos)
      << error->text;
  EXPECT_NE(error->text.find("rank 1: allreduce of float32 [2]"), std::string::npos);
  EXPECT_TRUE(error->text.ends_with(wire::kMakeSameCall)) << error->text;
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, WarnsOnceThenFailsNamingTheMissing) {
  say(1, small(1, floats({1})), 0);
  EXPECT_TRUE(overdue(400 * kMillisecond).empty());
  auto answers = overdue(600 * kMillisecond);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kWarning);
  EXPECT_NE(answers[0].payload.find("rank 0 ("), std::string::npos);
  EXPECT_TRUE(overdue(700 * kMillisecond).empty());
  answers = overdue(1100 * kMillisecond);
  ASSERT_EQ(answers.size(), 1u);
  const auto error = wire::decode_op_error(answers[0].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kTimeout);
  EXPECT_NE(error->text.find("rank 2 ("), std::string::npos);
  EXPECT_TRUE(coordinator.idle());
}

// Two ranks in different calls wait for each other. Each is told where the other is, long before
// the warning that all waiting ranks get.
TEST_F(CoordinatorTest, WhoWaitsForOneWhoWaitsElsewhereIsToldEarly) {
  Call x = small(1, floats({1})), y = small(2, floats({1}));
  x.message.warn_ms = y.message.warn_ms = 60'000;
  x.message.timeout_ms = y.message.timeout_ms = 100'000;
  y.message.name = "y";
  say(0, x, 0);
  say(2, x, 0);
  say(1, y, 0);
  EXPECT_TRUE(overdue(6 * kSecond).empty());  // as far as the coordinator knows, rank 1 computes
  coordinator.set_whereabouts(0, "allreduce 'x'");
  coordinator.set_whereabouts(2, "allreduce 'x'");
  EXPECT_TRUE(overdue(7 * kSecond).empty());
  coordinator.set_whereabouts(1, "allreduce 'y'");
  const auto answers = overdue(8 * kSecond);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kWarning);
  EXPECT_NE(answers[0].payload.find("allreduce 'x' has waited 8 s for rank 1 ("),
            std::string::npos) << answers[0].payload;
  EXPECT_NE(answers[0].payload.find("; rank 1 waits in allreduce 'y'"), std::string::npos)
      << answers[0].payload;
  EXPECT_EQ(answers[1].rank, 1u);
  EXPECT_NE(answers[1].payload.find("; ranks 0, 2 wait in allreduce 'x'"), std::string::npos)
      << answers[1].payload;
  EXPECT_TRUE(overdue(9 * kSecond).empty());  // the early warning comes once
  EXPECT_EQ(overdue(61 * kSecond).size(), 2u);  // then all waiting ranks are warned
  EXPECT_TRUE(overdue(62 * kSecond).empty());
  // The call can still complete, because another thread of rank 1 may make it.
  const auto done = say(1, x, 63 * kSecond);
  EXPECT_EQ(done.size(), 3u);
  for (const Answer& one : done) EXPECT_EQ(one.header.type, wire::FrameType::kReply);
}

TEST_F(CoordinatorTest, NobodyIsToldEarlyWhileOneOfTheMissingGoesOn) {
  Call x = small(1, floats({1}));
  x.message.warn_ms = 60'000;
  x.message.timeout_ms = 100'000;
  say(0, x, 0);
  coordinator.set_whereabouts(0, "allreduce 'x'");
  coordinator.set_whereabouts(1, "allreduce 'y'");
  EXPECT_TRUE(overdue(20 * kSecond).empty());
  coordinator.set_whereabouts(2, "barrier 'z'");
  coordinator.set_whereabouts(1, "");
  EXPECT_TRUE(overdue(30 * kSecond).empty());
  // The timeout error says where the other ranks wait.
  const auto answers = overdue(101 * kSecond);
  ASSERT_EQ(answers.size(), 1u);
  const std::string text = error_in(answers[0]).text;
  EXPECT_NE(text.find("which did not call it; rank 2 waits in barrier 'z'; check"),
            std::string::npos) << text;
}

// Where a rank waits is told by the rank itself; what else it does, by the rendezvous.
TEST_F(CoordinatorTest, MessagesSayWhatMissingRanksDo) {
  say(0, small(1, floats({1})), 0);
  states.set({{1, "has been computing for 12 s"}, {2, ": its process is stopped"}});
  coordinator.set_whereabouts(1, "barrier 'z'");
  const auto warning = overdue(600 * kMillisecond);
  ASSERT_EQ(warning.size(), 1u);
  EXPECT_TRUE(warning[0].payload.ends_with(
      "; rank 1 waits in barrier 'z'; rank 2: its process is stopped")) << warning[0].payload;
  coordinator.set_whereabouts(1, "");
  const auto error = overdue(2 * kSecond);
  ASSERT_EQ(error.size(), 1u);
  EXPECT_NE(error_in(error[0]).text.find("which did not call it; rank 1 has been computing for "
                                         "12 s; rank 2: its process is stopped; check that"),
            std::string::npos) << error_in(error[0]).text;
}

// If ranks wait for each other like this in every step, the early warnings become ever rarer.
TEST_F(CoordinatorTest, EarlyWarningsGetRare) {
  size_t told = 0;
  coordinator.set_whereabouts(0, "allreduce 'x'");
  coordinator.set_whereabouts(1, "receive 'r'");
  coordinator.set_whereabouts(2, "receive 'r'");
  for (Nanos step = 0; step < 100; ++step) {
    const Nanos begin = step * 10 * kSecond;
    Call x = small(1, floats({1}));
    x.message.warn_ms = x.message.timeout_ms = 60'000;
    say(0, x, begin);
    told += overdue(begin + 6 * kSecond).size();
    say(1, x, begin + 7 * kSecond);
    say(2, x, begin + 7 * kSecond);
  }
  EXPECT_GT(told, 2u);
  EXPECT_LT(told, 10u);
}

TEST_F(CoordinatorTest, WhoLeftFailsWhatStillNeedsIt) {
  say(0, small(0, floats({1})));
  auto answers = leave(2);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(wire::decode_op_error(answers[0].payload)->code, Code::kPeerLost);
  answers = say(1, small(1, floats({1})));  // later announcements fail too
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(wire::decode_op_error(answers[0].payload)->text.find("rank 2"), std::string::npos);
}

TEST_F(CoordinatorTest, WhoComesTooLateGetsTheErrorOfItsOwnCall) {
  say(0, small(1, floats({1})), 0);
  say(1, small(2, floats({2})), 0);
  EXPECT_EQ(overdue(2 * kSecond).size(), 2u);
  EXPECT_TRUE(coordinator.idle());
  // Ranks 0 and 1 have already made their second call.
  EXPECT_TRUE(say(0, small(3, floats({10})), 2 * kSecond).empty());
  EXPECT_FALSE(coordinator.idle());
  auto answers = say(2, small(4, floats({3})), 2 * kSecond);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 2u);
  EXPECT_EQ(error_in(answers[0]).id, 4u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kTimeout);
  EXPECT_NE(error_in(answers[0]).text.find("rank 2 ("), std::string::npos);
  EXPECT_TRUE(say(2, small(5, floats({30})), 2 * kSecond).empty());
  answers = say(1, small(6, floats({20})), 2 * kSecond);
  ASSERT_EQ(answers.size(), 3u);
  std::string_view result;
  ASSERT_TRUE(wire::decode_go(answers[2].payload, &result).ok());
  EXPECT_EQ(result, floats({60}));
}

TEST_F(CoordinatorTest, SeveralCallsOfOneNameMeetInTheirOrder) {
  EXPECT_TRUE(say(0, small(1, floats({1}))).empty());
  EXPECT_TRUE(say(0, small(2, floats({10}))).empty());
  EXPECT_TRUE(say(1, small(1, floats({2}))).empty());
  EXPECT_TRUE(say(1, small(2, floats({20}))).empty());
  for (const float expected : {6.0f, 60.0f}) {
    const auto answers = say(2, small(3, floats({expected / 2})));
    ASSERT_EQ(answers.size(), 3u);
    std::string_view result;
    ASSERT_TRUE(wire::decode_go(answers[0].payload, &result).ok());
    EXPECT_EQ(result, floats({expected}));
  }
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, WhatOneRankRefusesFailsAtOnceOnAll) {
  say(0, small(1, floats({1})));
  Call refused = small(0, "");
  refused.message.inline_payload = false;
  refused.message.refusal = "no such dtype";
  auto answers = say(1, refused);
  ASSERT_EQ(answers.size(), 1u) << "who refuses knows already";
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kInvalidArgument);
  EXPECT_NE(error_in(answers[0]).text.find("rank 1 ("), std::string::npos);
  EXPECT_NE(error_in(answers[0]).text.find("no such dtype"), std::string::npos);
  answers = say(2, small(2, floats({1})));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kInvalidArgument);
  // The refusal does not affect the next call.
  say(0, small(3, floats({1})));
  say(1, small(3, floats({1})));
  EXPECT_EQ(say(2, small(3, floats({1}))).size(), 3u);
}

TEST_F(CoordinatorTest, CallsThatFailedAreForgottenWhenTheLastCannotComeAnyMore) {
  say(0, small(1, floats({1})));
  EXPECT_EQ(leave(2).size(), 1u);
  EXPECT_EQ(say(1, small(1, floats({1}))).size(), 1u);
  for (uint32_t rank : {1, 0}) {
    const auto answers = say(rank, small(2, floats({1})));
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(error_in(answers[0]).code, Code::kPeerLost);
  }
  EXPECT_TRUE(leave(2).empty()) << "twice";
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, WhatAMemberKeepsWaitingIsBounded) {
  std::vector<Answer> answers;
  size_t calls = 0;
  for (; answers.empty() && calls < 100'000; ++calls) {
    Call call = small(calls, floats({1}));
    call.message.name = std::to_string(calls);
    answers = say(0, call);
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(calls, 65'537u);
  EXPECT_EQ(error_in(answers[0]).id, calls - 1);
  EXPECT_NE(error_in(answers[0]).text.find("rank 0 ("), std::string::npos);
}

TEST_F(CoordinatorTest, LargeGatheredResultsGoBySegments) {
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Call call = small(rank, std::string(3 << 20, 'x'));
    call.message.what = wire::AllGather{};
    answers = say(rank, call);
  }
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kGo);
  // The exchange is skewed: one rank gets everything.
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Call call = small(rank, std::string(3 << 20, 'x'));
    call.message.what = wire::AllToAll{{call.message.arrays[0].rows(), 0, 0}};
    answers = say(rank, call);
  }
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kGo);
}

TEST_F(CoordinatorTest, SumsThatOverflowAreRefused) {
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Call call = small(rank, floats({1, 2}));
    // The sum of the splits is 2 modulo 2^64.
    call.message.what = wire::AllToAll{{uint64_t{1} << 63, uint64_t{1} << 63, 2}};
    answers = say(rank, call);
  }
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kInvalidArgument);
}

TEST_F(CoordinatorTest, RefusesWhatDoesNotParse) {
  std::vector<Answer> out;
  EXPECT_FALSE(coordinator.announce(0, 0, {5}, "rubbish", 0, out).ok());
  Call call = small(0, floats({1, 2}));
  call.message.arrays = {{DType::kFloat32, {3}}};  // the payload has two elements
  EXPECT_FALSE(coordinator.announce(0, 0, {5}, call.text(), 0, out).ok());
  call.payload.clear();  // a payload is required
  EXPECT_FALSE(coordinator.announce(0, 0, {5}, call.text(), 0, out).ok());
  call.message.what = wire::Broadcast{0};
  EXPECT_FALSE(coordinator.announce(0, 0, {5}, call.text(), 0, out).ok());
  EXPECT_TRUE(coordinator.announce(1, 0, {5}, call.text(), 0, out).ok())
      << "only the root has a payload";
}

// Each rank is told only what every rank has for it: n counts instead of n * n.
TEST(LargeCoordinator, AnAllToAllOfFourThousandRanks) {
  constexpr uint32_t kRanks = 4096;
  const control::Cluster cluster = make_cluster(kRanks);
  GroupTable groups(cluster);
  const observe::RankStates states;
  Coordinator coordinator(cluster, groups, 5, states);
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    Call call = small(rank, "");
    call.message.inline_payload = false;
    std::vector<uint64_t> rows(kRanks, 1);
    rows[7] = rank;
    call.message.what = wire::AllToAll{std::move(rows)};
    call.message.arrays = {{DType::kFloat32, {kRanks - 1 + rank}}};
    ASSERT_TRUE(coordinator.announce(rank, 0, {5}, call.text(), 0, answers).ok());
  }
  ASSERT_EQ(answers.size(), kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(answers[rank].header.type, wire::FrameType::kGo);
    ASSERT_LT(answers[rank].payload.size(), 8 * kRanks + 100);
    if (rank % 500 != 7) continue;
    std::string_view rest;
    const auto go = wire::decode_go(answers[rank].payload, &rest);
    ASSERT_TRUE(go.ok());
    ASSERT_EQ(go->counts.size(), kRanks);
    for (uint32_t from = 0; from < kRanks; ++from) {
      ASSERT_EQ(go->counts[from], rank == 7 ? from : 1);
    }
  }
}

// The cost of a small operation for its owner grows with the number of ranks. An all-gather's
// answer has one number per rank.
TEST(LargeCoordinator, SmallOperationsOfFourThousandRanks) {
  double each[2];  // processor seconds per rank and call
  int index = 0;
  for (const uint32_t ranks : {512u, 4096u}) {
    const control::Cluster cluster = make_cluster(ranks);
    GroupTable groups(cluster);
    const observe::RankStates states;
    Coordinator coordinator(cluster, groups, 5, states);
    const std::string payload(4096, '\1');
    std::vector<Answer> answers;
    const Nanos start = monotonic_now();
    const uint32_t calls = 4 * 4096 / ranks;
    for (uint32_t call = 0; call < calls; ++call) {
      answers.clear();
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const std::string text = small(rank, payload).text();
        ASSERT_TRUE(coordinator.announce(rank, 0, {5}, text, 0, answers).ok());
      }
      ASSERT_EQ(answers.size(), ranks);
      ASSERT_LT(answers[0].payload.size(), 4096u + 100);
    }
    each[index++] = to_seconds(monotonic_now() - start) / calls / ranks;
    answers.clear();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Call call = small(rank, "");
      call.message.inline_payload = false;
      call.message.what = wire::AllGather{};
      call.message.arrays = {{DType::kFloat32, {rank, 3}}};
      ASSERT_TRUE(coordinator.announce(rank, 0, {5}, call.text(), 0, answers).ok());
    }
    ASSERT_EQ(answers.size(), ranks);
    ASSERT_LT(answers[0].payload.size(), 8 * ranks + 100);
    std::string_view rest;
    const auto go = wire::decode_go(answers[0].payload, &rest);
    ASSERT_TRUE(go.ok() && go->counts.size() == ranks);
    EXPECT_EQ(go->counts[5], 5u);
  }
  std::printf("an all-reduce of 4 kB takes its owner %.2f us for each of 512 ranks, %.2f us for "
              "each of 4096\n", each[0] * 1e6, each[1] * 1e6);
}

TEST_F(CoordinatorTest, GivenPartsOfAReduceScatterMustAgree) {
  std::vector<Answer> answers;
  const auto call = [](uint32_t rank, std::vector<uint64_t> splits) {
    Call one = small(rank, floats({1, 2, 3}));
    one.message.what = wire::ReduceScatter{{}, std::move(splits)};
    return one;
  };
  for (uint32_t rank = 0; rank < 3; ++rank) answers = say(rank, call(rank, {0, 1, 2}));
  ASSERT_EQ(answers.size(), 3u);
  std::string_view result;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(wire::decode_go(answers[rank].payload, &result).ok());
    EXPECT_EQ(result, rank == 0 ? "" : rank == 1 ? floats({3}) : floats({6, 9}));
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    answers = say(rank, call(rank, rank == 1 ? std::vector<uint64_t>{3, 0, 0}
                                             : std::vector<uint64_t>{0, 1, 2}));
  }
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kMismatch);
  EXPECT_NE(error_in(answers[0]).text.find("rank 1: reduce_scatter"), std::string::npos)
      << error_in(answers[0]).text;
  EXPECT_NE(error_in(answers[0]).text.find("splits [3, 0, 0]"), std::string::npos);
  for (uint32_t rank = 0; rank < 3; ++rank) answers = say(rank, call(rank, {1, 1, 2}));
  EXPECT_EQ(error_in(answers[0]).code, Code::kInvalidArgument) << "not the sum of the rows";
}

class CoordinatorOfGroupsTest : public CoordinatorTest {
 protected:
  Call form(std::vector<uint32_t> ranks) {
    Call call;
    call.message.what = wire::FormGroup{std::move(ranks)};
    call.message.name = "g";
    call.message.timeout_ms = 1000;
    call.message.warn_ms = 500;
    return call;
  }
  std::vector<Answer> say_in(uint32_t group, uint32_t rank, const Call& call) {
    std::vector<Answer> answers;
    const Status status = coordinator.announce(rank, group, {5}, call.text(), 0, answers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return answers;
  }
  static uint64_t number_in(const Answer& answer) {
    std::string_view rest;
    const auto go = wire::decode_go(answer.payload, &rest);
    EXPECT_TRUE(go.ok() && go->counts.size() == 1);
    return go->counts[0];
  }
};

TEST_F(CoordinatorOfGroupsTest, MembersFormAGroupAndGetANumberOfItsOwn) {
  EXPECT_TRUE(say(2, form({0, 2})).empty());
  EXPECT_TRUE(say(1, form({0, 1})).empty()) << "another group of that name";
  const auto first = say(0, form({0, 2}));
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].rank, 0u);
  EXPECT_EQ(first[1].rank, 2u);
  EXPECT_EQ(number_in(first[0]), number_in(first[1]));
  const auto second = say(0, form({0, 1}));
  ASSERT_EQ(second.size(), 2u);
  EXPECT_NE(number_in(first[0]), number_in(second[0]));
  EXPECT_NE(number_in(first[0]), 0u);
  EXPECT_TRUE(coordinator.idle());
  std::vector<Answer> out;
  EXPECT_FALSE(coordinator.announce(1, 0, {5}, form({0, 2}).text(), 0, out).ok()) << "no member";
  EXPECT_FALSE(coordinator.announce(1, 0, {5}, form({1, 7}).text(), 0, out).ok()) << "no rank";
  EXPECT_FALSE(coordinator.announce(1, 0, {5}, form({1, ~0u}).text(), 0, out).ok());
}

// Server 0 is lost, and server 5 answers in its place.
class NumbersOfALostServerTest : public CoordinatorOfGroupsTest {
 protected:
  static constexpr Reign kNow{0, 2};

  std::vector<Answer> say(uint32_t rank, uint64_t id, uint32_t turn, uint32_t number = 0) {
    std::vector<Answer> answers;
    const Status status =
        coordinator.announce(rank, 0, kNow, text(id, turn, number), 0, answers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return answers;
  }
  bool fails(uint32_t rank, uint32_t turn, uint32_t number) {
    std::vector<Answer> answers;
    return !coordinator.announce(rank, 0, kNow, text(9, turn, number), 0, answers).ok() &&
           answers.empty();
  }
  std::string text(uint64_t id, uint32_t turn, uint32_t number) {
    Call call = form({0, 1, 2});
    call.message.id = id;
    call.message.what = wire::FormGroup{{0, 1, 2}, turn, number};
    return call.text();
  }
};

TEST_F(NumbersOfALostServerTest, AreGivenToThoseThatLackThem) {
  EXPECT_TRUE(say(1, 11, 1).empty());
  EXPECT_TRUE(say(0, 10, 1, 77).empty());
  EXPECT_FALSE(coordinator.idle());
  const auto answers = say(2, 12, 1, 77);
  ASSERT_EQ(answers.size(), 1u) << "the others have it";
  EXPECT_EQ(answers[0].rank, 1u);
  EXPECT_EQ(number_in(answers[0]), 77u);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(NumbersOfALostServerTest, AreNotGivenToTheNextGroupOfThatName) {
  EXPECT_TRUE(say(0, 10, 1, 77).empty()) << "the others are done with that group";
  EXPECT_TRUE(coordinator.idle()) << "nobody waits";
  EXPECT_TRUE(overdue(0).empty());
  EXPECT_TRUE(say(1, 21, 2).empty());
  EXPECT_TRUE(say(2, 22, 2).empty());
  const auto answers = say(0, 20, 2);
  ASSERT_EQ(answers.size(), 3u);
  for (const Answer& answer : answers) EXPECT_GT(number_in(answer), 77u);
}

TEST_F(NumbersOfALostServerTest, MustAgree) {
  EXPECT_TRUE(fails(0, 1, control::Group::kForming)) << "no group has it";
  EXPECT_TRUE(say(0, 10, 1, 77).empty());
  EXPECT_TRUE(fails(1, 1, 78)) << "another number";
  EXPECT_TRUE(fails(0, 1, 77)) << "twice";
  EXPECT_TRUE(fails(1, 1, ~0u)) << "no number";
  EXPECT_TRUE(say(1, 11, 1, 77).empty());
  EXPECT_EQ(number_in(say(2, 12, 1).at(0)), 77u);
}

TEST_F(CoordinatorOfGroupsTest, EachGroupHasNamesAndTicketsOfItsOwn) {
  ASSERT_TRUE(groups.define(9, "g", {0, 2}, 0).ok());
  EXPECT_TRUE(say_in(9, 2, small(1, floats({1}))).empty());
  EXPECT_TRUE(say(2, small(2, floats({100}))).empty());
  EXPECT_TRUE(say(0, small(3, floats({100}))).empty());
  const auto answers = say_in(9, 0, small(4, floats({10})));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[1].rank, 2u);
  EXPECT_EQ(answers[1].header.group, 9u);
  std::string_view result;
  ASSERT_TRUE(wire::decode_go(answers[1].payload, &result).ok());
  EXPECT_EQ(result, floats({11}));
  EXPECT_EQ(say(1, small(5, floats({1}))).size(), 3u);
  std::vector<Answer> out;
  EXPECT_FALSE(coordinator.announce(1, 9, {5}, small(6, floats({1})).text(), 0, out).ok());
  EXPECT_FALSE(coordinator.announce(1, 8, {5}, small(6, floats({1})).text(), 0, out).ok());
  Call large = small(7, {});
  large.message.inline_payload = false;
  large.message.arrays = {{DType::kFloat32, {1 << 20}}};
  for (const uint32_t group : {9u, 9u}) {
    EXPECT_TRUE(say_in(group, 0, large).empty());
    ASSERT_EQ(say_in(group, 2, large).size(), 2u);
  }
  EXPECT_TRUE(say(0, large).empty());
  EXPECT_TRUE(say(1, large).empty());
  EXPECT_EQ(say(2, large).at(0).header.round, 0u) << "tickets count in each group";
}

TEST_F(CoordinatorOfGroupsTest, WhoHasDestroyedAGroupIsMissedThereAlone) {
  ASSERT_TRUE(groups.define(9, "g", {0, 2}, 0).ok());
  EXPECT_TRUE(say_in(9, 0, small(1, floats({1}))).empty());
  EXPECT_TRUE(say(0, small(2, floats({1}))).empty());
  std::vector<Answer> answers;
  coordinator.rank_gone(*groups.find(9), 2, "has destroyed it", 0, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 0u);
  const wire::OpError error = error_in(answers[0]);
  EXPECT_EQ(error.id, 1u);
  EXPECT_NE(error.text.find("of group 'g' (ranks 0, 2)"), std::string::npos) << error.text;
  EXPECT_NE(error.text.find("has destroyed it"), std::string::npos) << error.text;
  EXPECT_EQ(say_in(9, 0, small(3, floats({1}))).size(), 1u) << "fails at once";
  EXPECT_TRUE(say_in(9, 2, small(4, floats({1}))).empty()) << "nobody waits for it";
  EXPECT_TRUE(say(1, small(5, floats({1}))).empty());
  EXPECT_EQ(say(2, small(6, floats({1}))).size(), 3u) << "the others go on";
}

TEST_F(CoordinatorOfGroupsTest, WhoLeavesIsMissedInAllOfItsGroupsAndInThoseThatAreBeingFormed) {
  ASSERT_TRUE(groups.define(9, "g", {0, 2}, 0).ok());
  ASSERT_TRUE(groups.define(10, "h", {0, 1}, 0).ok());
  EXPECT_TRUE(say_in(9, 0, small(1, floats({1}))).empty());
  EXPECT_TRUE(say_in(10, 0, small(2, floats({1}))).empty());
  EXPECT_TRUE(say(0, form({0, 2})).empty());
  EXPECT_EQ(leave(2).size(), 2u);
  EXPECT_EQ(say(0, form({0, 2})).size(), 1u);
  EXPECT_EQ(say_in(10, 1, small(3, floats({1}))).size(), 2u);
  EXPECT_TRUE(coordinator.idle());
}

}  // namespace
}  // namespace herring::server
