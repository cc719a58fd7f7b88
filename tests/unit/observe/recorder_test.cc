#include "observe/recorder.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace herring::observe {
namespace {

Entry named(const std::string& name) {
  Entry entry;
  entry.set_name(name);
  return entry;
}

TEST(Recorder, KeepsTheLatestEntriesInTheOrderOfTheirBegin) {
  Recorder recorder(4);
  for (int i = 0; i < 6; ++i) recorder.begin(named(std::to_string(i)));
  const auto latest = recorder.latest(10);
  ASSERT_EQ(latest.size(), 4u);
  for (size_t i = 0; i < latest.size(); ++i) EXPECT_EQ(latest[i].title(), std::to_string(i + 2));
  EXPECT_EQ(recorder.latest(2).front().title(), "4");
  EXPECT_EQ(recorder.begun(), 6u);
}

TEST(Recorder, OnlyTheFirstTimeOfAMomentCounts) {
  Recorder recorder(4);
  const uint64_t id = recorder.begin(named("x"));
  recorder.mark(id, Moment::kPushed, 5);
  recorder.mark(id, Moment::kPushed, 9);
  recorder.end(id, 11, Code::kTimeout);
  recorder.end(id, 12);
  recorder.mark(id, Moment::kReady, 13);
  const Entry entry = recorder.latest(1).front();
  EXPECT_EQ(entry.when(Moment::kPushed), 5);
  EXPECT_EQ(entry.when(Moment::kDone), 11);
  EXPECT_EQ(entry.when(Moment::kReady), 0);
  EXPECT_EQ(entry.outcome, Code::kTimeout);
  EXPECT_EQ(recorder.ended(), 1u);
}

TEST(Recorder, TheBuffersOfAFailedRoundEndWithIt) {
  Recorder recorder(16);
  const auto begin = [&](Kind kind, uint32_t round) {
    Entry entry;
    entry.kind = kind;
    entry.stream = 3;
    entry.round = round;
    return recorder.begin(entry);
  };
  const uint64_t round = begin(Kind::kRound, 7);
  const uint64_t done = begin(Kind::kBuffer, 7), open = begin(Kind::kBuffer, 7);
  const uint64_t call = begin(Kind::kCall, 7), next = begin(Kind::kBuffer, 8);
  recorder.end(done, 5);
  recorder.end(round, 9, Code::kPeerLost);
  for (const Entry& entry : recorder.latest(16)) {
    EXPECT_EQ(entry.ended, entry.id != call && entry.id != next) << entry.id;
    EXPECT_EQ(entry.outcome, entry.id == round || entry.id == open ? Code::kPeerLost : Code::kOk);
  }
  EXPECT_EQ(recorder.ended(), 3u);
  uint64_t cursor = 0;
  EXPECT_EQ(recorder.ended_since(cursor).size(), 3u);
}

TEST(Recorder, ACallLearnsItsStreamAndRound) {
  Recorder recorder(4);
  const uint64_t id = recorder.begin(named("x"));
  recorder.place(id, 5, 6);
  recorder.end(id, 1);
  recorder.place(id, 7, 8);
  EXPECT_EQ(recorder.latest(1).front().stream, 5u);
  EXPECT_EQ(recorder.latest(1).front().round, 6u);
}

TEST(Mark, OfSeveralPartsTheLastOneCounts) {
  Recorder recorder(4);
  Parts parts{2, 3};
  const Mark mark{&recorder, recorder.begin(named("x")), &parts};
  const auto at = [&](Moment moment) { return recorder.latest(1).front().when(moment); };
  mark.at(Moment::kReduced, 1);
  mark.at(Moment::kPushed, 2);
  mark.at(Moment::kPushed, 3);
  EXPECT_EQ(at(Moment::kReduced), 0);
  EXPECT_EQ(at(Moment::kPushed), 0);
  mark.at(Moment::kReduced, 4);
  mark.at(Moment::kPushed, 5);
  EXPECT_EQ(at(Moment::kReduced), 4);
  EXPECT_EQ(at(Moment::kPushed), 5);
  EXPECT_FALSE(Mark());
}

TEST(Recorder, MarksOfDroppedEntriesChangeNothing) {
  Recorder recorder(2);
  const uint64_t old = recorder.begin(named("old"));
  recorder.begin(named("a"));
  recorder.begin(named("b"));
  recorder.mark(old, Moment::kReady, 7);
  recorder.end(old, 8);
  for (const Entry& entry : recorder.latest(2)) EXPECT_EQ(entry.when(Moment::kReady), 0);
  EXPECT_EQ(recorder.ended(), 0u);
}

TEST(Recorder, ACursorSeesEachEndedEntryOnce) {
  Recorder recorder(8);
  uint64_t cursor = 0;
  const uint64_t a = recorder.begin(named("a")), b = recorder.begin(named("b"));
  recorder.end(b, 1);
  auto ended = recorder.ended_since(cursor);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].title(), "b");
  EXPECT_TRUE(recorder.ended_since(cursor).empty());
  recorder.end(a, 2);
  ended = recorder.ended_since(cursor);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].title(), "a");
}

