#include "wire/partial.h"

#include <gtest/gtest.h>

namespace herring::wire {
namespace {

Enlist some_enlist() {
  Enlist enlist;
  enlist.dtype = DType::kInt64;
  enlist.op = ReduceOp::kSum;
  enlist.by_contributors = true;
  enlist.inline_payload = true;
  enlist.elements = 512;
  enlist.quorum = 3;
  enlist.grace = 5;
  enlist.staleness = 4;
  enlist.replays = true;
  enlist.timeout_ms = 1000;
  enlist.name = "gradients";
  return enlist;
}

TEST(PartialMessages, ArriveAsTheyLeft) {
  const auto enlist = decode_enlist(encode(some_enlist()));
  ASSERT_TRUE(enlist.ok());
  EXPECT_EQ(enlist->elements, 512u);
  EXPECT_EQ(enlist->quorum, 3u);
  EXPECT_EQ(enlist->staleness, 4u);
  EXPECT_EQ(enlist->name, "gradients");
  EXPECT_TRUE(enlist->by_contributors && enlist->inline_payload && enlist->replays);

  const std::string text =
      encode(JoinMessage{7, 9, 11, true, 12, 4, 5, 0x123456789, {}}) + "bytes";
  const auto join = decode_join(text);
  ASSERT_TRUE(join.ok());
  EXPECT_EQ(join->upto, 9u);
  EXPECT_EQ(join->base, 11u);
  EXPECT_TRUE(join->last);
  EXPECT_EQ(join->round, 12u);
  EXPECT_EQ(join->contributors, 4u);
  EXPECT_EQ(join->digest, 0x123456789u);
  EXPECT_EQ(join->payload, "bytes");

  RoundMessage message;
  message.id = 7;
  message.round = 3;
  message.attempt = 1;
  message.divisor = 8;
  message.contributors = {{2, 40, 1, true, -5}, {5, 41, 0, false, 6, 9}};
  message.lost = {{1, 30, 32}};
  const std::string round_text = encode(message) + "result";
  const auto round = decode_round(round_text);
  ASSERT_TRUE(round.ok());
  ASSERT_EQ(round->contributors.size(), 2u);
  EXPECT_EQ(round->contributors[0].waited, -5);
  EXPECT_EQ(round->contributors[1].upto, 41u);
  EXPECT_EQ(round->lost[0].announced, 32u);
  EXPECT_EQ(round->contributors[1].base, 9u);
  EXPECT_EQ(round->payload, "result");

  const auto mark = decode_mark(encode(RoundMark{7, 3, 2, false}));
  ASSERT_TRUE(mark.ok());
  EXPECT_EQ(mark->attempt, 2u);
  EXPECT_FALSE(mark->whole);

  partial::SeriesState known;
  known.rounds = 3;
  known.tickets = 8;
  known.received = known.committed = true;
  known.counts = {{4, 2}, {1, 1}};
  const std::string known_text = encode_known(7, known);
  const auto series = decode_series(known_text);
  ASSERT_TRUE(series.ok());
  EXPECT_EQ(series->id, 7u);
  EXPECT_EQ(series->known.rounds, 3u);
  EXPECT_EQ(series->known.tickets, 8u);
  EXPECT_TRUE(series->known.received && series->known.committed && !series->known.whole);
  EXPECT_EQ(series->known.counts, known.counts);
  for (size_t n = 0; n < known_text.size(); ++n) {
    EXPECT_FALSE(decode_series(std::string_view(known_text).substr(0, n)).ok()) << n;
  }
}

TEST(PartialMessages, NothingShortOrAbsurdIsAccepted) {
  const std::string enlist = encode(some_enlist());
  for (size_t n = 0; n < enlist.size(); ++n) {
    EXPECT_FALSE(decode_enlist(std::string_view(enlist).substr(0, n)).ok()) << n;
  }
  std::string wrong = enlist;
  wrong[1] = 2;  // min: late contributions cannot be added
  EXPECT_FALSE(decode_enlist(wrong).ok());
  RoundMessage message;
  message.contributors.resize(3);
  const std::string round = encode(message);
  for (size_t n = 0; n < round.size(); ++n) {
    EXPECT_FALSE(decode_round(std::string_view(round).substr(0, n)).ok()) << n;
  }
  std::string many = round;
  many[8 + 4 * 3 + 1] = '\xff';  // the message has fewer contributors
  EXPECT_FALSE(decode_round(many).ok());
  const std::string mark = encode(RoundMark{});
  EXPECT_FALSE(decode_mark(mark + "x").ok());
  EXPECT_FALSE(decode_join(mark).ok());
}

// Names may contain any characters.
TEST(PartialMessages, ASeriesOfAGroupIsNoOtherGroupsOfAnotherName) {
  EXPECT_EQ(series_id("s", 5), series_id("s", 5));
  EXPECT_NE(series_id("s\n5"), series_id("s", 5));
  EXPECT_NE(series_id("5\ns"), series_id("s", 5));
  EXPECT_NE(series_id("s\n5", 6), series_id("s", 56));
  EXPECT_NE(series_id("1", 1), series_id("", 11));
  EXPECT_NE(series_id("s"), series_id("s", 5));
  EXPECT_NE(series_id("s"), series_id("s", 0, 1));
}

}  // namespace
}  // namespace herring::wire
