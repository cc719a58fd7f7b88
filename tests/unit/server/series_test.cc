#include "server/series.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "fixture.h"
#include "reduce/reduce.h"
#include "wire/key.h"

namespace herring::server {
namespace {

class SeriesTest : public testing::Test {
 protected:
  void enlist(bool inlined, uint32_t quorum = 2, bool replays = false) {
    wire::Enlist message;
    message.name = "s";
    message.inline_payload = inlined;
    message.elements = 2;
    message.quorum = quorum;
    message.staleness = 3;
    message.replays = replays;
    message.warn_ms = warn_ms;
    message.timeout_ms = 100;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<Answer> answers;
      ASSERT_TRUE(table.enlist(rank, 0, {}, encode(message), 0, answers).ok());
      ASSERT_TRUE(answers.empty());
    }
  }
  std::vector<Answer> join(uint32_t rank, uint64_t upto, uint32_t base, std::string payload,
                           uint64_t digest = 0) {
    wire::JoinMessage message;
    message.id = id;
    message.upto = upto;
    message.base = base;
    message.digest_round = digest != 0 ? 1 : 0;
    message.digest = digest;
    std::vector<Answer> answers;
    const Status status = table.join(rank, encode(message) + payload, 5, answers);
    EXPECT_TRUE(status.ok()) << status.message();
    return answers;
  }
  std::vector<Answer> received(uint32_t rank, uint32_t round, bool whole = true) {
    std::vector<Answer> answers;
    const wire::RoundMark mark{id, round, 0, whole};
    EXPECT_TRUE(table.received(rank, encode(mark), 5, answers).ok());
    return answers;
  }

  uint32_t warn_ms = 10;
  control::Cluster cluster = make_cluster(3);
  GroupTable groups{cluster};
  observe::RankStates states;
  Whereabouts whereabouts{3, states};
  SeriesTable table{cluster, groups, 0, whereabouts};
  const uint64_t id = wire::series_id("s");
};

TEST_F(SeriesTest, SumsWhatRodeAlongAndAnswersEverybody) {
  EXPECT_FALSE(table.any());
  enlist(true);
  EXPECT_TRUE(table.any());
  EXPECT_TRUE(join(2, 1, 1, floats({3, 6})).empty());
  EXPECT_TRUE(join(2, 1, 1, floats({3, 6})).empty()) << "a duplicate";
  const auto answers = join(0, 1, 1, floats({9, 0}));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[1].rank, 2u);
  EXPECT_EQ(answers[2].rank, 1u) << "who waits comes first";
  EXPECT_TRUE(answers[2].can_wait && !answers[0].can_wait && !answers[1].can_wait);
  const auto round = wire::decode_round(answers[1].payload);
  ASSERT_TRUE(round.ok());
  EXPECT_EQ(round->divisor, 3u);
  ASSERT_EQ(round->contributors.size(), 2u);
  EXPECT_EQ(round->payload, floats({4, 2}));
}

TEST_F(SeriesTest, ALateContributionIsAddedToTheNext) {
  enlist(true, 1);
  join(0, 1, 1, floats({3, 3}));
  EXPECT_TRUE(join(1, 1, 1, floats({6, 0})).empty());
  const auto answers = join(1, 2, 2, floats({0, 9}));
  ASSERT_EQ(answers.size(), 3u);
  const auto round = wire::decode_round(answers[0].payload);
  EXPECT_EQ(round->round, 1u);
  EXPECT_EQ(round->contributors[0].upto, 2u);
  EXPECT_EQ(round->payload, floats({2, 3}));
}