TEST(Recorder, ASlowCursorMissesWhatTheRingHasDropped) {
  Recorder recorder(4);
  uint64_t cursor = 0;
  for (int i = 0; i < 100; ++i) recorder.end(recorder.begin(named(std::to_string(i))), i + 1);
  const auto ended = recorder.ended_since(cursor);
  ASSERT_EQ(ended.size(), 4u);
  EXPECT_EQ(ended.front().title(), "96");
  EXPECT_EQ(cursor, 100u);
}

TEST(Recorder, AReaderHoldsNobodyUp) {
  Recorder recorder(128);
  uint64_t cursor = 0;
  for (int i = 0; i < 100; ++i) recorder.end(recorder.begin(named("old")), i + 1);
  const auto read = [&](std::string_view expected) {
    size_t count = 0;
    recorder.each_ended(cursor, [&](const Entry& entry) {
      EXPECT_EQ(entry.title(), expected);
      if (expected == "old" && count < 20) recorder.end(recorder.begin(named("new")), 200);
      ++count;
    });
    return count;
  };
  EXPECT_EQ(read("old"), 100u);
  EXPECT_EQ(read("new"), 20u);  // what has ended meanwhile comes with the next call
}

TEST(Recorder, WhatTheRingDropsWhileItIsReadIsCounted) {
  Recorder recorder(64);
  uint64_t cursor = 0, dropped = 0;
  for (int i = 0; i < 64; ++i) recorder.end(recorder.begin(named("old")), i + 1);
  size_t count = 0;
  recorder.each_ended(cursor, [&](const Entry&) {
    if (count++ == 0) {
      for (int i = 0; i < 48; ++i) recorder.end(recorder.begin(named("new")), 100);
    }
  }, &dropped);
  EXPECT_EQ(count + dropped, 64u);
  EXPECT_GE(dropped, 16u);
  EXPECT_EQ(recorder.ended_since(cursor).size(), 48u);
}

TEST(Recorder, APausedOneRecordsOnlyTheEndsOfEarlierEntries) {
  Recorder recorder(4);
  const uint64_t id = recorder.begin(named("x"));
  recorder.pause(true);
  EXPECT_FALSE(recorder.on());
  EXPECT_EQ(recorder.begin(named("y")), 0u);
  recorder.end(id, 5);
  recorder.pause(false);
  recorder.begin(named("z"));
  const auto latest = recorder.latest(4);
  ASSERT_EQ(latest.size(), 2u);
  EXPECT_EQ(latest[0].when(Moment::kDone), 5);
  EXPECT_EQ(latest[1].title(), "z");
}

TEST(Recorder, WaitsCountAfterTheEnd) {
  Recorder recorder(4);
  const uint64_t id = recorder.begin(named("x"));
  recorder.waited(id, 3);
  recorder.end(id, 5);
  recorder.waited(id, 4);
  EXPECT_EQ(recorder.latest(1).front().waited, 7);
}

TEST(Recorder, OffRecordsNothing) {
  Recorder recorder(0);
  const uint64_t id = recorder.begin(named("x"));
  EXPECT_EQ(id, 0u);
  recorder.mark(id, Moment::kReady, 1);
  recorder.waited(id, 1);
  recorder.end(id, 2);
  uint64_t cursor = 0;
  EXPECT_TRUE(recorder.latest(5).empty());
  EXPECT_TRUE(recorder.ended_since(cursor).empty());
}

TEST(Recorder, LongNamesLoseTheirMiddle) {
  Entry entry;
  entry.set_name(std::string(100, 'n') + ".weight");
  EXPECT_EQ(entry.title().size(), Entry::kNameBytes - 1);
  EXPECT_EQ(entry.title().substr(0, 2), "nn");
  EXPECT_NE(entry.title().find("n...n"), std::string::npos);
  EXPECT_TRUE(entry.title().ends_with("n.weight"));
  entry.add_to_name("more");
  EXPECT_TRUE(entry.title().ends_with("n.weight"));
  entry.set_name("short");
  EXPECT_EQ(entry.title(), "short");
}

TEST(Recorder, ManyThreadsMayMark) {
  Recorder recorder(4096);  // a smaller ring could drop the entry of a thread that is held up
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder] {
      for (int i = 0; i < 1000; ++i) {
        const uint64_t id = recorder.begin(named("x"));
        recorder.mark(id, Moment::kReady, 1);
        recorder.end(id, 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.begun(), 4000u);
  EXPECT_EQ(recorder.ended(), 4000u);
}

}  // namespace
}  // namespace herring::observe
