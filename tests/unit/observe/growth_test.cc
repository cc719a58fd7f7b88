// What the rendezvous keeps of a job stays small however long the job runs, and what it does for a
// large job stays short.
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include "observe/monitor.h"
#include "observe/recorder.h"
#include "observe/sampler.h"

namespace herring::observe {
namespace {

Roster large_roster(uint32_t ranks, uint32_t servers) {
  Roster roster;
  roster.job = "test";
  roster.nodes = std::max(ranks / 8, 1u);
  for (uint32_t i = 0; i < ranks; ++i) roster.ranks.push_back({concat("host", i / 8), i / 8, i});
  for (uint32_t i = 0; i < servers; ++i) roster.servers.push_back({concat("s", i), true, 0, i, 1});
  return roster;
}

size_t used() { return mallinfo2().uordblks; }  // 0 with the allocator of a sanitizer

// A worker that runs three rounds a second, and reports each second.
struct Worker {
  Recorder recorder;
  Sampler sampler;
  uint64_t cursor = 0;
  uint32_t round = 0;

  Report report(Nanos now, uint32_t rank) {
    for (int i = 0; i < 3; ++i, ++round) {
      const Nanos begin = now - kSecond + i * 300 * kMillisecond;
      Entry entry;
      entry.kind = Kind::kRound;
      entry.round = round;
      entry.set_name("net");
      Entry buffer = entry;
      buffer.kind = Kind::kBuffer;
      const uint64_t id = recorder.begin(entry), part = recorder.begin(buffer);
      recorder.mark(id, Moment::kCalled, begin);
      recorder.mark(id, Moment::kReady, begin + (50 + 20 * (rank == 3)) * kMillisecond);
      recorder.mark(part, Moment::kDone, begin + 90 * kMillisecond);
      recorder.end(part, begin + 90 * kMillisecond);
      recorder.mark(id, Moment::kDone, begin + 90 * kMillisecond);
      recorder.end(id, begin + 90 * kMillisecond);
    }
    Report report;
    report.offset_error = 0;
    report.rounds = round;
    recorder.each_ended(cursor, [this](const Entry& ended) { sampler.add(ended); });
    report.samples = sampler.take();
    report.stack = concat("train.py:", now / kSecond % 1000, " in step");
    report.cause = concat("cause", now / kSecond % 100);
    report.paths.resize(2);
    return report;
  }
};

TEST(Growth, ADayOfAJobKeepsMemoryBounded) {
  constexpr uint32_t kRanks = 8;
  Monitor monitor(large_roster(kRanks, 2), {}, 0);
  std::vector<Worker> workers(kRanks);
  size_t after_an_hour = 0, lines = 0;
  constexpr int kHour = 3600;
  for (int second = 1; second <= 24 * kHour; ++second) {
    const Nanos now = second * kSecond;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      monitor.heard({false, rank}, now, now);
      monitor.report({false, rank}, workers[rank].report(now, rank), now);
    }
    for (uint32_t server = 0; server < 2; ++server) {
      Report report;
      for (uint32_t rank = 0; rank < kRanks; ++rank) report.lateness.push_back({rank, {}});
      report.missing.push_back({concat("'x", second, "'"), kSecond, {1}});
      monitor.heard({true, server}, now, now);
      monitor.report({true, server}, std::move(report), now);
    }
    monitor.tick(now);
    lines += monitor.due_lines(now).size();
    if (second == kHour) after_an_hour = used();
  }
  EXPECT_GT(lines, 0u);
  EXPECT_LT(used(), after_an_hour + 200'000) << "bytes after an hour: " << after_an_hour;
}

TEST(Growth, ProcessesThatAreGoneKeepLittle) {
  if (used() == 0) GTEST_SKIP() << "nothing counts the memory";
  Monitor monitor(large_roster(64, 8), {}, 0);
  const auto run = [&](int from, int to) {
    for (int second = from; second < to; ++second) {
      for (uint32_t server = 0; server < 8; ++server) {
        Report report;
        report.paths.resize(64);
        for (uint32_t rank = 0; rank < 64; ++rank) report.lateness.push_back({rank, {}});
        monitor.report({true, server}, std::move(report), second * kSecond);
      }
    }
  };
  const size_t before = used();
  run(1, 60);
  const size_t kept = used() - before;
  for (uint32_t server = 0; server < 8; ++server) monitor.gone({true, server}, false);
  EXPECT_LT(used() - before, kept / 5);
}

// Returns how long this thread has had a processor, which others on the machine do not change.
Nanos processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// In a job of 1000 ranks, nothing on the thread of the rendezvous may hold heartbeats up.
TEST(Growth, ALargeJobIsLookedAtQuickly) {
  constexpr uint32_t kRanks = 1000, kServers = 125;
  Monitor monitor(large_roster(kRanks, kServers), {}, 0);
  std::vector<Worker> workers(kRanks);
  const auto time = [](const char* what, const auto& call) {
    const Nanos begin = processor_time();
    call();
    const Nanos took = processor_time() - begin;
    std::printf("%s: %.1f ms\n", what, static_cast<double>(took) * 1e-6);
    return took;
  };
  Nanos reports = 0, ticks = 0;
  constexpr int kSeconds = 15;
  for (int second = 1; second <= kSeconds; ++second) {
    const Nanos now = second * kSecond;
    std::vector<Report> all;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      all.push_back(workers[rank].report(now, rank % 10));
      all.back().paths.resize(kServers);
      all.back().resources.major_faults = static_cast<uint64_t>(second) * rank;
      all.back().resources.run_delay = second * kSecond / 2;
    }
    const Nanos begin = processor_time();
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      monitor.heard({false, rank}, now, now);
      monitor.report({false, rank}, std::move(all[rank]), now);
    }
    for (uint32_t server = 0; server < kServers; ++server) {
      Report report;
      report.paths.resize(kRanks);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        report.lateness.push_back({rank, {static_cast<uint64_t>(second), 0, 0, 100, 1, 0}});
      }
      monitor.heard({true, server}, now, now);
      monitor.report({true, server}, std::move(report), now);
    }
    reports += processor_time() - begin;
    ticks += time("tick", [&] { monitor.tick(now); });
  }
  std::printf("reports of a second: %.1f ms\n", static_cast<double>(reports) * 1e-6 / kSeconds);
  const Nanos now = kSeconds * kSecond;
  Picture picture;
  const Nanos made = time("picture", [&] { picture = monitor.picture(now); });
  time("texts", [&] { static_cast<void>(monitor.rank_texts(now)); });
  time("JSON", [&] { static_cast<void>(as_json(picture)); });
  time("metrics", [&] { static_cast<void>(as_metrics(picture)); });
  // Far above what is measured, for slow and busy machines.
  EXPECT_GT(picture.compared, 0u);
  EXPECT_LT(made, kSecond);
  EXPECT_LT(ticks / kSeconds, kSecond / 2);
}

}  // namespace
}  // namespace herring::observe
