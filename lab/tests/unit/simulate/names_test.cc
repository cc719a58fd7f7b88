// Named operations while servers die that answer for names: random programs of several ranks in
// virtual time, whose results must be those of a job in which no server dies.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "names_job.h"
#include "seeds.h"

namespace herring::simulate::names {
namespace {

// How long the programs of a plan take if no server dies, and their results.
struct Calm {
  std::map<std::string, std::string> results;
  Nanos took = 0;
};

Calm calm(Plan plan, uint64_t seed) {
  plan.changes.clear();
  Job job(plan, seed);
  Calm found{job.run(), 0};
  found.took = job.took();
  return found;
}

void expect_same(const Plan& plan, uint64_t seed, const Calm& calm) {
  Job job(plan, seed);
  const auto results = job.run();
  EXPECT_EQ(job.cannot_move, 0);
  ASSERT_EQ(results.size(), calm.results.size()) << "seed " << seed;
  for (const auto& [call, result] : calm.results) {
    const bool lost = plan.destroys &&
                      results.at(call).find("has destroyed the group") != std::string::npos;
    if (lost) continue;
    ASSERT_EQ(results.at(call), result) << "call " << call << ", seed " << seed;
  }
}

// Lets servers die at a moment of the seed's.
void expect_outlives(Plan plan, uint64_t seed, uint32_t deaths) {
  const Calm expected = calm(plan, seed);
  std::mt19937_64 random(seed);
  const auto when = static_cast<Nanos>(random() % expected.took);
  add_deaths(plan, random, when, deaths);
  expect_same(plan, seed, expected);
}

TEST(Names, MoveToAnotherServer) {
  const Seeds seeds = Seeds::of(1, 40);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    plan.ranks = 2 + seed % 3;
    if (seed % 2 == 0) plan.forms = Plan::Forms::kBefore;
    const Calm expected = calm(plan, seed);
    ASSERT_GT(expected.took, 0);
    std::mt19937_64 random(seed);
    plan.changes = {{static_cast<Nanos>(random() % expected.took),
                     static_cast<uint32_t>(random() % kServers)}};
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Messages are neither lost nor doubled, and keep their order.
TEST(Names, MessagesMoveToAnotherServer) {
  const Seeds seeds = Seeds::of(401, 40);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    plan.ranks = 2 + seed % 3;
    plan.messages = true;
    if (seed % 2 == 0) plan.forms = Plan::Forms::kBefore;
    expect_outlives(plan, seed, 1 + seed % 3);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Ranks that have joined take part in the all-reduces of the others, and join() returns the same
// last rank on all.
TEST(Names, JoinsMoveToAnotherServer) {
  const Seeds seeds = Seeds::of(501, 40);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    plan.ranks = 2 + seed % 3;
    plan.lanes = 3;
    plan.joins = 4;
    expect_outlives(plan, seed, 1 + seed % 3);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

Plan forming(uint64_t seed) {
  Plan plan;
  plan.ranks = 2 + seed % 3;
  plan.groups = true;
  plan.destroys = seed % 2 == 0;
  plan.calls = 30;
  return plan;
}

// Groups are formed although the servers die that number them.
TEST(Names, FormingMovesToAnotherServer) {
  const Seeds seeds = Seeds::of(1010, 24);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan = forming(seed);
    expect_outlives(plan, seed, 1 + seed % 3);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// The server that stands in dies as well, some of the time before all ranks have heard of the first
// death.
TEST(Names, MoveAgain) {
  const Seeds seeds = Seeds::of(101, 30);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    expect_outlives(plan, seed, 3);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Servers die and are replaced, one after the other, until none of the first ones is left.
TEST(Names, ReturnToReplacements) {
  const Seeds seeds = Seeds::of(301, 30);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    plan.calls = 40;
    plan.messages = seed % 3 == 1;
    if (seed % 3 == 2) {
      plan.lanes = 3;
      plan.joins = 8;
    }
    const Calm expected = calm(plan, seed);
    std::mt19937_64 random(seed);
    Nanos when = static_cast<Nanos>(random() % expected.took) / 4;
    for (uint32_t i = 0; i < 2 * kServers; ++i) {
      plan.changes.push_back({when, static_cast<uint32_t>((seed + i / 2) % kServers), i % 2 == 1});
      when += kMillisecond + static_cast<Nanos>(random() % (kMillisecond << random() % 3));
    }
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// The servers die of which the first to be lost is back, while ranks form groups.
TEST(Names, FormingReturnsToReplacements) {
  const Seeds seeds = Seeds::of(2001, 40);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan = forming(seed);
    const Calm expected = calm(plan, seed);
    std::mt19937_64 random(seed);
    const auto pause = [&] { return 1 + static_cast<Nanos>(random() % (2 * plan.news)); };
    Nanos when = static_cast<Nanos>(random() % expected.took);
    const auto first = static_cast<uint32_t>(random() % kServers);
    plan.changes.push_back({when, first});
    plan.changes.push_back({when += pause(), first, true});
    for (uint32_t i = 1; i < kServers; ++i) {
      plan.changes.push_back({when += pause(), (first + i) % kServers});
    }
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(Names, NoCallNeedsTheServerThatHasIt) {
  const auto needed = [](calls::Call call) { return Job({}, 1).needed(std::move(call)); };
  float array[4] = {};
  char* const data = reinterpret_cast<char*>(array);
  const std::vector<calls::Buffer> buffers{{{DType::kFloat32, {4}}, data, data}};
  EXPECT_TRUE(needed({.name = "a", .what = wire::AllReduce{}, .buffers = buffers}).empty());
  EXPECT_TRUE(needed({.name = "a", .what = wire::Barrier{}}).empty());
  EXPECT_TRUE(needed({.name = "a", .what = wire::Receive{1, 0}, .buffers = buffers}).empty());
  EXPECT_TRUE(needed({.name = "a", .what = wire::FormGroup{{0, 1}}}).empty());
  EXPECT_TRUE(needed({.name = wire::kJoinName, .what = wire::Join{}}).empty());
}

// A group that is new agrees on who answers for its names, although some of its servers have died,
// and others die later.
TEST(Names, BelongToAGroupThatIsFormedLater) {
  const Seeds seeds = Seeds::of(201, 10);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    Plan plan;
    plan.forms = Plan::Forms::kAfter;
    const Calm expected = calm(plan, seed);
    const auto first = static_cast<uint32_t>(seed % kServers);
    const Nanos begin = kSecond;  // when the group is formed
    plan.changes = {{kMillisecond, first},
                    {begin + (expected.took - begin) / 2, (first + 1) % kServers}};
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace herring::simulate::names
