// A job of four ranks whose reports a test makes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "observe/monitor.h"

namespace herring::observe {

inline Roster roster_of(uint32_t ranks, uint32_t servers) {
  Roster roster;
  roster.job = "test";
  roster.nodes = ranks;
  for (uint32_t i = 0; i < ranks; ++i) {
    roster.ranks.push_back({concat("host", i), i, 100 + i, concat("10.0.0.", i)});
  }
  for (uint32_t i = 0; i < servers; ++i) {
    roster.servers.push_back({concat("server", i), true, ~0u, 200 + i, 1.0 / servers,
                              concat("10.0.1.", i)});
  }
  return roster;
}

// A job whose ranks report each second, ten rounds in each report.
class MonitorTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kRanks = 4;

  MonitorTest() : monitor(roster_of(kRanks, 2), options(), now) {}

  static Monitor::Options options() {
    Monitor::Options options;
    options.report_every = 5 * kSecond;
    return options;
  }

  // All ranks run for a second, each with its work per round.
  void second() {
    for (int i = 0; i < 10; ++i) round_of_all();
    tell();
  }

  void round_of_all() {
    Nanos last = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      last = std::max(last, before[rank] + work[rank]);
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      RoundSample sample;
      sample.round = round;
      sample.before = sample.called = before[rank];
      sample.ready = before[rank] + work[rank];
      sample.pushed = last + tail / 2;
      sample.done = before[rank] = last + tail + pull[rank];
      sample.waited = sample.done - sample.ready;
      sample.bytes = 1000000;
      reports[rank].samples.push_back(sample);
    }
    ++round;
  }

  void tell() {
    now += kSecond;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Report& report = reports[rank];
      report.offset_error = 0;
      report.rounds = round;
      if (!silent[rank]) monitor.report({false, rank}, report, now);
      report.samples.clear();
    }
    for (uint32_t server = 0; server < 2; ++server) {
      monitor.report({true, server}, server_reports[server], now);
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      monitor.heard({false, rank}, silent[rank] ? 0 : now, unreachable[rank] ? 0 : now);
    }
    for (uint32_t server = 0; server < 2; ++server) monitor.heard({true, server}, now, now);
    monitor.tick(now);
  }

  Nanos now = 1000 * kSecond;
  Monitor monitor;
  std::vector<Report> reports = std::vector<Report>(kRanks);
  std::vector<Report> server_reports = std::vector<Report>(2);
  std::vector<Nanos> work = std::vector<Nanos>(kRanks, 90 * kMillisecond);
  std::vector<Nanos> before = std::vector<Nanos>(kRanks, 1000 * kSecond);
  std::vector<Nanos> pull = std::vector<Nanos>(kRanks);  // by how much results reach a rank later
  std::vector<bool> silent = std::vector<bool>(kRanks), unreachable = std::vector<bool>(kRanks);
  Nanos tail = 10 * kMillisecond;
  uint32_t round = 0;
};

}  // namespace herring::observe
