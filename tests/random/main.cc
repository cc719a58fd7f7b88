// Runs random programs, which program.h describes.
//   random_programs --seconds=30                        as many jobs as fit, from seed 1
//   random_programs --jobs=500 --parallel=2             500 jobs of 20 programs, 2 at a time
//   random_programs --seed=17                           repeats one job; --only=3 its program 3
//   random_programs --features=plans,lanes              only these features; -plans,lanes: all but
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tests/random/program.h"
#include "tests/random/runner.h"
#include "tests/random/watchdog.h"

using namespace herring;               // NOLINT: a program
using namespace herring::random_test;  // NOLINT

namespace {

struct Arguments {
  JobPlan plan;
  uint64_t first = 1, jobs = UINT64_MAX;
  double seconds = 0, patience = 60;
  uint32_t parallel = 1;
  bool repeats = false;
  std::string features;
};

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "random_programs: %s\n", why.c_str());
  std::exit(2);
}

// Parses "plans,lanes" (these features only) or "-plans,lanes" (all but these).
uint32_t parse_features(const std::string& text) {
  if (text.empty()) return ~0u;
  const bool without = text[0] == '-';
  uint32_t chosen = without ? ~0u : 0;
  for (size_t at = without ? 1 : 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, comma - at);
    at = comma + 1;
    const auto* found = std::find_if(std::begin(kFeatures), std::end(kFeatures),
                                     [&](const auto& one) { return name == one.name; });
    if (found == std::end(kFeatures)) {
      std::string all;
      for (const auto& one : kFeatures) all += concat(" ", one.name);
      refuse("there is no feature '" + name + "'; there are" + all);
    }
    chosen = without ? chosen & ~found->bit : chosen | found->bit;
  }
  return chosen;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = std::min(text.find('='), text.size());
    const std::string name = text.substr(0, equals);
    const std::string value = equals < text.size() ? text.substr(equals + 1) : "";
    const auto number = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
    if (name == "--seed") {
      arguments.first = number();
      arguments.jobs = 1;
      arguments.repeats = true;
    } else if (name == "--first") {
      arguments.first = number();
    } else if (name == "--jobs") {
      arguments.jobs = number();
    } else if (name == "--programs") {
      arguments.plan.programs = static_cast<uint32_t>(number());
    } else if (name == "--only") {
      arguments.plan.only = static_cast<int>(number());
    } else if (name == "--parallel") {
      arguments.parallel = static_cast<uint32_t>(number());
    } else if (name == "--seconds") {
      arguments.seconds = std::strtod(value.c_str(), nullptr);
    } else if (name == "--patience") {
      arguments.patience = std::strtod(value.c_str(), nullptr);
    } else if (name == "--features") {
      arguments.features = value;
    } else if (name == "--verbose") {
      arguments.plan.verbose = true;
    } else {
      refuse("unknown argument '" + text + "'");
    }
  }
  arguments.plan.features = parse_features(arguments.features);
  if (arguments.seconds == 0 && arguments.jobs == UINT64_MAX) arguments.jobs = 10;
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  std::string command = concat(argv[0], " --programs=", arguments.plan.programs);
  if (!arguments.features.empty()) command += " --features=" + arguments.features;
  set_command(command);
  watch(from_seconds(arguments.patience));
  std::atomic<uint64_t> next{arguments.first};
  const uint64_t end =
      arguments.jobs == UINT64_MAX ? UINT64_MAX : arguments.first + arguments.jobs;
  const Nanos stop =
      arguments.seconds > 0 ? monotonic_now() + from_seconds(arguments.seconds) : INT64_MAX;
  const Nanos begin = monotonic_now();
  std::mutex mutex;
  Tally total;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < arguments.parallel; ++t) {
    threads.emplace_back([&] {
      for (uint64_t seed; monotonic_now() < stop && (seed = next.fetch_add(1)) < end;) {
        JobPlan plan = arguments.plan;
        plan.seed = seed;
        const Tally one = run_job(plan);
        std::lock_guard lock(mutex);
        total.jobs += one.jobs;
        total.programs += one.programs;
        total.calls += one.calls;
        total.errors += one.errors;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%llu programs in %llu jobs, %llu calls, %llu of them with the error that their "
              "program explains, %.1f s\n",
              static_cast<unsigned long long>(total.programs),
              static_cast<unsigned long long>(total.jobs),
              static_cast<unsigned long long>(total.calls),
              static_cast<unsigned long long>(total.errors), to_seconds(monotonic_now() - begin));
  return 0;
}
