// Runs jobs in which one connection breaks, which job.h describes.
//   broken_connections --jobs=200 --parallel=4            seeds 1 to 200
//   broken_connections --seed=17 --verbose                repeats one job
//   broken_connections --kinds=cut,drop --sides=server    only these
//   broken_connections --failover=true                    only jobs with HERRING_FAILOVER
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "tests/connections/job.h"
#include "tests/random/watchdog.h"

using namespace herring;                    // NOLINT: a program
using namespace herring::connections_test;  // NOLINT

namespace {

struct Arguments {
  Wanted wanted;
  uint64_t first = 1, jobs = 20;
  double patience = 60;
  uint32_t parallel = 4;
  std::string narrowing;  // the arguments that say which jobs
};

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "broken_connections: %s\n", why.c_str());
  std::exit(2);
}

std::vector<Kind> parse_kinds(const std::string& text) {
  std::vector<Kind> kinds;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, comma - at);
    at = comma + 1;
    const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](Kind kind) { return name == name_of(kind); });
    if (found == std::end(kKinds)) refuse("there is no kind of fault '" + name + "'");
    kinds.push_back(*found);
  }
  return kinds;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  Wanted& wanted = arguments.wanted;
  wanted.kinds.assign(std::begin(kKinds), std::end(kKinds));
  wanted.sides = {Side::kWorker, Side::kServer};
  wanted.failovers = {false, true};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = std::min(text.find('='), text.size());
    const std::string name = text.substr(0, equals);
    const std::string value = equals < text.size() ? text.substr(equals + 1) : "";
    const auto number = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
    if (name == "--seed") {
      arguments.first = number();
      arguments.jobs = arguments.parallel = 1;
    } else if (name == "--first") {
      arguments.first = number();
    } else if (name == "--jobs") {
      arguments.jobs = number();
    } else if (name == "--parallel") {
      arguments.parallel = static_cast<uint32_t>(number());
    } else if (name == "--patience") {
      arguments.patience = std::strtod(value.c_str(), nullptr);
    } else if (name == "--verbose") {
      wanted.verbose = true;
    } else if (name == "--kinds") {
      wanted.kinds = parse_kinds(value);
      arguments.narrowing += " " + text;
    } else if (name == "--sides") {
      wanted.sides = {value == "worker" ? Side::kWorker : Side::kServer};
      if (value != "worker" && value != "server") refuse("--sides is worker or server");
      arguments.narrowing += " " + text;
    } else if (name == "--failover") {
      wanted.failovers = {value == "true"};
      if (value != "true" && value != "false") refuse("--failover is true or false");
      arguments.narrowing += " " + text;
    } else {
      refuse("unknown argument '" + text + "'");
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  random_test::set_command(argv[0] + arguments.narrowing);
  random_test::watch(from_seconds(arguments.patience));
  // These jobs say a lot about what is meant to fail.
  open_log_queue();
  std::thread([verbose = arguments.wanted.verbose] {
    for (;;) {
      for (const LogLine& line : take_log_lines()) {
        if (verbose) write_log_line(line);
      }
    }
  }).detach();
  std::atomic<uint64_t> next{arguments.first};
  const uint64_t end = arguments.first + arguments.jobs;
  const Nanos begin = monotonic_now();
  std::mutex mutex;
  Tally total;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < arguments.parallel; ++t) {
    threads.emplace_back([&] {
      for (uint64_t seed; (seed = next.fetch_add(1)) < end;) {
        Wanted wanted = arguments.wanted;
        wanted.seed = seed;
        const Tally one = run_job(wanted);
        std::lock_guard lock(mutex);
        total.add(one);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%llu jobs in %.1f s: %llu met their fault, of which %llu ended as without one and "
              "%llu with errors; %llu servers began anew; no rank ended later than %.2f s after "
              "the fault\n",
              static_cast<unsigned long long>(total.jobs), to_seconds(monotonic_now() - begin),
              static_cast<unsigned long long>(total.struck),
              static_cast<unsigned long long>(total.survived),
              static_cast<unsigned long long>(total.failed),
              static_cast<unsigned long long>(total.restarts), to_seconds(total.longest));
  for (const auto& [what, count] : total.errors) {
    std::printf("  %s: %llu\n", what.c_str(), static_cast<unsigned long long>(count));
  }
  return 0;
}
