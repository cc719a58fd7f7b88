// Named operations while servers die that answer for names: random programs of several ranks in
// virtual time, whose results must be those of a job in which no server dies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moving_job.h"
#include "seeds.h"

namespace herring::simulate {
namespace {

// What happens in a job, as a seed says.
struct Plan : Course {
  uint32_t lanes = 6, calls = 20;
  Nanos longest_pause = 200 * kMicrosecond;
  // When the first two ranks form a group, which their first lanes use: before all changes or after
  // the first ones.
  enum class Forms { kNever, kBefore, kAfter } forms = Forms::kNever;
};

class Job : MovingJob {
 public:
  Job(Plan plan, uint64_t seed) : MovingJob(plan, seed), plan_(std::move(plan)) {}

  // Runs all programs to their ends. Returns what each call of each rank and lane had as result.
  std::map<std::string, std::string> run() {
    if (plan_.forms == Plan::Forms::kBefore) form();
    if (plan_.forms != Plan::Forms::kAfter) start_lanes();
    schedule_changes();
    if (plan_.forms == Plan::Forms::kAfter) {
      const Nanos all_have_heard = start_ + kSecond;
      simulation_.run_until([] { return false; }, all_have_heard);
      form();
      start_lanes();
    }
    const bool done = simulation_.run_until([this] { return running_ == 0; },
                                            simulation_.now() + kPatience);
    EXPECT_TRUE(done) << running_ << " lanes are not done, seed " << seed_;
    for (size_t i = 0; i < cores_.size(); ++i) {
      EXPECT_TRUE(cores_[i]->failure().ok()) << cores_[i]->failure().message();
    }
    end_ = simulation_.now();
    check_kept();
    check_addresses();
    return std::move(results_);
  }

  // Lets rank 0 make a call that nobody else makes. Returns the servers without which it cannot
  // complete.
  std::vector<uint32_t> needed(worker::Call call) {
    EXPECT_TRUE(cores_[0]->named().submit(std::move(call), false).ok());
    simulation_.run_until([] { return false; }, simulation_.now() + kMillisecond);
    std::vector<uint32_t> servers;
    for (uint32_t server = 0; server < kServers; ++server) {
      control::ServerSet set = control::ServerSet::all(kServers);
      set.lose(server);
      if (!cores_[0]->named().can_move(set)) servers.push_back(server);
    }
    return servers;
  }

  Nanos took() { return end_ - start_; }
  using MovingJob::cannot_move;

 private:
  // Checks that results are kept only of the latest reign over each home of a group, when nothing
  // is on its way any more.
  void check_kept() {
    simulation_.run_until([] { return false; }, simulation_.now() + kSecond);
    for (const auto& core : cores_) {
      std::map<std::pair<uint32_t, uint32_t>, uint32_t> streams;
      for (const worker::Key& key : core->links().kept()) {
        const auto home = std::pair(key.group, home_of(key.stream, kServers));
        const uint32_t stream = streams.emplace(home, key.stream).first->second;
        EXPECT_EQ(key.stream, stream) << "home " << home.second << ", seed " << seed_;
      }
    }
  }

  // Checks that messages of all ranks name the servers that serve now.
  void check_addresses() {
    for (const auto& core : cores_) {
      for (uint32_t server = 0; server < kServers; ++server) {
        const std::string now = servers_[server]->address().to_string();
        const std::string named = core->cluster().describe_server(server);
        EXPECT_NE(named.find(now), std::string::npos) << named << ", now at " << now;
      }
    }
  }

  void form() {
    std::vector<std::shared_ptr<worker::Operation>> forming;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      worker::Call call;
      call.name = "pair";
      call.what = wire::FormGroup{{0, 1}};
      auto submitted = cores_[rank]->named().submit(std::move(call), false);
      ASSERT_TRUE(submitted.ok());
      forming.push_back(*submitted);
    }
    ASSERT_TRUE(simulation_.run_until(
        [&] { return forming[0]->done() && forming[1]->done(); }, simulation_.now() + kPatience));
    for (const auto& operation : forming) {
      ASSERT_TRUE(operation->status().ok()) << operation->status().message();
      groups_.push_back(operation->formed);
    }
    if (plan_.forms == Plan::Forms::kBefore) start_ = simulation_.now();
  }

