// The seeds of random jobs. HERRING_FIRST_SEED and HERRING_SEEDS choose what is run, for long runs
// and to repeat a failure.
#pragma once

#include <sys/prctl.h>

#include <cstdint>
#include <cstdlib>

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

 private:
  static uint64_t from_environment(const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  }
};

}  // namespace herring::simulate
