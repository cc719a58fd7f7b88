#include "observe/rounds.h"

#include <gtest/gtest.h>

#include "observe/sampler.h"

namespace herring::observe {
namespace {

constexpr Nanos kStep = 100 * kMillisecond;

// A job of `size` ranks, each of which computes for `work` and then waits for all others.
class Job {
 public:
  explicit Job(uint32_t size) : work(size, 80 * kMillisecond), rounds(size), before_(size, 1) {}

  void step() {
    Nanos last = 0;
    std::vector<RoundSample> samples(work.size());
    for (uint32_t rank = 0; rank < work.size(); ++rank) {
      RoundSample& sample = samples[rank];
      sample.round = round_;
      sample.before = before_[rank];
      sample.called = before_[rank];
      sample.ready = before_[rank] + work[rank];
      last = std::max(last, sample.ready);
    }
    for (uint32_t rank = 0; rank < work.size(); ++rank) {
      RoundSample& sample = samples[rank];
      sample.reduced = sample.ready + kMillisecond;
      sample.pushed = last + tail / 2;
      sample.done = before_[rank] = last + tail;
      sample.waited = sample.done - sample.ready;
      rounds.add(rank, sample, 0, sample.done);
    }
    ++round_;
    rounds.compare(static_cast<uint32_t>(work.size()), last + tail);
  }

  std::vector<Nanos> work;
  Nanos tail = 20 * kMillisecond;
  Rounds rounds;

 private:
  std::vector<Nanos> before_;
  uint32_t round_ = 0;
};

TEST(Quantile, NeedsNoInterpolation) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1}), 1);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0), 1);
}

TEST(Rounds, EqualRanksAreNotLate) {
  Job job(4);
  for (int i = 0; i < 30; ++i) job.step();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(job.rounds.late(rank).late, 0u);
    EXPECT_EQ(job.rounds.late(rank).rounds, 30u);
    EXPECT_EQ(job.rounds.score(rank), 1);
  }
  const Rounds::Split split = job.rounds.split();
  EXPECT_EQ(split.step, kStep);
  EXPECT_EQ(split.compute, 80 * kMillisecond);
  EXPECT_EQ(split.tail, 20 * kMillisecond);
  EXPECT_EQ(split.ranks, 0);
  EXPECT_EQ(split.exposed, 20 * kMillisecond);
}

TEST(Rounds, ARankThatComputesLongerIsLateByThat) {
  Job job(4);
  job.work[2] += 30 * kMillisecond;
  for (int i = 0; i < 30; ++i) job.step();
  const Rounds::Late late = job.rounds.late(2);
  EXPECT_EQ(late.late, 30u);
  EXPECT_EQ(late.median, 30 * kMillisecond);
  EXPECT_DOUBLE_EQ(late.computed, 1);
  EXPECT_NEAR(job.rounds.score(2), 80.0 / 110, 1e-3);
  for (uint32_t rank : {0u, 1u, 3u}) EXPECT_EQ(job.rounds.late(rank).late, 0u);
  EXPECT_EQ(job.rounds.split().ranks, 30 * kMillisecond);
}

TEST(Rounds, TwoLateRanksOfFourAreBothSeen) {
  Job job(4);
  job.work[1] += 30 * kMillisecond;
  job.work[3] += 40 * kMillisecond;
  for (int i = 0; i < 10; ++i) job.step();
  EXPECT_EQ(job.rounds.late(1).late, 10u);
  EXPECT_EQ(job.rounds.late(3).late, 10u);
  EXPECT_EQ(job.rounds.late(0).late, 0u);
}

TEST(Rounds, OnceIsTold) {
  Job job(4);
  for (int i = 0; i < 40; ++i) {
    job.work[1] = (i == 17 ? 2000 : 80) * kMillisecond;
    job.step();
  }
  const Rounds::Late late = job.rounds.late(1);
  EXPECT_EQ(late.late, 1u);
  EXPECT_EQ(late.most, 1920 * kMillisecond);
  EXPECT_EQ(late.most_round, 17u);
}

