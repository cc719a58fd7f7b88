// Partial all-reduces while the servers die that close their rounds: every contribution must be
// counted once, and all ranks must get the same results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "moving_job.h"
#include "seeds.h"

namespace herring::simulate {
namespace {

struct SeriesPlan : Course {
  uint32_t names = 2, series = 3;    // series that begin one after another with each name
  uint32_t steps = 12, staleness = 2, quorum = 1;
  Nanos longest_pause = 300 * kMicrosecond;
};

class SeriesJob : MovingJob {
 public:
  SeriesJob(SeriesPlan plan, uint64_t seed) : MovingJob(plan, seed), plan_(std::move(plan)) {}

  void run() {
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      for (uint32_t name = 0; name < plan_.names; ++name) {
        lanes_.push_back(std::make_unique<Lane>(*this, rank, name));
        ++running_;
        simulation_.call_at(simulation_.now(), [one = lanes_.back().get()] { one->begin(); });
      }
    }
    schedule_changes();
    const bool done = simulation_.run_until([this] { return running_ == 0; },
                                            simulation_.now() + kPatience);
    EXPECT_TRUE(done) << running_ << " programs are not done, seed " << seed_;
    EXPECT_EQ(cannot_move, 0);
    for (const auto& core : cores_) {
      const Status failure = core->core().ending.failure();
      EXPECT_TRUE(failure.ok()) << failure.message() << ", seed " << seed_;
    }
    for (const auto& [series, seen] : seen_) {
      EXPECT_EQ(seen.ranks, plan_.ranks) << series;
      EXPECT_EQ(seen.applied, plan_.ranks * seen.produced) << series << ", seed " << seed_;
    }
    took_ = simulation_.now() - start_;
  }
  Nanos took() const { return took_; }

 private:
  // What the ranks have seen of a series.
  struct Seen {
    uint64_t results = 0;  // a hash of all results of the first rank that is done
    uint32_t ranks = 0;    // that are done
    int64_t produced = 0, applied = 0;  // sums of first elements; by all ranks
  };

  // A thread of a rank's program.
  struct Lane {
    Lane(SeriesJob& job, uint32_t rank, uint32_t name)
        : job(job), rank(rank), name(name), own(job.seed_ * 100'000 + rank * 100 + name),
          elements(name % 2 == 0 ? 5000 : 40) {}

    void begin() {
      if (begun == job.plan_.series) {
        --job.running_;
        return;
      }
      ++begun;
      made = 0;
      produced = applied = 0;
      results.clear();
      rounds::PartialOptions options;
      options.name = "series " + std::to_string(name);
      options.dtype = DType::kInt64;
      options.elements = elements;
      options.op = ReduceOp::kSum;
      options.quorum = std::min(job.plan_.quorum, job.plan_.ranks);
      options.staleness = job.plan_.staleness;
      options.number = begun;
      auto created = rounds::Partial::create(job.cores_[rank]->series(), std::move(options));
      ASSERT_TRUE(created.ok()) << created.status().message();
      partial = *created;
      later([this] { step(); });
    }

    void later(std::function<void()> then) {
      const Nanos pause = static_cast<Nanos>(own() % job.plan_.longest_pause);
      job.simulation_.call_at(job.simulation_.now() + pause, std::move(then));
    }

    void apply() {
      std::vector<int64_t> result(elements);
      auto info = partial->take(reinterpret_cast<char*>(result.data()));
      ASSERT_TRUE(info.ok()) << info.status().message();
      applied += result[0];
      results += concat(info->round, " ", info->contributors.size(), " ",
                        fnv1a({reinterpret_cast<const char*>(result.data()),
                               result.size() * sizeof(int64_t)}),
                        ";");
      ended = info->last;
    }

    void step() {
      bool waits = true;
      while (partial->ready() > 0) {
        apply();
        waits = false;
      }
      const bool last = made == job.plan_.steps;
      ++made;
      std::vector<int64_t> mine(elements);
      for (size_t i = 0; i < elements; ++i) {
        mine[i] = static_cast<int64_t>((i + 1) * (rank + 3) * made % 100'003);
      }
      produced += mine[0];
      const Status status = partial->contribute(reinterpret_cast<const char*>(mine.data()),
                                                waits, last);
      ASSERT_TRUE(status.ok()) << status.message();
      if (last) return flush();
      waits ? wait() : later([this] { step(); });
    }

    void wait() {
      if (!partial->failure().ok()) return;
      if (partial->ready() == 0) return later([this] { wait(); });
      apply();
      later([this] { step(); });
    }

    void flush() {
      if (!partial->failure().ok()) return;
      if (partial->ready() == 0) return later([this] { flush(); });
      apply();
      ended ? end() : later([this] { flush(); });
    }

    void end() {
      Seen& seen = job.seen_[concat("series ", name, ".", begun)];
      const uint64_t hash = fnv1a(results);
      if (seen.ranks++ == 0) seen.results = hash;
      EXPECT_EQ(seen.results, hash) << "rank " << rank << ", seed " << job.seed_;
      seen.applied += applied;
      seen.produced += produced;
      partial = nullptr;
      ended = false;
      begin();
    }

    SeriesJob& job;
    const uint32_t rank, name;
    std::mt19937_64 own;
    const size_t elements;
    uint32_t begun = 0, made = 0;
    bool ended = false;
    int64_t produced = 0, applied = 0;
    std::string results;
    std::shared_ptr<rounds::Partial> partial;
  };

  const SeriesPlan plan_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::map<std::string, Seen> seen_;
  uint32_t running_ = 0;
  Nanos took_ = 0;
};

SeriesPlan plan_of(uint64_t seed) {
  SeriesPlan plan;
  plan.ranks = 2 + seed % 4;
  plan.quorum = 1 + static_cast<uint32_t>(seed / 4 % 3);
  plan.staleness = static_cast<uint32_t>(seed / 12 % 4);
  return plan;
}

// Servers die and are replaced, one after the other.
TEST(SeriesInTime, OutliveTheirOwners) {
  const Seeds seeds = Seeds::of(1, 60);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    SeriesPlan plan = plan_of(seed);
    SeriesJob calm(plan, seed);
    calm.run();
    std::mt19937_64 random(seed);
    const Nanos pause = calm.took() / (2 * kServers);
    Nanos when = static_cast<Nanos>(random() % pause);
    for (uint32_t i = 0; i < 2 * kServers; ++i) {
      plan.changes.push_back({when, static_cast<uint32_t>((seed + i / 2) % kServers), i % 2 == 1});
      when += 1 + static_cast<Nanos>(random() % (2 * pause));
    }
    SeriesJob(plan, seed).run();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Several die in turn, some before all ranks have heard of the last loss.
TEST(SeriesInTime, MoveAgain) {
  const Seeds seeds = Seeds::of(101, 60);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(Seeds::command(seed));
    SeriesPlan plan = plan_of(seed);
    SeriesJob calm(plan, seed);
    calm.run();
    std::mt19937_64 random(seed);
    const auto when = static_cast<Nanos>(random() % calm.took());
    add_deaths(plan, random, when, 3);
    SeriesJob(plan, seed).run();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace herring::simulate
