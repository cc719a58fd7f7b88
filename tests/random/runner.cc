#include "tests/random/runner.h"

#include <sys/fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "job/dedicated.h"
#include "tests/random/program.h"
#include "tests/random/rank.h"
#include "transport/tcp/socket.h"

namespace herring::random_test {
namespace {

constexpr const char* kSecret = "a random program's secret";

// Runs the jobs of one seed. Its ranks and dedicated servers go through the generations at their
// own pace.
class JobRun {
 public:
  explicit JobRun(const JobPlan& plan)
      : plan_(plan), seed_(std::to_string(plan.seed)),
        layout_(make_layout(plan.seed, plan.features)) {
    auto settings =
        Settings::load(layout_.settings, [](const char*) -> const char* { return nullptr; });
    if (!settings.ok()) fail(seed_, settings.status().to_string());
    settings_ = *settings;
    auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 128);
    if (!listener.ok()) fail(seed_, listener.status().to_string());
    listener_ = std::move(*listener);
    address_ = transport::tcp::local_address(listener_.get())->to_string();
  }

  Tally run() {
    if (plan_.verbose) std::fprintf(stderr, "seed %s: %s\n", seed_.c_str(),
                                    layout_.describe().c_str());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < layout_.size; ++rank) {
      threads.emplace_back([this, rank] { run_rank(rank); });
    }
    for (uint32_t server = 0; server < layout_.dedicated; ++server) {
      threads.emplace_back([this, server] { run_server(server); });
    }
    for (std::thread& thread : threads) thread.join();
    tally_.jobs = layout_.generations;
    return tally_;
  }

 private:
  // Returns the first program of a generation. Only the last program of a generation may end the
  // job.
  uint32_t first_of(uint32_t generation) const {
    return generation * plan_.programs / layout_.generations;
  }

  std::shared_ptr<RunningProgram> program(uint32_t index, bool may_end) {
    std::lock_guard lock(mutex_);
    auto found = programs_[index].lock();
    if (found == nullptr) {
      found = std::make_shared<RunningProgram>(
          make_program(plan_.seed, index, layout_, plan_.features, may_end), layout_.size);
      programs_[index] = found;
      ++tally_.programs;
      if (plan_.verbose) {
        std::fprintf(stderr, "program %u: ending %d of rank %u\n", index,
                     static_cast<int>((*found)->ending), (*found)->ending_rank);
        for (const Step& step : (*found)->steps) {
          std::fprintf(stderr, "  %s\n", step.describe().c_str());
        }
      }
    }
    return found;
  }

  void run_rank(uint32_t rank) {
    Doing doing(seed_, concat("rank ", rank));
    for (uint32_t generation = 0; generation < layout_.generations; ++generation) {
      doing.now("starts a job");
      job::JobOptions options;
      options.rank = rank;
      options.size = layout_.size;
      options.dedicated_servers = layout_.dedicated;
      options.rendezvous = address_;
      if (rank == 0) options.rendezvous_fd = ::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0);
      options.host_id = concat("node ", layout_.node_of[rank]);
      options.secret = kSecret;
      options.settings = settings_;
      auto job = job::Job::start(std::move(options));
      if (!job.ok()) {
        fail(seed_, concat("rank ", rank, " cannot start job ", generation, ": ",
                           job.status().to_string()));
      }
      Rank one(seed_, layout_, plan_.features, rank, std::move(*job));
      for (uint32_t p = first_of(generation); p < first_of(generation + 1); ++p) {
        if (plan_.only >= 0 && p != static_cast<uint32_t>(plan_.only)) continue;
        const auto running = program(p, p + 1 == first_of(generation + 1));
        one.run(running, doing);
        if ((*running)->ending != Ending::kNone) break;
      }
      one.leave(doing);
      std::lock_guard lock(mutex_);
      tally_.calls += one.calls();
      tally_.errors += one.errors();
    }
  }

  void run_server(uint32_t server) {
    Doing doing(seed_, concat("server ", server));
    for (uint32_t generation = 0; generation < layout_.generations; ++generation) {
      // The server runs for as long as its job does. A hang in it shows in the ranks that wait.
      doing.rests("serves a job");
      const Status status = job::run_dedicated_server(address_, kSecret, settings_);
      if (!status.ok() && status.code() != Code::kPeerLost) {
        fail(seed_, concat("server ", server, ": ", status.to_string()));
      }
    }
  }

  const JobPlan plan_;
  const std::string seed_;
  const Layout layout_;
  Settings settings_;
  GuardedFd listener_;
  std::string address_;
  std::mutex mutex_;
  std::map<uint32_t, std::weak_ptr<RunningProgram>> programs_;  // guarded by mutex_
  Tally tally_;                                                 // guarded by mutex_
};

}  // namespace

Tally run_job(const JobPlan& plan) { return JobRun(plan).run(); }

}  // namespace herring::random_test
