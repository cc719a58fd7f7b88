#include "control/server_set.h"

namespace herring::control {
namespace {

// The finalizer of MurmurHash3: every bit of the input changes half of the bits of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

}  // namespace

uint32_t ServerSet::stand_in(uint32_t home, uint32_t buffer,
                             const std::vector<uint32_t>& owners) const {
  if (has(home)) return home;
  uint32_t chosen = kNone;
  uint64_t most = 0;
  for (const uint32_t owner : owners) {
    if (!has(owner)) continue;
    const uint64_t score = mix(mix(uint64_t{home} << 32 | buffer) + owner);
    if (chosen == kNone || score > most) {
      chosen = owner;
      most = score;
    }
  }
  return chosen;
}

}  // namespace herring::control
