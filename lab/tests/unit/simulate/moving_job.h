// A job of several ranks in virtual time whose servers die and come back. Tests derive what the
// ranks do.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "control/assembly.h"
#include "job/options.h"
#include "server/server.h"
#include "virtual/simulation.h"
#include "virtual/transport.h"
#include "worker/engine_core.h"

namespace herring::simulate {

using transport::virtual_time::Simulation;
using transport::virtual_time::SimulationOptions;
using transport::virtual_time::VirtualTransport;
using worker::EngineCore;

inline constexpr uint32_t kServers = 4;
inline constexpr Nanos kPatience = 100 * kSecond;  // of virtual time

inline const transport::Credentials& credentials() {
  static const transport::Credentials one{"virtual", wire::job_id("moving")};
  return one;
}

// What happens to servers.
struct Course {
  uint32_t ranks = 3;
  struct Change {
    Nanos when;
    uint32_t server;
    bool returns = false;  // a replacement has come; otherwise the server dies
  };
  std::vector<Change> changes;
  Nanos news = 2 * kMillisecond;  // the longest time until a process hears of a change
};

// Adds deaths of `count` servers in turn, the first at `when`. The others may come before all ranks
// have heard of the last one.
inline void add_deaths(Course& course, std::mt19937_64& random, Nanos when, uint32_t count) {
  const auto first = static_cast<uint32_t>(random() % kServers);
  for (uint32_t i = 0; i < count; ++i) {
    course.changes.push_back({when, (first + i) % kServers});
    when += 1 + static_cast<Nanos>(random() % (kMillisecond << random() % 4));
  }
}

class MovingJob {
 public:
  MovingJob(Course course, uint64_t seed)
      : course_(std::move(course)), seed_(seed), chance_(seed + 1),
        simulation_(options_of(course_, seed)) {
    std::mt19937_64 random(seed);
    transport::virtual_time::Network& network = simulation_.network();
    for (size_t a = 0; a < network.hosts(); ++a) {
      for (size_t b = 0; b < network.hosts(); ++b) {
        const Nanos delay = 10 * kMicrosecond << random() % 6;  // some ranks hear much later
        network.set_path(a, b, {delay, delay / 2, 0});
      }
    }
    set_up();
  }

  ~MovingJob() {
    for (auto& core : cores_) {
      core->core().ending.fail_now({Code::kShutdown, "the test is over"}, true);
    }
    for (auto& core : cores_) core->core().loop->join();
    for (auto& server : servers_) server->stop();
    for (auto& server : dead_) server->stop();
  }

  int cannot_move = 0;

 protected:
  void schedule_changes() {
    for (const Course::Change& change : course_.changes) {
      simulation_.call_at(start_ + change.when, [this, change] {
        change.returns ? replace(change.server) : lose(change.server);
      });
    }
  }

  // The rendezvous of the job. Each process hears its news in their order, and some late.
  void tell(size_t host, std::function<void()> news_comes) {
    Nanos& told = told_[host];
    told = std::max(told, simulation_.now() + news()) + 1;
    simulation_.call_at(told, std::move(news_comes));
  }
  void tell_ranks(const std::function<void(EngineCore&, uint32_t rank)>& hear) {
    for (uint32_t rank = 0; rank < course_.ranks; ++rank) {
      tell(rank, [this, rank, hear] {
        cores_[rank]->core().loop->post([this, rank, hear] { hear(*cores_[rank], rank); });
      });
    }
  }
  void tell_servers() {
    for (uint32_t server = 0; server < kServers; ++server) {
      tell(course_.ranks + server, [this, server, set = set_] {
        if (set.has(server)) servers_[server]->serve(set);
      });
    }
  }

  Nanos news() { return static_cast<Nanos>(chance_() % static_cast<uint64_t>(course_.news)); }

  // The last server stays.
  void lose(uint32_t server) {
    if (!set_.has(server) || std::ranges::count(set_.serving, true) == 1) return;
    set_.lose(server);
    cut_off(server);
    tell_servers();
    tell_ranks([this, set = set_](EngineCore& core, uint32_t) {
      const bool moves = core.core().links->can_move() &&
                         std::ranges::all_of(core.core().carriers, [&set](const auto* carrier) {
                           return carrier->can_move(set);
                         });
      if (!moves) ++cannot_move;
      core.core().groups.serve(set);
    });
  }

  // Its answers still reach some ranks for a while, and some ranks still reach it.
  void cut_off(uint32_t server) {
    for (uint32_t rank = 0; rank < course_.ranks; ++rank) {
      for (const bool answers : {false, true}) {
        const Nanos later = chance_() % 2 == 0 ? 0 : news();
        simulation_.call_at(simulation_.now() + later,
                            [this, server, rank, answers, number = numbers_[server]] {
                              if (number != numbers_[server]) return;  // it is replaced
                              set_paths(server, rank, answers, {kMillisecond, 0, 1});
                            });
      }
    }
  }

  void set_paths(uint32_t server, uint32_t rank, bool answers,
                 const transport::virtual_time::PathSettings& path) {
    const size_t host = course_.ranks + server;
    simulation_.network().set_path(answers ? host : rank, answers ? rank : host, path);
  }