  void start_lanes() {
    for (uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      for (uint32_t lane = 0; lane < plan_.lanes; ++lane) {
        const bool in_group = lane == 0 && !groups_.empty();
        if (in_group && rank >= groups_.size()) continue;
        ++running_;
        lanes_.push_back(std::make_unique<Lane>(*this, rank, lane));
        if (in_group) lanes_.back()->group = groups_[rank];
        simulation_.call_at(simulation_.now(), [one = lanes_.back().get()] { one->next(); });
      }
    }
  }

  // A thread of a rank's program. All ranks make the same calls in a lane; lanes do not wait for
  // each other.
  struct Lane {
    Lane(Job& job, uint32_t rank, uint32_t lane)
        : job(job), rank(rank), lane(lane), shared(job.seed_ * 100 + lane),
          own(job.seed_ * 100'000 + rank * 100 + lane) {}

    Job& job;
    const uint32_t rank, lane;
    std::mt19937_64 shared, own;  // the same on all ranks, and of this rank
    uint32_t made = 0;
    std::shared_ptr<worker::Group> group;
    std::vector<float> array, gathered;
    std::shared_ptr<worker::Operation> operation;

    EngineCore& core() { return *job.cores_[rank]; }

    void pause_then(std::function<void()> then) {
      const Nanos pause = static_cast<Nanos>(own() % job.plan_.longest_pause);
      job.simulation_.call_at(job.simulation_.now() + pause, std::move(then));
    }

    void next() {
      if (made == job.plan_.calls) {
        --job.running_;
        return;
      }
      const uint64_t kind = shared(), size = shared(), who = shared() % job.plan_.ranks;
      ++made;
      worker::Call call;
      call.group = group;
      call.name = "lane " + std::to_string(lane) + ", " + std::to_string(made % 3);
      const bool large = kind % 12 >= 6;  // its bytes do not travel with the announcement
      array.resize(1 + size % (large ? 30'000 : 200));
      for (size_t i = 0; i < array.size(); ++i) {
        array[i] = static_cast<float>((i * 7 + rank * 13 + made * 3) % 61);
      }
      const uint32_t members = group ? group->size() : job.plan_.ranks;
      switch (kind % 12) {
        case 0: call.what = wire::Barrier{}; break;
        case 1: call.what = wire::Broadcast{static_cast<uint32_t>(who % members)}; break;
        case 2: call.what = wire::AllGather{}; break;
        case 3:
          call.what = wire::AllReduce{{}, wire::Algorithm::kRing};
          break;
        case 4:
          if (who == rank) array.push_back(0);  // ranks disagree
          call.what = wire::AllReduce{};
          break;
        case 8: call.what = wire::Broadcast{static_cast<uint32_t>(who % members)}; break;
        case 9: call.what = wire::AllGather{}; break;
        case 10: call.what = wire::ReduceScatter{}; break;
        case 11: {
          wire::AllToAll all{std::vector<uint64_t>(members, array.size() / members)};
          all.rows.back() += array.size() % members;
          call.what = std::move(all);
          break;
        }
        default: call.what = wire::AllReduce{};
      }
      if (!wire::is<wire::Barrier>(call.what)) {
        char* const data = reinterpret_cast<char*>(array.data());
        call.buffers = {{{DType::kFloat32, {array.size()}}, data, data}};
      }
      if (kind % 12 == 5 && kind / 12 % 4 == 0 && who == rank) {
        core().named().refuse(group ? group : core().world(), call.what, call.name,
                              "it does not want to");
        return pause_then([this] { next(); });
      }
      const bool in_place = wire::is<wire::AllReduce>(call.what) ||
                            wire::is<wire::Broadcast>(call.what) ||
                            wire::is<wire::Barrier>(call.what);
      if (!in_place) call.buffers.front().receive = nullptr;
      const std::string name = call.name;
      auto submitted = core().named().submit(std::move(call), false);
      if (!submitted.ok()) return over(submitted.status());
      operation = *submitted;
      operation->then(worker::Where::kEngine, [this] {
        const Status& status = operation->status();
        std::string& result = job.results_[concat(rank, ".", lane, ".", made)];
        if (!status.ok()) {
          result = status.to_string();
        } else if (operation->result) {
          result.assign(operation->result.get(), operation->result_bytes);
        } else {
          result.assign(reinterpret_cast<const char*>(array.data()),
                        array.size() * sizeof(float));
        }
        pause_then([this] { next(); });
      });
    }

    void over(const Status& why) {
      ADD_FAILURE() << why.message();
      --job.running_;
    }
  };

  const Plan plan_;
  std::vector<std::shared_ptr<worker::Group>> groups_;  // by rank
  std::vector<std::unique_ptr<Lane>> lanes_;
  Nanos end_ = 0;
  std::map<std::string, std::string> results_;
  size_t running_ = 0;
};

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
    ASSERT_EQ(results.at(call), result) << "call " << call << ", seed " << seed;
  }
}

TEST(Names, MoveToAnotherServer) {
  const Seeds seeds = Seeds::of(1, 40);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
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

// The server that stands in dies as well, some of the time before all ranks have heard of the first
// death.
TEST(Names, MoveAgain) {
  const Seeds seeds = Seeds::of(101, 30);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    Plan plan;
    const Calm expected = calm(plan, seed);
    std::mt19937_64 random(seed);
    const auto first = static_cast<uint32_t>(random() % kServers);
    const Nanos when = static_cast<Nanos>(random() % expected.took);
    plan.changes = {{when, first}};
    for (uint32_t i = 1; i <= 2; ++i) {
      // Ranks hear of all versions in one order.
      plan.changes.push_back({plan.changes.back().when + plan.news + 1 +
                                  static_cast<Nanos>(random() % (kMillisecond << random() % 4)),
                              (first + i) % kServers});
    }
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Servers die and are replaced, one after the other, until none of the first ones is left.
TEST(Names, ReturnToReplacements) {
  const Seeds seeds = Seeds::of(301, 20);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    Plan plan;
    plan.calls = 40;
    const Calm expected = calm(plan, seed);
    std::mt19937_64 random(seed);
    Nanos when = static_cast<Nanos>(random() % expected.took) / 4;
    for (uint32_t i = 0; i < 2 * kServers; ++i) {
      plan.changes.push_back({when, static_cast<uint32_t>((seed + i / 2) % kServers), i % 2 == 1});
      when += plan.news + kMillisecond + static_cast<Nanos>(random() % (2 * kMillisecond));
    }
    expect_same(plan, seed, expected);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(Names, SomeCallsNeedTheServerThatHasThem) {
  const auto needed = [](worker::Call call) { return Job({}, 1).needed(std::move(call)); };
  float array[4] = {};
  char* const data = reinterpret_cast<char*>(array);
  const std::vector<worker::Buffer> buffers{{{DType::kFloat32, {4}}, data, data}};
  EXPECT_TRUE(needed({.name = "a", .what = wire::AllReduce{}, .buffers = buffers}).empty());
  EXPECT_TRUE(needed({.name = "a", .what = wire::Barrier{}}).empty());
  EXPECT_EQ(needed({.name = "a", .what = wire::Receive{1, 0}, .buffers = buffers}).size(), 1u);
  EXPECT_EQ(needed({.name = "a", .what = wire::FormGroup{{0, 1}}}).size(), 1u);
  EXPECT_EQ(needed({.name = wire::kJoinName, .what = wire::Join{}}).size(), kServers);
}

// A group that is new agrees on who answers for its names, although some of its servers have died,
// and others die later.
TEST(Names, BelongToAGroupThatIsFormedLater) {
  const Seeds seeds = Seeds::of(201, 10);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
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
}  // namespace herring::simulate