// Sums must have the same tree as in the aggregator: groups of adjacent ranks, whichever of them
// take part.
TEST(SeriesOfMany, SumsInTheTreeOfTheRanks) {
  const std::function<float(std::vector<float>)> tree = [&](std::vector<float> level) {
    if (level.size() == 1) return level[0];
    std::vector<float> next;
    for (size_t i = 0; i < level.size(); i += 2) {
      next.push_back(i + 1 < level.size() ? level[i] + level[i + 1] : level[i]);
    }
    return tree(next);
  };
  constexpr uint32_t kWorkers = 16, kMissing = 7;
  const control::Cluster cluster = make_cluster(kWorkers);
  GroupTable groups(cluster);
  const observe::RankStates states;
  const Whereabouts whereabouts(cluster.size, states);
  SeriesTable table(cluster, groups, 0, whereabouts);
  wire::Enlist enlist;
  enlist.name = "s";
  enlist.op = ReduceOp::kSum;
  enlist.inline_payload = true;
  enlist.elements = 1;
  enlist.quorum = kWorkers - 1;
  enlist.staleness = 3;
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    ASSERT_TRUE(table.enlist(rank, 0, {}, encode(enlist), 0, answers).ok());
  }
  std::vector<float> all, first, second;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    if (rank == kMissing) continue;
    // Ranks 8 and 9 cancel out as a pair, so smaller values are not lost.
    const float value = rank == 8 ? 1e10f : rank == 9 ? -1e10f : static_cast<float>(rank);
    all.push_back(value);
    (rank < reduce::kTreeGroup ? first : second).push_back(value);
    wire::JoinMessage join;
    join.id = wire::series_id("s");
    join.upto = join.base = 1;
    ASSERT_TRUE(table.join(rank, encode(join) + floats({value}), 1, answers).ok());
  }
  ASSERT_EQ(answers.size(), kWorkers);
  const float expected = tree({tree(first), tree(second)});
  ASSERT_NE(expected, tree(all)) << "the values tell no difference";
  EXPECT_EQ(wire::decode_round(answers[0].payload)->payload, floats({expected}));
}

TEST_F(SeriesTest, CommitsWithTheFirstThatHasItWhole) {
  enlist(false);
  join(0, 1, 1, "");
  const auto closed = join(1, 1, 1, "");
  ASSERT_EQ(closed.size(), 3u);
  EXPECT_GE(closed[0].header.stream, wire::kPartialStreams);
  EXPECT_TRUE(received(2, 0, false).empty());
  const auto commits = received(0, 0);
  ASSERT_EQ(commits.size(), 3u);
  EXPECT_EQ(commits[0].header.type, wire::FrameType::kCommit);
  EXPECT_TRUE(received(1, 0).empty());
}

TEST_F(SeriesTest, RepeatsARoundWithoutTheDeadUnderANewTicket) {
  enlist(false);
  join(0, 1, 1, "");
  const uint32_t ticket = join(1, 1, 1, "")[0].header.round;
  join(2, 1, 1, "");
  std::vector<Answer> answers;
  table.lost(1, 6, answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_TRUE(received(0, 0, false).empty());
  answers = received(2, 0, false);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[0].header.round, ticket);
  const auto round = wire::decode_round(answers[0].payload);
  EXPECT_EQ(round->round, 0u);
  EXPECT_EQ(round->attempt, 1u);
  ASSERT_EQ(round->lost.size(), 1u);
  EXPECT_EQ(round->lost[0].announced, 1u);
}

TEST_F(SeriesTest, ReplicasThatDifferFailTheJob) {
  enlist(true, 3);
  join(0, 1, 1, floats({1, 1}), 111);
  const auto answers = join(1, 1, 1, floats({1, 1}), 222);
  ASSERT_EQ(answers.size(), 3u);
  const auto error = wire::decode_op_error(answers[0].payload);
  EXPECT_EQ(error->code, Code::kMismatch);
  EXPECT_NE(error->text.find("digest 222"), std::string::npos) << error->text;
}

TEST_F(SeriesTest, WarnsAndEndsWithTheNamesOfThoseWhoAreMissing) {
  enlist(true, 3);
  join(0, 1, 1, floats({1, 1}));
  join(2, 1, 1, floats({1, 1}));
  std::vector<Answer> answers;
  table.overdue(50 * kMillisecond, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0].payload.find("for rank 1 ("), std::string::npos) << answers[0].payload;
  answers.clear();
  table.overdue(60 * kMillisecond, answers);
  EXPECT_TRUE(answers.empty());
  table.overdue(kSecond, answers);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(wire::decode_op_error(answers[0].payload)->code, Code::kTimeout);
}

TEST_F(SeriesTest, EndsInTimeAlthoughNoWarningIsDueYet) {
  warn_ms = 60'000;
  enlist(true, 3);
  join(0, 1, 1, floats({1, 1}));
  std::vector<Answer> answers;
  table.overdue(50 * kMillisecond, answers);
  EXPECT_TRUE(answers.empty());
  table.overdue(kSecond, answers);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(wire::decode_op_error(answers[0].payload)->code, Code::kTimeout);
}

