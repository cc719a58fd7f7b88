// A server becomes the owner of a series because the owner before is gone.
#include <gtest/gtest.h>

#include <cstring>

#include "fixture.h"
#include "server/series.h"
#include "wire/key.h"

namespace herring::server {
namespace {

using wire::FrameType;

class SeriesTakeOverTest : public testing::Test {
 protected:
  static constexpr Reign kReign{0, 5};
  static constexpr uint32_t kStream = wire::kPartialStreams + 77;

  void begin(bool inlined) {
    options.name = "s";
    options.inline_payload = inlined;
    options.elements = 2;
    options.quorum = 3;
    options.staleness = 3;
    options.op = ReduceOp::kSum;
    options.warn_ms = 10;
    options.timeout_ms = 100;
  }
  // What a rank knows after `rounds` rounds to each of which all ranks contributed.
  partial::SeriesState known(uint32_t rounds, uint32_t tickets = 0) {
    partial::SeriesState one;
    one.rounds = rounds;
    one.tickets = tickets;
    one.counts.assign(3, {rounds, rounds});
    return one;
  }
  std::string round_text(uint32_t round, const std::string& result, uint32_t attempt = 0) {
    wire::RoundMessage message;
    message.id = id;
    message.round = round;
    message.attempt = attempt;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      message.contributors.push_back({rank, round + 1, 0, true, 0, round + 1});
    }
    return encode(message) + result;
  }
  Status tell(uint32_t rank, const partial::SeriesState& known) {
    if (Status status = table.enlist(rank, 0, kReign, encode(options), 1, answers);
        !status.ok()) {
      return status;
    }
    return table.tell(rank, 0, kReign, wire::encode_known(id, known), 1, answers);
  }
  Status tell_round(uint32_t rank, std::string text, uint32_t ticket = 0) {
    wire::FrameHeader header;
    header.stream = kStream;
    header.round = ticket;
    return table.tell_round(rank, header, std::move(text));
  }
  Status join(uint32_t rank, uint64_t upto, uint32_t base, const std::string& payload = {}) {
    wire::JoinMessage message;
    message.id = id;
    message.upto = upto;
    message.base = base;
    return table.join(rank, encode(message) + payload, 2, answers);
  }
  Status told_all(uint32_t rank) { return table.tell(rank, 0, kReign, {}, 2, answers); }

  control::Cluster cluster = make_cluster(3);
  GroupTable groups{cluster};
  observe::RankStates states;
  Whereabouts whereabouts{3, states};
  SeriesTable table{cluster, groups, 0, whereabouts};
  wire::Enlist options;
  const uint64_t id = wire::series_id("s");
  std::vector<Answer> answers;
};

TEST_F(SeriesTakeOverTest, WhoLacksARoundGetsItAndNothingIsAddedTwice) {
  begin(true);
  const std::string first = round_text(0, floats({6, 6}));
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(tell(rank, known(1)).ok());
    ASSERT_TRUE(tell_round(rank, first).ok());
    ASSERT_TRUE(join(rank, 1, 1).ok());
    ASSERT_TRUE(join(rank, 2, 2, floats({1, 2})).ok());
    ASSERT_TRUE(told_all(rank).ok());
  }
  ASSERT_TRUE(answers.empty()) << "rank 2 has not told anything";
  ASSERT_TRUE(tell(2, known(0)).ok());
  ASSERT_TRUE(join(2, 1, 1, floats({3, 3})).ok()) << "it is counted in the round that others know";
  ASSERT_TRUE(told_all(2).ok());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 2u);
  EXPECT_EQ(answers[0].header.type, FrameType::kRound);
  EXPECT_EQ(answers[0].payload, first);
  answers.clear();
  ASSERT_TRUE(join(2, 2, 2, floats({5, 5})).ok());
  ASSERT_EQ(answers.size(), 3u);
  const auto round = wire::decode_round(answers[0].payload);
  ASSERT_TRUE(round.ok());
  EXPECT_EQ(round->round, 1u);
  EXPECT_EQ(round->payload, floats({7, 9}));
}

TEST_F(SeriesTakeOverTest, ARoundThatSomebodyHasIsCommittedForAll) {
  begin(false);
  const std::string text = round_text(0, "");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    partial::SeriesState one = known(0, 7 + rank);
    one.received = one.whole = rank == 1;
    ASSERT_TRUE(tell(rank, one).ok());
    ASSERT_TRUE(tell_round(rank, text, 6).ok());
    ASSERT_TRUE(join(rank, 1, 1).ok());
    ASSERT_TRUE(told_all(rank).ok());
  }
  ASSERT_EQ(answers.size(), 3u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(answers[rank].rank, rank);
    EXPECT_EQ(answers[rank].header.type, FrameType::kCommit);
  }
  answers.clear();
  for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(join(rank, 2, 2).ok());
  EXPECT_TRUE(answers.empty()) << "ranks 0 and 2 do not have the result yet";
  for (const uint32_t rank : {0u, 2u}) {
    ASSERT_TRUE(table.received(rank, encode(wire::RoundMark{id, 0, 0, true}), 3, answers).ok());
  }
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].header.stream, kStream);
  EXPECT_EQ(answers[0].header.round, 9u) << "no ticket that a dead rank may have used";
}

