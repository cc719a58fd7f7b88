// Jobs in virtual time whose servers die while their ranks make named operations, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moving_job.h"

namespace herring::simulate::names {

// What happens in a job, as a seed says.
struct Plan : Course {
  uint32_t lanes = 6, calls = 20;
  Nanos longest_pause = 200 * kMicrosecond;
  bool messages = false;  // lanes also send and receive
  bool groups = false;    // lanes also form groups, and use them once
  // They destroy them then. What a rank still lacks that was complete for the others can be lost.
  bool destroys = false;
  // Ranks make different numbers of all-reduces in their lanes, and join, so many times.
  uint32_t joins = 0;
  // When the first two ranks form a group, which their first lanes use: before all changes or after
  // the first ones.
  enum class Forms { kNever, kBefore, kAfter } forms = Forms::kNever;
};

// Returns a number of elements from 1 to `most`, mostly a small one: large arrays take long.
inline size_t some(size_t most, uint64_t random) {
  return 1 + random / 6 % (most >> random % 6);
}

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
      const Status failure = cores_[i]->core().ending.failure();
      EXPECT_TRUE(failure.ok()) << failure.message();
      EXPECT_EQ(cores_[i]->core().groups.world()->joins(), plan_.joins) << "rank " << i;
    }
    end_ = simulation_.now();
    check_kept();
    check_addresses();
    return std::move(results_);
  }

  // Lets rank 0 make a call that nobody else makes. Returns the servers without which it cannot
  // complete.
  std::vector<uint32_t> needed(calls::Call call) {
    EXPECT_TRUE(cores_[0]->calls().submit(std::move(call), false).ok());
    simulation_.run_until([] { return false; }, simulation_.now() + kMillisecond);
    std::vector<uint32_t> servers;
    for (uint32_t server = 0; server < kServers; ++server) {
      control::ServerSet set = control::ServerSet::all(kServers);
      set.lose(server);
      if (!cores_[0]->calls().can_move(set)) servers.push_back(server);
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
      for (const wire::Key& key : core->core().links->kept()) {
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
        const std::string named = core->core().cluster.describe_server(server);
        EXPECT_NE(named.find(now), std::string::npos) << named << ", now at " << now;
      }
    }
  }

  void form() {
    std::vector<std::shared_ptr<calls::Operation>> forming;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      calls::Call call;
      call.name = "pair";
      call.what = wire::FormGroup{{0, 1}};
      auto submitted = cores_[rank]->calls().submit(std::move(call), false);
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
      if (plan_.joins > 0) {
        ++running_;
        uneven_.push_back(std::make_unique<Uneven>(*this, rank));
        simulation_.call_at(simulation_.now(), [one = uneven_.back().get()] { one->begin(); });
        continue;
      }
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
    std::shared_ptr<engine::Group> group;
    std::vector<float> array;
    // Of messages: in the order of the calls.
    std::deque<std::vector<float>> passed;
    std::vector<std::shared_ptr<calls::Operation>> passing;
    size_t awaited = 0;
    bool in_any_order = false;
    std::shared_ptr<calls::Operation> operation;

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
      if (job.plan_.messages && shared() % 2 == 0) return pass_messages();
      if (job.plan_.groups && shared() % 2 == 0) return form_group();
      const uint64_t kind = shared(), size = shared(), who = shared() % job.plan_.ranks;
      ++made;
      calls::Call call;
      call.group = group;
      call.name = "lane " + std::to_string(lane) + ", " + std::to_string(made % 3);
      const bool large = kind % 12 >= 6;  // its bytes do not travel with the announcement
      array.resize(large ? some(30'000, size) : 1 + size % 200);
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
        core().calls().refuse(group ? group : core().core().groups.world(), call.what, call.name,
                              "it does not want to");
        return pause_then([this] { next(); });
      }
      const bool in_place = wire::is<wire::AllReduce>(call.what) ||
                            wire::is<wire::Broadcast>(call.what) ||
                            wire::is<wire::Barrier>(call.what);
      if (!in_place) call.buffers.front().receive = nullptr;
      submit(std::move(call), [this] {
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

    // Several messages from one rank to another, or one from each other rank to one that takes them
    // as they come. Some do not fit what is to receive them.
    void pass_messages() {
      ++made;
      const uint32_t members = group ? group->size() : job.plan_.ranks;
      const bool from_all = shared() % 4 == 0;
      const uint64_t to = shared() % members, next = shared() % (members - 1);
      const auto from = static_cast<uint32_t>((to + 1 + next) % members);
      const uint64_t count = from_all ? members - 1 : 1 + shared() % 4;
      const bool any = from_all || shared() % 4 == 0;
      // Where one of several senders is meant, no other message has the tag.
      const uint64_t tag = any ? 1000 + lane * 1000 + made : lane;
      passed.clear();
      passing.clear();
      awaited = 1;
      in_any_order = from_all;
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t kind = shared() % 8, size = shared();
        const size_t elements =
            kind == 0 ? 0 : kind == 1 ? some(60'000, size) : 1 + size % 300;
        const bool fits = from_all || shared() % 8 != 0;
        const bool sends = from_all ? rank != to && i == 0 : rank == from;
        if (sends) pass(wire::Send{static_cast<uint32_t>(to), tag}, from_all ? 50 : elements);
        if (rank != to) continue;
        const auto source = any ? std::nullopt : std::optional(from);
        pass(wire::Receive{source, tag}, from_all ? 50 : elements + (fits ? 0 : 1));
      }
      one_passed();
    }

    void pass(wire::Collective what, size_t elements) {
      std::vector<float>& values = passed.emplace_back(elements);
      for (size_t i = 0; i < elements && wire::is<wire::Send>(what); ++i) {
        values[i] = static_cast<float>((i * 7 + rank * 13 + made * 3 + passed.size()) % 61);
      }
      calls::Call call;
      call.group = group;
      call.name = "message";
      call.what = std::move(what);
      char* const data = reinterpret_cast<char*>(values.data());
      call.buffers = {{{DType::kFloat32, {elements}}, data, data}};
      auto submitted = core().calls().submit(std::move(call), false);
      if (!submitted.ok()) return over(submitted.status());
      ++awaited;
      passing.push_back(*submitted);
      passing.back()->then(engine::Where::kEngine, [this] { one_passed(); });
    }

    void one_passed() {
      if (--awaited > 0) return;
      std::vector<std::string> results;
      for (size_t i = 0; i < passing.size(); ++i) {
        const calls::Operation& one = *passing[i];
        std::string result = concat(one.status().to_string(), " ", one.counts.size());
        for (const uint64_t count : one.counts) result += concat(" ", count);
        results.push_back(result.append(reinterpret_cast<const char*>(passed[i].data()),
                                        passed[i].size() * sizeof(float)));
      }
      if (in_any_order) std::sort(results.begin(), results.end());
      std::string& all = job.results_[concat(rank, ".", lane, ".", made)];
      for (const std::string& result : results) all += result;
      pause_then([this] { this->next(); });
    }

    // All members of a group get its number, and no other group has it.
    void form_group() {
      const uint64_t chosen = shared(), kind = shared();
      std::vector<uint32_t> members;
      for (uint32_t one = 0; one < job.plan_.ranks; ++one) {
        if (chosen >> one & 1) members.push_back(one);
      }
      ++made;
      if (std::ranges::count(members, rank) == 0) return next();
      calls::Call call;
      call.name = concat("team ", lane, ".", kind % 2);
      call.what = wire::FormGroup{members};
      submit(std::move(call), [this, large = kind / 2 % 2 == 1] {
        const Status& status = operation->status();
        if (!status.ok()) return over(status);
        group = operation->formed;
        const auto given = job.numbers_.try_emplace({lane, made}, group->id());
        EXPECT_EQ(given.first->second, group->id()) << "rank " << rank;
        if (given.second) {
          EXPECT_TRUE(job.given_.insert(group->id()).second) << group->id();
        }
        use_group(large ? 5000 : 1);
      });
    }

    void use_group(size_t elements) {
      array.assign(elements, static_cast<float>(rank + 1));
      char* const data = reinterpret_cast<char*>(array.data());
      calls::Call call;
      call.group = group;
      call.name = "in a team";
      call.what = wire::AllReduce{};
      call.buffers = {{{DType::kFloat32, {array.size()}}, data, data}};
      submit(std::move(call), [this] {
        job.results_[concat(rank, ".", lane, ".", made)] =
            concat(operation->status().to_string(), " ", array.front(), " ", array.back());
        pause_then([this] {
          const std::shared_ptr<engine::Group> used = std::exchange(group, nullptr);
          const Status over = job.plan_.destroys ? core().core().groups.destroy(used) : Status();
          EXPECT_TRUE(over.ok()) << over.message();
          next();
        });
      });
    }

    void submit(calls::Call call, std::function<void()> then) {
      auto submitted = core().calls().submit(std::move(call), false);
      if (!submitted.ok()) return over(submitted.status());
      operation = *submitted;
      operation->then(engine::Where::kEngine, std::move(then));
    }

    void over(const Status& why) {
      ADD_FAILURE() << why.message();
      --job.running_;
    }
  };

  // A rank's program with uneven data. Its calls in a lane follow each other; it joins when it has
  // begun the last one of each lane.
  struct Uneven {
    Uneven(Job& job, uint32_t rank) : job(job), rank(rank), own(job.seed_ * 1000 + rank) {}

    Job& job;
    const uint32_t rank;
    std::mt19937_64 own;
    uint32_t joined = 0, calls = 0, to_begin = 0, in_flight = 0;
    std::map<uint32_t, std::vector<float>> arrays;  // by lane

    void begin() {
      if (joined == job.plan_.joins) {
        --job.running_;
        return;
      }
      calls = 1 + 2 * ((rank + joined * (1 + job.seed_ % 3)) % job.plan_.ranks);
      to_begin = job.plan_.lanes;
      in_flight = job.plan_.lanes + 1;
      for (uint32_t lane = 0; lane < job.plan_.lanes; ++lane) make(lane, 0);
    }

    void make(uint32_t lane, uint32_t number) {
      if (number == calls) return over();
      const Nanos pause = static_cast<Nanos>(own() % job.plan_.longest_pause);
      job.simulation_.call_at(job.simulation_.now() + pause, [=, this] { call(lane, number); });
    }

    void call(uint32_t lane, uint32_t number) {
      std::mt19937_64 shared(((job.seed_ * 100 + joined) * 100 + lane) * 100 + number);
      const uint64_t kind = shared(), size = shared();
      std::vector<float>& array = arrays[lane];
      array.resize(kind % 2 == 0 ? 1 + size % 200 : some(30'000, size));
      for (size_t i = 0; i < array.size(); ++i) {
        array[i] = static_cast<float>((i * 7 + rank * 13 + number * 3 + joined) % 61);
      }
      calls::Call call;
      call.name = concat("lane ", lane, ", ", number % 3);
      call.what = wire::AllReduce{{kind % 3 == 0 ? ReduceOp::kAverage : ReduceOp::kSum}};
      if (number == 0 && kind % 5 == 0) call.what = wire::AllGather{};  // all ranks make it
      char* const data = reinterpret_cast<char*>(array.data());
      const bool in_place = wire::is<wire::AllReduce>(call.what);
      call.buffers = {{{DType::kFloat32, {array.size()}}, data, in_place ? data : nullptr}};
      submit(std::move(call), concat(rank, ".", joined, ".", lane, ".", number),
             [=, this] { make(lane, number + 1); }, &array);
      if (number + 1 == calls && --to_begin == 0) join();
    }

    void join() {
      calls::Call call;
      call.name = wire::kJoinName;
      call.what = wire::Join{};
      submit(std::move(call), concat(rank, ".", joined, ".join"), [this] { over(); }, nullptr);
    }

    void submit(calls::Call call, const std::string& name, std::function<void()> then,
                const std::vector<float>* array) {
      auto submitted = job.cores_[rank]->calls().submit(std::move(call), false);
      ASSERT_TRUE(submitted.ok()) << submitted.status().message();
      const std::shared_ptr<calls::Operation> one = *submitted;
      one->then(engine::Where::kEngine, [=, this, then = std::move(then)] {
        std::string& result = job.results_[name] = one->status().to_string();
        if (one->result) {
          result.append(one->result.get(), one->result_bytes);
        } else if (array != nullptr) {
          result.append(reinterpret_cast<const char*>(array->data()),
                        array->size() * sizeof(float));
        } else if (one->status().ok()) {
          result += concat(" ", one->counts.at(0), " was last");
        }
        then();
      });
    }

    void over() {
      if (--in_flight > 0) return;
      ++joined;
      begin();
    }
  };

  const Plan plan_;
  std::vector<std::shared_ptr<engine::Group>> groups_;  // by rank
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;  // of groups, by lane and call
  std::set<uint32_t> given_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Uneven>> uneven_;  // by rank
  Nanos end_ = 0;
  std::map<std::string, std::string> results_;
  size_t running_ = 0;
};

}  // namespace herring::simulate::names