// A server may be lost with sums of the round. Whoever needs them hears of that.
TEST_F(SeriesTest, ARoundThatLacksNobodyEndsNothing) {
  enlist(false);
  for (uint32_t rank = 0; rank < 2; ++rank) join(rank, 1, 1, "");
  for (uint32_t rank = 0; rank < 3; ++rank) received(rank, 0, false);
  std::vector<Answer> answers;
  table.overdue(kSecond, answers);
  EXPECT_TRUE(answers.empty());
}

// Members of such a series know that it has ended, some of them before they contribute again. The
// job goes on with what does not need the server.
TEST_F(SeriesTest, ARoundOfASeriesThatHasLostAServerEndsNothing) {
  enlist(true, 3);
  join(0, 1, 1, floats({1, 1}));
  const auto server = static_cast<uint32_t>(cluster.servers.size()) - 1;
  ASSERT_TRUE(control::shard_map(cluster, groups.world()->members).uses(server));
  table.server_gone(server);
  std::vector<Answer> answers;
  table.overdue(kSecond, answers);
  EXPECT_TRUE(answers.empty());
  ServerView view;
  table.report(kSecond, view);
  EXPECT_TRUE(view.missing.empty());
}

TEST_F(SeriesTest, MessagesSayWhatMissingRanksDo) {
  enlist(true, 3);
  join(0, 1, 1, floats({1, 1}));
  states.set({{1, "has been computing for 12 s"}});
  whereabouts.set(2, "barrier 'z'");
  const std::string where = "; rank 2 waits in barrier 'z'; rank 1 has been computing for 12 s";
  std::vector<Answer> answers;
  table.overdue(50 * kMillisecond, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].payload.ends_with(where)) << answers[0].payload;
  table.overdue(kSecond, answers);
  const auto error = wire::decode_op_error(answers.back().payload);
  EXPECT_NE(error->text.find("which did not contribute" + where + "; check that"),
            std::string::npos) << error->text;
}

TEST_F(SeriesTest, AReplayTakesWhatWasRecordedAndNothingElse) {
  enlist(true, 3, true);
  wire::JoinMessage message;
  message.id = id;
  const auto replayed = [&](uint32_t rank, uint64_t upto, uint32_t round, uint32_t contributors,
                            std::vector<Answer>& answers) {
    message.upto = upto;
    message.round = round;
    message.contributors = contributors;
    return table.join(rank, encode(message) + floats({3, 6}), 5, answers);
  };
  std::vector<Answer> answers;
  EXPECT_TRUE(replayed(2, 1, 1, 1, answers).ok());
  EXPECT_TRUE(answers.empty());
  EXPECT_TRUE(replayed(1, 1, 0, 1, answers).ok());
  ASSERT_EQ(answers.size(), 6u) << "both rounds have all that they had";
  for (const Answer& answer : answers) EXPECT_FALSE(answer.can_wait);
  EXPECT_EQ(wire::decode_round(answers[0].payload)->contributors[0].rank, 1u);
  EXPECT_EQ(wire::decode_round(answers[3].payload)->contributors[0].rank, 2u);

  EXPECT_EQ(replayed(0, 1, 0, 1, answers).code(), Code::kProtocol) << "that round has closed";
  EXPECT_EQ(replayed(0, 2, 2, 0, answers).code(), Code::kProtocol) << "not of a replay";
  EXPECT_EQ(replayed(0, 3, 2, 4, answers).code(), Code::kProtocol) << "more than there are";
  answers.clear();
  table.lost(0, 9, answers);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(wire::decode_op_error(answers[0].payload)->code, Code::kPeerLost);
}