TEST_F(SeriesTakeOverTest, ARoundOfWhichOneHasHeardIsPushedByAll) {
  begin(false);
  const std::string text = round_text(0, "");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(tell(rank, known(0)).ok());
    if (rank == 1) {
      ASSERT_TRUE(tell_round(rank, text, 6).ok());
    }
    ASSERT_TRUE(join(rank, 1, 1).ok());
    ASSERT_TRUE(told_all(rank).ok());
  }
  ASSERT_EQ(answers.size(), 2u);
  for (const Answer& answer : answers) {
    EXPECT_NE(answer.rank, 1u);
    EXPECT_EQ(answer.payload, text);
    EXPECT_EQ(answer.header.stream, kStream);
    EXPECT_EQ(answer.header.round, 6u);
  }
}

TEST_F(SeriesTakeOverTest, ARankThatIsGoneNeedNotTell) {
  begin(true);
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(tell(rank, known(1)).ok());
    ASSERT_TRUE(tell_round(rank, round_text(0, floats({6, 6}))).ok());
    ASSERT_TRUE(join(rank, 2, 2, floats({1, 2})).ok());
    ASSERT_TRUE(told_all(rank).ok());
  }
  table.lost(2, 3, answers);
  ASSERT_EQ(answers.size(), 2u);
  const auto round = wire::decode_round(answers[0].payload);
  ASSERT_TRUE(round.ok());
  EXPECT_EQ(round->payload, floats({2, 4}));
  ASSERT_EQ(round->lost.size(), 1u);
  EXPECT_EQ(round->lost[0].counted, 1u);
}

TEST_F(SeriesTakeOverTest, ASeriesThatSomeHaveNotBegunWaitsForThem) {
  begin(true);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    if (rank < 2) {
      ASSERT_TRUE(tell(rank, known(0)).ok());
      ASSERT_TRUE(join(rank, 1, 1, floats({1, 2})).ok());
    }
    ASSERT_TRUE(told_all(rank).ok());
  }
  EXPECT_TRUE(answers.empty());
  ASSERT_TRUE(table.enlist(2, 0, kReign, encode(options), 1, answers).ok());
  ASSERT_TRUE(join(2, 1, 1, floats({1, 2})).ok());
  ASSERT_EQ(answers.size(), 3u);
}

TEST_F(SeriesTakeOverTest, WhatIsLostOrContradictsEndsTheJob) {
  begin(true);
  ASSERT_TRUE(tell(0, known(2)).ok());
  ASSERT_TRUE(tell(1, known(0)).ok());
  ASSERT_TRUE(tell(2, known(2)).ok());
  for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(told_all(rank).ok());
  ASSERT_EQ(answers.size(), 3u);
  const auto error = wire::decode_op_error(answers[0].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kPeerLost);
  EXPECT_NE(error->text.find("round 0 for rank 1"), std::string::npos) << error->text;
}

TEST_F(SeriesTakeOverTest, WhatNoRankMayTellEndsItsConnection) {
  begin(true);
  EXPECT_EQ(tell_round(0, round_text(0, floats({1, 1}))).code(), Code::kProtocol);
  ASSERT_TRUE(tell(0, known(1)).ok());
  EXPECT_EQ(tell(0, known(1)).code(), Code::kProtocol) << "twice";
  EXPECT_EQ(tell_round(0, round_text(0, "")).code(), Code::kProtocol) << "without a result";
  EXPECT_EQ(table.enlist(0, 0, {9, 5}, encode(options), 1, answers).code(), Code::kProtocol);
  EXPECT_EQ(table.enlist(1, 0, {0, 6}, encode(options), 1, answers).code(), Code::kProtocol);
  ASSERT_TRUE(told_all(0).ok());
  EXPECT_EQ(told_all(0).code(), Code::kProtocol);
}

TEST_F(SeriesTakeOverTest, AWarningAndAnErrorSayWhoHasNotHeard) {
  begin(true);
  ASSERT_TRUE(tell(0, known(0)).ok());
  ASSERT_TRUE(told_all(0).ok());
  table.overdue(20 * kMillisecond, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.type, FrameType::kWarning);
  EXPECT_NE(answers[0].payload.find("to hear that a server is lost"), std::string::npos);
  table.overdue(200 * kMillisecond, answers);
  ASSERT_EQ(answers.size(), 4u);
  const auto error = wire::decode_op_error(answers[1].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kTimeout);
}

}  // namespace
}  // namespace herring::server
