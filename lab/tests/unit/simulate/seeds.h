// The seeds of random jobs. HERRING_FIRST_SEED and HERRING_SEEDS choose what is run, for long runs
// and to repeat a failure. HERRING_SCHEDULE chooses one of the schedules of each seed.
#pragma once

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/status.h"

namespace herring::simulate {

struct Seeds {
  uint64_t first, count;

  // Returns these seeds, or those that the environment names.
  static Seeds of(uint64_t first, uint64_t count) {
    // A small job's servers use little of their memory, but the system would clear all of it.
    ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    return {from_environment("HERRING_FIRST_SEED", first),
            from_environment("HERRING_SEEDS", count)};
  }
  uint64_t end() const { return first + count; }

  // Returns the command that runs only this seed of the running test, and only this schedule.
  static std::string command(uint64_t seed, uint32_t schedule = 0) {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    return concat("HERRING_FIRST_SEED=", seed, " HERRING_SEEDS=1 ",
                  schedule == 0 ? "" : concat("HERRING_SCHEDULE=", schedule, ' '),
                  program_invocation_name, " --gtest_filter=", test->test_suite_name(), '.',
                  test->name());
  }
  // Returns whether a schedule is to be run.
  static bool wants(uint32_t schedule) {
    return from_environment("HERRING_SCHEDULE", schedule) == schedule;
  }

 private:
  static uint64_t from_environment(const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  }
};

}  // namespace herring::simulate
