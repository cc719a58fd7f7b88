#include "simulate/coarse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace herring::simulate {
namespace {

constexpr double kMbit = 1e6;

struct EqualHosts {
  uint64_t hosts = 4;
  double rate = 200 * kMbit, delay = 50e-6, buffer = 500e3, loss = 0;  // delay is one way
  uint32_t mtu = 9000;
};

Scenario scenario_of(const EqualHosts& network, uint64_t window = 0) {
  Port port;
  port.up = port.down = network.rate;
  port.rtt = network.delay;
  port.buffer = network.buffer;
  port.loss = network.loss;
  port.mtu = network.mtu;
  const Costs costs{1e-6, 1e-10, 2e-6, 1};
  Scenario scenario;
  scenario.hosts.push_back({network.hosts, 1, port, costs});
  scenario.servers.push_back({network.hosts, 0, false, 0, port, costs});
  scenario.size = 12'500'000;
  scenario.noise = 0;
  scenario.credit = window;
  return scenario;
}

Outcome outcome_of(const Scenario& scenario, uint64_t rounds = 5, uint64_t seed = 1) {
  auto outcome = run(scenario, rounds, seed);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return outcome.ok() ? *outcome : Outcome{};
}

double seconds_of(const Scenario& scenario, uint64_t rounds = 5, uint64_t seed = 1) {
  double sum = 0;
  const Outcome outcome = outcome_of(scenario, rounds, seed);
  for (const Round& round : outcome.rounds) sum += round.seconds;
  return sum / static_cast<double>(outcome.rounds.size());
}

TEST(Coarse, AWindowIsTurnedAroundOncePerResponse) {
  const Scenario scenario = scenario_of({.delay = 5e-3}, 8192);
  // One segment is a packet of 8 KiB, 32 bytes of frame header and 90 of packet headers. Four go
  // there, and four come back.
  const double set = 4 * 8 * (8192 + 32 + 90) / (200 * kMbit);
  const double response = 10e-3 + 2 * set;
  const double turns = 12'500'000 / 4 / 8192.0;
  EXPECT_NEAR(seconds_of(scenario), turns * response, 0.01 * turns * response);
}

TEST(Coarse, AFullLinkIsTheLimit) {
  const Outcome outcome = outcome_of(scenario_of({}, 64 << 10));
  EXPECT_NEAR(outcome.limit, 0.5, 1e-9);
  EXPECT_NEAR(outcome.wire_limit, 0.505, 0.001);
  for (const Round& round : outcome.rounds) {
    EXPECT_GT(round.seconds, outcome.wire_limit);
    EXPECT_LT(round.seconds, 1.06 * outcome.limit);
  }
}

// Compares with medians of the lab's strict links, see lab/docs/simulate.md.
TEST(Coarse, IsCloseToTheLab) {
  const struct {
    double delay;
    uint64_t window;
    double seconds;
  } figures[] = {{50e-6, 8, 1.03},  {50e-6, 16, 0.54}, {50e-6, 32, 0.52}, {200e-6, 16, 0.59},
                 {200e-6, 32, 0.54}, {500e-6, 8, 1.39}, {500e-6, 16, 0.71}, {500e-6, 64, 0.53},
                 {5e-3, 8, 4.86},   {5e-3, 16, 2.44},  {5e-3, 64, 0.91}};
  for (const auto& [delay, window, seconds] : figures) {
    // With more frames in a window, results can only come sooner.
    const double model = seconds_of(scenario_of({.delay = delay}, window << 10));
    EXPECT_LT(model, 1.1 * seconds) << delay << " " << window;
    if (window <= 16) {
      EXPECT_GT(model, 0.9 * seconds) << delay << " " << window;
    }
  }
}

TEST(Coarse, OneClassIsAsGoodAsTwoThatAreAlike) {
  Scenario one = scenario_of({.hosts = 6, .delay = 1e-3}, 16 << 10);
  Scenario two = one;
  two.hosts = {one.hosts[0], one.hosts[0]};
  two.hosts[0].count = 2;
  two.hosts[1].count = 4;
  two.servers = {one.servers[0], one.servers[0]};
  two.servers[0].count = 5;
  two.servers[1].count = 1;
  const double response = seconds_of(one);
  EXPECT_NEAR(seconds_of(two), response, 0.05 * response);
  two.servers = one.servers;
  EXPECT_NEAR(seconds_of(two), response, 1e-6);
}

TEST(Coarse, TheSlowestNodeSetsThePace) {
  Scenario scenario = scenario_of({.hosts = 8}, 64 << 10);
  const double all_fast = seconds_of(scenario);
  scenario.hosts.push_back(scenario.hosts[0]);
  scenario.hosts[0].count = 7;
  scenario.hosts[1].count = 1;
  scenario.hosts[1].port.up = 100 * kMbit;
  EXPECT_GT(seconds_of(scenario), 1.9 * all_fast);
}

TEST(Coarse, WeightsOfServersMakeLinksEquallyBusy) {
  for (const uint64_t dedicated : {0, 2, 5, 8}) {
    Scenario scenario = scenario_of({.hosts = 8, .buffer = 2e6}, 32 << 10);
    ServerClass server = scenario.servers[0];
    scenario.servers.clear();
    server.count = dedicated;
    if (dedicated > 0) scenario.servers.push_back(server);
    server.count = 8;
    server.colocated = true;
    if (dedicated < 8) scenario.servers.push_back(server);
    // docs/extend/internals.md: 2n(n-1)M / ((n^2+kn-2k)B), and M/B with as many servers as nodes.
    const double n = 8, k = dedicated;
    const double expected = k == 8 ? 0.5 : 0.5 * 2 * n * (n - 1) / (n * n + k * n - 2 * k);
    const Outcome outcome = outcome_of(scenario);
    EXPECT_NEAR(outcome.limit, expected, 1e-6) << dedicated;
    EXPECT_LT(outcome.rounds[0].seconds, 1.15 * expected) << dedicated;
  }
}

TEST(Coarse, AnOverrunPortCollapses) {
  const EqualHosts shallow{.hosts = 16, .rate = 100 * kMbit, .buffer = 250e3};
  const double fits = seconds_of(scenario_of(shallow, 16 << 10));
  EXPECT_LT(fits, 1.1);
  EXPECT_GT(seconds_of(scenario_of(shallow, 64 << 10)), 2 * fits);
  const Outcome outcome = outcome_of(scenario_of(shallow, 64 << 10));
  EXPECT_EQ(outcome.rounds[0].bound, Bound::kLoss);
  EXPECT_GT(outcome.rounds[0].timeouts, 0u);
}

TEST(Coarse, LossCostsTimeOutsWhereWindowsAreSmall) {
  const EqualHosts lossy{.delay = 500e-6, .loss = 0.5e-3};
  const EqualHosts clean{.delay = 500e-6};
  EXPECT_GT(seconds_of(scenario_of(lossy, 8 << 10), 20),
            1.3 * seconds_of(scenario_of(clean, 8 << 10), 20));
  EXPECT_LT(seconds_of(scenario_of(lossy, 128 << 10), 20),
            seconds_of(scenario_of(lossy, 8 << 10), 20));
}

TEST(Coarse, TheRealControllerFindsTheWindow) {
  const Scenario scenario = scenario_of({.delay = 5e-3});
  const Outcome outcome = outcome_of(scenario, 25);
  const double first = outcome.rounds.front().seconds, last = outcome.rounds.back().seconds;
  EXPECT_LT(last, first);
  EXPECT_GT(outcome.rounds.back().window, 8192u);
}

TEST(Coarse, ProcessorsAreALimitToo) {
  Scenario scenario = scenario_of({.rate = 1e12}, 64 << 10);
  scenario.hosts[0].costs.byte = 1e-9;
  const double own = seconds_of(scenario);
  EXPECT_GT(own, 2 * 12.5e6 * 1e-9);
  EXPECT_EQ(outcome_of(scenario).rounds[0].bound, Bound::kProcessor);
  scenario.shared_cores = 2;
  EXPECT_GT(seconds_of(scenario), 1.5 * own);
}

TEST(Coarse, IsDeterministicBySeed) {
  Scenario scenario = scenario_of({.delay = 1e-3, .loss = 1e-3});
  scenario.noise = 0.03;
  const Outcome one = outcome_of(scenario, 10, 7), same = outcome_of(scenario, 10, 7),
                other = outcome_of(scenario, 10, 8);
  ASSERT_EQ(one.rounds.size(), same.rounds.size());
  for (size_t i = 0; i < one.rounds.size(); ++i) {
    EXPECT_EQ(one.rounds[i].seconds, same.rounds[i].seconds);
    EXPECT_EQ(one.rounds[i].losses, same.rounds[i].losses);
  }
  EXPECT_NE(one.rounds.back().seconds, other.rounds.back().seconds);
}

TEST(Coarse, IsNeverFasterThanTheLinks) {
  std::mt19937 random(5);
  const auto draw = [&](double least, double most) {
    return std::exp(std::uniform_real_distribution<>(std::log(least), std::log(most))(random));
  };
  for (int i = 0; i < 200; ++i) {
    EqualHosts network;
    network.hosts = static_cast<uint64_t>(draw(2, 512));
    network.rate = draw(1e8, 4e11);
    network.delay = draw(2e-6, 0.05);
    network.buffer = 10e3 * static_cast<double>(network.hosts) + draw(1e4, 1e8);
    network.mtu = i % 2 == 0 ? 1500 : 9000;
    const Outcome outcome = outcome_of(scenario_of(network, 8192 << (i % 8)), 2);
    for (const Round& round : outcome.rounds) {
      EXPECT_GT(round.seconds, 0.999 * outcome.limit) << i;
    }
  }
}

// With 100,000 workers, the cost of a step depends on the number of classes, and the number of
// steps on time. Neither depends on the number of hosts.
TEST(Coarse, TwelveThousandNodesTakeNoMoreStepsThanAFew) {
  EqualHosts network{.hosts = 12'500, .rate = 100e9, .delay = 25e-6, .buffer = 1e9};
  Scenario scenario = scenario_of(network);
  scenario.hosts[0].workers = 8;
  scenario.size = 1'300'000'000;  // about that of BERT-large in float32
  scenario.noise = 0.01;
  EXPECT_LT(outcome_of(scenario, 25).steps, 200'000u);
  // One node is slow.
  scenario.hosts.push_back(scenario.hosts[0]);
  scenario.hosts[0].count -= 1;
  scenario.hosts[1].count = 1;
  scenario.hosts[1].port.up = 25e9;
  EXPECT_LT(outcome_of(scenario, 25).steps, 400'000u);
}

TEST(Coarse, NamesWhatIsImpossible) {
  const struct {
    const char* named;
    std::function<void(Scenario&)> spoil;
  } cases[] = {
      {"hosts[0].up = -1", [](Scenario& s) { s.hosts[0].port.up = -1; }},
      {"hosts[0].loss = 0.9", [](Scenario& s) { s.hosts[0].port.loss = 0.9; }},
      {"hosts[0].mtu = 100", [](Scenario& s) { s.hosts[0].port.mtu = 100; }},
      {"hosts[0].count = 0", [](Scenario& s) { s.hosts[0].count = 0; }},
      {"hosts[0].costs.cores = 0", [](Scenario& s) { s.hosts[0].costs.cores = 0; }},
      {"servers[0].rtt = nan", [](Scenario& s) { s.servers[0].port.rtt = std::nan(""); }},
      {"servers[0].count = 0", [](Scenario& s) { s.servers[0].count = 0; }},
      {"classes of servers", [](Scenario& s) { s.servers.clear(); }},
      {"4 colocated ones run, not 0", [](Scenario& s) { s.servers[0].count = 3; }},
      {"servers[0].host = 3", [](Scenario& s) { s.servers[0].colocated = true,
                                                s.servers[0].host = 3; }},
      {"nodes = 1", [](Scenario& s) { s.hosts[0].count = 1; }},
      {"size = 0", [](Scenario& s) { s.size = 0; }},
      {"noise = 2", [](Scenario& s) { s.noise = 2; }},
      {"credit = 100", [](Scenario& s) { s.credit = 100; }},
      {"segment_bytes = 1000", [](Scenario& s) { s.segment_bytes = 1000; }},
      {"frame_max = 1", [](Scenario& s) { s.frame_max = 1; }},
  };
  for (const auto& [named, spoil] : cases) {
    Scenario scenario = scenario_of({});
    spoil(scenario);
    const auto outcome = run(scenario, 1, 1);
    ASSERT_FALSE(outcome.ok()) << named;
    EXPECT_NE(outcome.status().message().find(named), std::string::npos)
        << outcome.status().message();
  }
  EXPECT_FALSE(run(scenario_of({}), 0, 1).ok());
  EXPECT_FALSE(run(scenario_of({}), 1, 1, -1).ok());
}

}  // namespace
}  // namespace herring::simulate