TEST(Rounds, ARankThatNobodyWaitsForIsNotLate) {
  Rounds rounds(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    RoundSample sample;
    sample.before = 1;
    sample.ready = (rank == 2 ? 900 : 100) * kMillisecond;
    sample.done = std::max(sample.ready, 150 * kMillisecond);
    rounds.add(rank, sample, 0, kSecond);
  }
  rounds.compare(3, kSecond);
  EXPECT_EQ(rounds.compared(), 1u);
  EXPECT_EQ(rounds.late(2).late, 0u);
}

TEST(Rounds, OnlyTheLastOnesCount) {
  Job job(2);
  job.work[1] += 50 * kMillisecond;
  job.step();
  job.work[1] -= 50 * kMillisecond;
  for (size_t i = 0; i < Rounds::kWindow; ++i) job.step();
  EXPECT_EQ(job.rounds.late(1).late, 0u);
  EXPECT_EQ(job.rounds.late(1).rounds, Rounds::kWindow);
}

TEST(Rounds, AreComparedWhenAllHaveToldOrAfterAWhile) {
  Rounds rounds(3);
  RoundSample sample;
  sample.before = 1;
  sample.ready = 10;
  sample.done = 20;
  rounds.add(0, sample, 0, 20);
  rounds.add(1, sample, 0, 20);
  rounds.add(1, sample, 0, 21);  // twice
  rounds.compare(3, 30);
  EXPECT_EQ(rounds.compared(), 0u);
  EXPECT_EQ(rounds.open(), 1u);
  rounds.compare(3, 10 * kSecond);
  EXPECT_EQ(rounds.compared(), 1u);
  EXPECT_EQ(rounds.open(), 0u);
}

TEST(Rounds, OfAGroupAreComparedWhenItsMembersHaveTold) {
  Rounds rounds(4);
  const Nanos start = 100 * kSecond;
  const auto tell = [&](uint32_t rank, uint32_t round, Nanos when) {
    RoundSample sample;
    sample.group = 7;
    sample.round = round;
    sample.before = when - kStep;
    sample.ready = when - kStep / 2 + (rank == 3 ? kStep / 4 : 0);
    sample.done = when;
    rounds.add(rank, sample, 0, when);
    rounds.compare(4, when);
  };
  tell(1, 0, start);
  tell(3, 0, start);
  EXPECT_EQ(rounds.compared(), 0u);  // others may be in this group, too
  rounds.compare(4, start + 2 * kSecond);
  EXPECT_EQ(rounds.compared(), 1u);
  for (uint32_t round = 1; round < 10; ++round) {
    tell(1, round, start + 2 * kSecond);
    EXPECT_EQ(rounds.compared(), round);
    tell(3, round, start + 2 * kSecond);
    EXPECT_EQ(rounds.compared(), round + 1);
  }
  EXPECT_EQ(rounds.late(3).late, 10u);
  EXPECT_EQ(rounds.late(1).late, 0u);
}

TEST(Rounds, WhatNobodyElseTellsIsBounded) {
  Rounds rounds(2);
  RoundSample sample;
  sample.ready = 10;
  sample.done = 20;
  for (uint32_t round = 0; round < 100000; ++round) {
    sample.round = round;
    rounds.add(0, sample, 0, 20);
  }
  EXPECT_LE(rounds.open(), 1024u);
  rounds.add(7, sample, 0, 20);  // no such rank
}

Entry round_entry(uint32_t number, Nanos called, Nanos ready, Nanos done) {
  Entry entry;
  entry.kind = Kind::kRound;
  entry.round = number;
  entry.at[static_cast<size_t>(Moment::kCalled)] = called;
  entry.at[static_cast<size_t>(Moment::kReady)] = ready;
  entry.at[static_cast<size_t>(Moment::kDone)] = done;
  return entry;
}

Entry buffer_entry(uint32_t number, Nanos reduced, Nanos pushed, uint64_t bytes) {
  Entry entry;
  entry.kind = Kind::kBuffer;
  entry.round = number;
  entry.at[static_cast<size_t>(Moment::kReduced)] = reduced;
  entry.at[static_cast<size_t>(Moment::kPushed)] = pushed;
  entry.bytes = bytes;
  return entry;
}