  void replace(uint32_t server) {
    if (set_.has(server)) return;
    for (uint32_t rank = 0; rank < course_.ranks; ++rank) {
      for (const bool answers : {false, true}) {
        set_paths(server, rank, answers, {50 * kMicrosecond, 0, 0});
      }
    }
    dead_.push_back(std::move(servers_[server]));
    start_server(server);
    servers_[server]->attach(cluster_, server, plane_);
    servers_[server]->serve(set_);
    control::Replacement news{control::Replacement::Stage::kComing, server, ++numbers_[server],
                              servers_[server]->address().to_string(), set_.epoch, set_.serving};
    ready_[server] = 0;
    tell_ranks([news](EngineCore& core, uint32_t) { core.coming_servers().server_news(news); });
  }

  // It serves when all ranks are ready for it.
  void ready(uint32_t server) {
    if (++ready_[server] < course_.ranks) return;
    set_.add(server);
    tell_servers();
    tell_ranks([news = control::Replacement{control::Replacement::Stage::kServes, server,
                                            numbers_[server],
                                            servers_[server]->address().to_string(), set_.epoch,
                                            set_.serving}](EngineCore& core, uint32_t) {
      core.coming_servers().server_news(news);
    });
  }

  void start_server(uint32_t index) {
    VirtualTransport& at = *transports_[course_.ranks + index];
    auto server = server::Server::start({at.address(), 0, credentials()}, at);
    ASSERT_TRUE(server.ok());
    servers_[index] = std::move(*server);
  }

  void set_up() {
    for (size_t host = 0; host < simulation_.options().hosts; ++host) {
      transports_.push_back(std::make_unique<VirtualTransport>(simulation_, host));
    }
    auto settings = Settings::load({{"failover", "true"},
                                    {"small_bytes", "1KiB"},
                                    {"segment_bytes", "1KiB"},
                                    // With several flows, large all-reduces are made again.
                                    {"flows", std::to_string(1 + seed_ / 8 % 2)},
                                    {"credit_max", std::to_string(4096 << seed_ % 8)}},
                                   [](const char*) -> const char* { return nullptr; });
    ASSERT_TRUE(settings.ok());
    std::vector<control::RegisteredWorker> workers(course_.ranks);
    for (uint32_t rank = 0; rank < course_.ranks; ++rank) {
      control::WorkerRegistration& registration = workers[rank].registration;
      registration.rank = rank;
      registration.size = course_.ranks;
      registration.dedicated_servers = kServers;
      registration.host_id = workers[rank].host = transports_[rank]->address();
      registration.settings = job::shared_settings(*settings);
    }
    ASSERT_TRUE(control::assemble(workers).move_to(cluster_).ok());
    cluster_.incarnation = 1;
    servers_.resize(kServers);
    for (uint32_t i = 0; i < kServers; ++i) {
      start_server(i);
      cluster_.servers.push_back({i, true, ~0u, servers_[i]->address().to_string(), 1.0});
    }
    plane_ = job::data_plane(*settings, cluster_, {4});
    for (uint32_t i = 0; i < kServers; ++i) servers_[i]->attach(cluster_, i, plane_);
    for (uint32_t rank = 0; rank < course_.ranks; ++rank) {
      auto doors = job::doors_of(cluster_, rank, plane_.flows);
      ASSERT_TRUE(doors.ok());
      std::vector<worker::ServerFlow> flows;
      for (const job::Door& door : *doors) {
        auto connection = transports_[rank]->connect_now(door.address, door.hello, credentials());
        ASSERT_TRUE(connection.ok());
        flows.push_back({door.server, std::move(*connection)});
      }
      auto bus = LocalBus::listen();
      ASSERT_TRUE(bus.ok());
      ASSERT_TRUE((*bus)->connect(0, {(*bus)->address()}, monotonic_now() + kSecond).ok());
      engine::EngineOptions engine = job::engine_options(cluster_, rank, plane_, *settings);
      engine.mesh.host = transports_[rank]->address();
      engine.mesh.credentials = credentials();
      engine.observe = false;
      engine.report_server = [this](uint32_t server, uint32_t, bool reachable,
                                    const std::string&) {
        EXPECT_TRUE(reachable);
        simulation_.call_at(simulation_.now() + 1 + news(), [this, server] { ready(server); });
      };
      cores_.push_back(std::make_unique<EngineCore>(cluster_, engine, *transports_[rank],
                                                    std::move(*bus), std::move(flows)));
    }
  }

  static SimulationOptions options_of(const Course& course, uint64_t seed) {
    SimulationOptions options;
    options.hosts = course.ranks + kServers;
    options.seed = seed;
    return options;
  }

  const Course course_;
  const uint64_t seed_;
  std::mt19937_64 chance_;
  Simulation simulation_;
  std::vector<std::unique_ptr<VirtualTransport>> transports_;  // by host
  control::Cluster cluster_;
  server::DataPlaneOptions plane_;
  std::vector<std::unique_ptr<server::Server>> servers_, dead_;
  std::vector<std::unique_ptr<EngineCore>> cores_;
  Nanos start_ = 0;

  control::ServerSet set_ = control::ServerSet::all(kServers);
  std::map<size_t, Nanos> told_;  // by host: when it hears of the last change
  // By server: replacements so far, and how many ranks are ready for the one that comes.
  std::array<uint32_t, kServers> numbers_{}, ready_{};
};

}  // namespace herring::simulate