TEST_F(SeriesTest, WhoHasFlushedFollowsWithoutBytesUntilAllHave) {
  for (const bool inlined : {true, false}) {
    SeriesTable fresh(cluster, groups, 0, whereabouts);
    wire::Enlist enlist;
    enlist.name = "s";
    enlist.inline_payload = inlined;
    enlist.elements = 2;
    enlist.quorum = 1;
    enlist.staleness = 3;
    std::vector<Answer> answers;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(fresh.enlist(rank, 0, {}, encode(enlist), 0, answers).ok());
    }
    const auto say = [&](uint32_t rank, uint64_t upto, uint32_t base, bool last,
                         const std::string& payload) {
      wire::JoinMessage message;
      message.id = id;
      message.upto = upto;
      message.base = base;
      message.last = last;
      answers.clear();
      return fresh.join(rank, encode(message) + (inlined ? payload : ""), 5, answers);
    };
    const auto closes = [&](uint32_t round, bool last) {
      ASSERT_EQ(answers.size(), 3u);
      const auto message = wire::decode_round(answers[0].payload);
      EXPECT_EQ(message->round, round);
      EXPECT_EQ(message->last, last);
      for (uint32_t rank = 0; rank < 3 && !inlined; ++rank) {
        const wire::RoundMark mark{id, round, 0, true};
        ASSERT_TRUE(fresh.received(rank, encode(mark), 5, answers).ok());
      }
    };
    ASSERT_TRUE(say(0, 1, 1, true, floats({3, 6})).ok());
    ASSERT_TRUE(say(1, 1, 1, true, floats({3, 6})).ok());
    EXPECT_TRUE(answers.empty());
    ASSERT_TRUE(say(2, 1, 1, false, floats({3, 6})).ok());
    closes(0, false);
    ASSERT_TRUE(say(0, 1, 2, true, "").ok());
    EXPECT_TRUE(answers.empty());
    if (inlined) {
      EXPECT_FALSE(say(0, 1, 2, true, floats({3, 6})).ok()) << "it has nothing more";
    }
    ASSERT_TRUE(say(1, 1, 2, true, "").ok());
    ASSERT_TRUE(say(2, 2, 2, true, floats({9, 0})).ok());
    if (inlined) {
      EXPECT_EQ(wire::decode_round(answers[0].payload)->payload, floats({3, 0}));
    }
    closes(1, true);
  }
}

TEST_F(SeriesTest, ThereIsAMostOfSeriesAtATime) {
  wire::Enlist enlist;
  std::vector<Answer> answers;
  for (int i = 0; answers.empty() && i < 1 << 16; ++i) {
    enlist.name = concat("name ", i);
    ASSERT_TRUE(table.enlist(1, 0, {}, encode(enlist), 0, answers).ok());
  }
  ASSERT_EQ(answers.size(), 3u);
  const auto error = wire::decode_op_error(answers[0].payload);
  EXPECT_EQ(error->code, Code::kInvalidArgument);
  EXPECT_NE(error->text.find("begins 'name 1024' besides 1024 other"), std::string::npos)
      << error->text;
}

TEST_F(SeriesTest, NonsenseIsTheSendersFault) {
  enlist(true);
  std::vector<Answer> answers;
  wire::JoinMessage message;
  message.id = id;
  message.upto = 1;
  EXPECT_FALSE(table.join(0, encode(message) + "short", 0, answers).ok());
  message.contributors = 2;
  EXPECT_FALSE(table.join(0, encode(message) + floats({1, 2}), 0, answers).ok()) << "no replay";
  // Refused contributions have left nothing behind.
  EXPECT_TRUE(join(0, 1, 1, floats({3, 6})).empty());
  const auto closed = join(1, 1, 1, floats({6, 0}));
  ASSERT_EQ(closed.size(), 3u);
  EXPECT_EQ(wire::decode_round(closed[0].payload)->payload, floats({3, 2}));
  message.id = id + 1;
  EXPECT_FALSE(table.join(0, encode(message), 0, answers).ok());
  wire::Enlist enlist;
  enlist.quorum = 4;
  EXPECT_NE(table.enlist(0, 0, {}, encode(enlist), 0, answers).message().find("quorum is 4"),
            std::string::npos);
}

// A rank that knows that a member is gone does not begin the series. Ranks that have begun are
// told, and no other rank is.
TEST_F(SeriesTest, ASeriesThatNotAllHaveBegunEndsWithAMember) {
  wire::Enlist message;
  message.name = "s";
  message.inline_payload = true;
  message.elements = 2;
  message.quorum = 1;
  std::vector<Answer> answers;
  ASSERT_TRUE(table.enlist(0, 0, {}, encode(message), 0, answers).ok());
  ASSERT_TRUE(answers.empty());
  table.lost(2, 1, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kOpError);
  EXPECT_GE(answers[0].header.stream, wire::kPartialStreams);
  const auto error = wire::decode_op_error(answers[0].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->id, id);
  EXPECT_NE(error->text.find("rank 2 ("), std::string::npos) << error->text;
  // A contribution that was already on its way is not an error. A rank that begins the series
  // anyway is told as well.
  EXPECT_TRUE(join(0, 1, 1, floats({3, 6})).empty());
  answers.clear();
  ASSERT_TRUE(table.enlist(1, 0, {}, encode(message), 2, answers).ok());
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(answers.back().rank, 1u);
}

}  // namespace
}  // namespace herring::server
