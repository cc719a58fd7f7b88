#include "observe/report.h"

#include <gtest/gtest.h>

#include "observe/clock_offset.h"
#include "tests/unit/observe/samples.h"

namespace herring::observe {
namespace {

TEST(Report, TravelsWhole) {
  const Report sent = full_report();
  const auto got = decode_report(encode(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(encode(*got), encode(sent));
  EXPECT_EQ(got->where, sent.where);
  EXPECT_EQ(got->still, (Still{14, 15}));
  EXPECT_EQ(got->samples.at(0).waited, 70);
  EXPECT_EQ(got->lateness.at(0).second.segments_waited, 6);
  EXPECT_EQ(got->missing.at(0).ranks, (std::vector<uint32_t>{1, 4}));
  EXPECT_FALSE(got->missing.at(0).by);
  EXPECT_EQ(got->missing.at(1).by, 3u);
  EXPECT_EQ(got->groups.at(0).ranks, (std::vector<uint32_t>{0, 7}));
  EXPECT_EQ(got->operations.at(0).time, 5);
}

TEST(Report, EveryCutIsMalformed) {
  const std::string whole = encode(full_report());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_report(std::string_view(whole).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(decode_report(whole + "x").ok());
}

TEST(Report, TimesNearTheLimitsAreMalformed) {
  Report report = full_report();
  report.samples[0].ready = INT64_MAX;
  EXPECT_FALSE(decode_report(encode(report)).ok());
  report = full_report();
  report.operations[0].time = INT64_MAX;
  EXPECT_FALSE(decode_report(encode(report)).ok());
  report = full_report();
  report.groups[0].age = -1;
  EXPECT_FALSE(decode_report(encode(report)).ok());
  report = full_report();
  report.offset = INT64_MIN;
  EXPECT_FALSE(decode_report(encode(report)).ok());
  report = full_report();
  report.still.until = INT64_MAX;
  EXPECT_FALSE(decode_report(encode(report)).ok());
}

TEST(Report, TextsAreCutAndPrintable) {
  Report report;
  report.where = std::string(2 * kMostTextBytes, 'a');
  report.stack = "a\x1b[31mb\nc";
  const auto got = decode_report(encode(report));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->where.size(), kMostTextBytes);
  EXPECT_EQ(got->stack, "a [31mb c");
}

TEST(Report, TheLatestSamplesAreKept) {
  Report report;
  for (uint32_t i = 0; i < 2 * kMostSamples; ++i) {
    report.samples.emplace_back().round = i;
  }
  const auto got = decode_report(encode(report));
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->samples.size(), kMostSamples);
  EXPECT_EQ(got->samples.back().round, 2 * kMostSamples - 1);
}

TEST(Report, RankTextsTravel) {
  const RankTexts sent = {{3, "has been computing for 2 s"},
                          {9, "", 7 * kMillisecond, 3 * kMillisecond}};
  const auto got = decode_rank_texts(encode(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, sent);
  EXPECT_FALSE(decode_rank_texts(encode(sent) + "x").ok());
  EXPECT_FALSE(decode_rank_texts("").ok());
}

TEST(Resources, OfThisProcessAreKnown) {
  const Resources own = own_resources();
  EXPECT_GT(own.memory, 1u << 20);
  EXPECT_GT(own.cpu, 0);
}

TEST(ClockOffset, IsExactForEqualWays) {
  ClockOffset clock;
  EXPECT_FALSE(clock.known());
  EXPECT_EQ(clock.error(), -1);
  clock.exchanged(100, 1150, 1160, 210);  // the other clock shows 1000 more; ways take 50
  EXPECT_EQ(clock.offset(), 1000);
  EXPECT_GE(clock.error(), 50);
}

TEST(ClockOffset, TheErrorIsBoundedByHalfTheWay) {
  for (const Nanos out : {0, 10, 99, 100}) {
    ClockOffset clock;
    clock.exchanged(1000, 1000 + out + 500, 1000 + out + 500, 1100);
    EXPECT_LE(std::abs(clock.offset() - 500), clock.error());
  }
}

TEST(ClockOffset, TheQuickestExchangeCounts) {
  ClockOffset clock;
  clock.exchanged(100, 1150, 1150, 200);
  clock.exchanged(300, 1900, 1900, 1000);  // slow, and off
  EXPECT_EQ(clock.offset(), 1000);
  for (int i = 0; i < 32; ++i) clock.exchanged(300, 1900, 1900, 1000);
  EXPECT_EQ(clock.offset(), 1250);  // the quick one is too long ago
}

TEST(ClockOffset, ImpossibleExchangesAreDropped) {
  ClockOffset clock;
  clock.exchanged(0, 5, 5, 10);
  clock.exchanged(100, 10, 500, 110);
  EXPECT_FALSE(clock.known());
}

}  // namespace
}  // namespace herring::observe