std::vector<RoundSample> take(Sampler& sampler, const std::vector<Entry>& ended) {
  for (const Entry& entry : ended) sampler.add(entry);
  return sampler.take();
}

TEST(Sampler, TakesTheLatestMomentOfAllBuffers) {
  Sampler sampler;
  auto samples = take(sampler, {buffer_entry(0, 5, 9, 100), buffer_entry(0, 7, 8, 50),
                               round_entry(0, 1, 4, 12)});
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].before, 0);
  EXPECT_EQ(samples[0].reduced, 7);
  EXPECT_EQ(samples[0].pushed, 9);
  EXPECT_EQ(samples[0].bytes, 150u);
  samples = take(sampler, {round_entry(1, 13, 14, 20)});
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].before, 12);
}

TEST(Sampler, RemembersTheLatestPlansOnly) {
  Sampler sampler;
  const auto before = [&sampler](uint32_t stream, Nanos done) {
    Entry entry = round_entry(0, done - 2, done - 1, done);
    entry.stream = stream;
    return take(sampler, {entry}).at(0).before;
  };
  const auto plans = static_cast<uint32_t>(Sampler::kMostPlans);
  for (uint32_t stream = 0; stream < plans; ++stream) EXPECT_EQ(before(stream, 10 + stream), 0);
  EXPECT_EQ(before(0, 1000), 10);
  EXPECT_EQ(before(plans, 2000), 0);
  EXPECT_EQ(before(0, 3000), 1000);
  EXPECT_EQ(before(1, 4000), 0) << "its latest round was the oldest";
  EXPECT_EQ(before(plans, 5000), 2000);
}

TEST(Sampler, PicksTheSameRoundsOnAllRanks) {
  Sampler sampler(8);
  const auto many = [&sampler](uint32_t from, uint32_t count) {
    std::vector<Entry> entries;
    for (uint32_t i = from; i < from + count; ++i) {
      entries.push_back(round_entry(i, 10 * i + 1, 10 * i + 5, 10 * i + 9));
    }
    return take(sampler, entries);
  };
  const auto samples = many(0, 100);
  EXPECT_EQ(sampler.stride(), 16u);
  for (const RoundSample& sample : samples) EXPECT_EQ(sample.round % sampler.stride(), 0u);
  EXPECT_EQ(samples.size(), 7u);
  EXPECT_EQ(many(100, 4).size(), 4u);
  EXPECT_EQ(sampler.stride(), 1u);
}

TEST(Sampler, KeepsALongRoundThatItWouldLeaveOut) {
  Sampler sampler(2);
  std::vector<Entry> entries;
  Nanos time = 1;
  for (uint32_t i = 0; i < 40; ++i) {
    const Nanos end = time + (i == 37 ? 500 : 10);
    entries.push_back(round_entry(i, time, time + 5, end));
    time = end;
  }
  const auto samples = take(sampler, entries);
  EXPECT_TRUE(std::any_of(samples.begin(), samples.end(), [](const RoundSample& sample) {
    return sample.round == 37;
  }));
}

TEST(Sampler, KeepsBuffersOfRoundsThatOverlap) {
  Sampler sampler;
  for (uint32_t i = 0; i < 3; ++i) sampler.add(buffer_entry(i, 5 + i, 9 + i, 100 + i));
  for (const uint32_t i : {1u, 0u, 2u}) {
    sampler.add(round_entry(i, 1, 4, 20));
    const auto samples = sampler.take();
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(samples[0].reduced, 5 + i);
    EXPECT_EQ(samples[0].bytes, 100u + i);
  }
}

TEST(Sampler, FailedRoundsAreNoSamples) {
  Sampler sampler;
  Entry failed = round_entry(0, 1, 2, 3);
  failed.outcome = Code::kTimeout;
  EXPECT_TRUE(take(sampler, {failed}).empty());
}

}  // namespace
}  // namespace herring::observe
