// Random series on a simulated network (series_simulation.h).
#include <gtest/gtest.h>

#include <random>

#include "series_simulation.h"

namespace herring::partial {
namespace {

Parameters draw(std::mt19937_64& random) {
  Parameters p;
  p.workers = 1 + static_cast<uint32_t>(random() % 9);
  p.quorum = 1 + static_cast<uint32_t>(random() % p.workers);
  p.staleness = static_cast<uint32_t>(random() % 5);
  p.pushes = random() % 2;
  p.takes_all = random() % 2;
  p.rounds = 1 + static_cast<uint32_t>(random() % 40);
  p.own_steps = random() % 2;
  p.seed = random();
  return p;
}

std::string describe(const Parameters& p) {
  return concat(p.workers, " workers, quorum ", p.quorum, ", staleness ", p.staleness, ", grace ",
                p.grace, ", pushes ", p.pushes, ", takes all ", p.takes_all, ", rounds ", p.rounds,
                p.own_steps ? ", own steps" : "", ", kills ", p.kills);
}

// In a replay, a contribution belongs to a recorded round. The worker may say that it follows
// before that round closes.
TEST(Memory, AJoinThatOnlyFollowsLeavesTheContributionItsPlace) {
  Memory memory(1, 3, false, 1000);
  memory.announced({{1, 5, 2, true, 7, 3}, 4, 99, "bytes"});
  memory.announced({{1, 5, 6, true}, 0, 0, {}});
  ASSERT_EQ(memory.known().said.size(), 1u);
  const SentJoin& said = memory.known().said.back();
  EXPECT_EQ(said.join.base, 6u);
  EXPECT_EQ(said.join.round, 7u);
  EXPECT_EQ(said.join.contributors, 3u);
  EXPECT_EQ(said.payload, "bytes");
  EXPECT_EQ(said.digest_round, 4u) << "no server may have compared it";
  EXPECT_EQ(said.digest, 99u);
}

TEST(SeriesProperty, WhatIsAppliedIsWhatWasProduced) {
  std::mt19937_64 random(20260101);
  uint32_t repeats = 0, followed = 0, empty = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    Parameters p = draw(random);
    p.grace = random() % 2 ? 0 : static_cast<Nanos>(random() % 1000);
    p.kills = p.workers > 2 ? static_cast<int>(random() % 4) : 0;
    SCOPED_TRACE(concat("trial ", trial, ": ", describe(p)));
    Series series(p);
    series.run();
    if (HasFatalFailure()) return;
    series.check();
    if (HasFailure()) return;
    repeats += series.repeats();
    followed += series.followed();
    empty += series.empty();
  }
  EXPECT_GT(followed, 5000u) << "hardly anybody flushed before others";
  EXPECT_GT(empty, 5u) << "nobody died as the last one that contributed";
  EXPECT_GT(repeats, 20u) << "rounds were hardly ever repeated: nothing was tested";
}

TEST(SeriesProperty, NothingIsLostWithAnOwner) {
  std::mt19937_64 random(20260303);
  uint32_t taken_over = 0, due = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    Parameters p = draw(random);
    p.grace = random() % 2 ? 0 : static_cast<Nanos>(random() % 1000);
    p.kills = p.workers > 2 && random() % 2 ? static_cast<int>(random() % 4) : 0;
    p.owners_lost = 1 + static_cast<int>(random() % 6);
    SCOPED_TRACE(concat("trial ", trial, ": ", describe(p)));
    Series series(p);
    series.run();
    if (HasFatalFailure()) return;
    series.check();
    if (HasFailure()) return;
    taken_over += series.taken_over();
    due += series.due();
  }
  EXPECT_GT(taken_over, 1000u);
  EXPECT_GT(due, 1000u) << "members lacked hardly anything: nothing was tested";
}

TEST(SeriesProperty, AReplayRepeatsARecordingWhateverTheDelays) {
  std::mt19937_64 random(20260202);
  uint32_t merged = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Parameters p = draw(random);
    SCOPED_TRACE(concat("trial ", trial, ": ", describe(p)));
    Series original(p);
    original.run();
    if (HasFatalFailure()) return;
    const Recording& recording = original.recording();
    p.replay = &recording;
    p.seed = random();
    Series replayed(p);
    replayed.run();
    if (HasFatalFailure()) return;
    replayed.check();
    ASSERT_EQ(replayed.applied(), original.applied());
    ASSERT_EQ(replayed.recording().steps, recording.steps);
    ASSERT_EQ(replayed.recording().rounds.size(), recording.rounds.size());
    for (size_t round = 0; round < recording.rounds.size(); ++round) {
      const auto& then = recording.rounds[round];
      const auto& now = replayed.recording().rounds[round];
      ASSERT_EQ(now.size(), then.size());
      for (size_t i = 0; i < then.size(); ++i) {
        EXPECT_EQ(now[i].rank, then[i].rank);
        EXPECT_EQ(now[i].upto, then[i].upto);
        EXPECT_EQ(now[i].staleness, then[i].staleness);
        EXPECT_EQ(now[i].active, then[i].active);
        merged += then[i].staleness > 0;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(merged, 1000u) << "nobody was ever late: nothing was tested";
}

}  // namespace
}  // namespace herring::partial
