// What a kernel of a device combines, as reduce::combine() does on the host: as many bits, in the
// same tree, in any of its dtypes. Both structs lie in memory as in cuda/kernels.cu.
#pragma once

#include <cstddef>
#include <cstdint>

namespace herring::device {

inline constexpr size_t kMostSources = 8;  // reduce::kTreeGroup

// What is known only when the kernel begins. A cache line, so that those of two kernels do not
// disturb each other.
struct alignas(64) Command {
  uint32_t stop = 0;       // not 0: the kernel touches nothing
  uint32_t active = 0;     // bit i: source i counts; none: the targets get zeros
  double divisor = 1.0;    // of floats
};

// Addresses as the device sees them. A target may be one of the sources.
struct Combination {
  uint64_t sources[kMostSources] = {};
  uint64_t targets[kMostSources] = {};
  uint64_t command = 0;
  uint64_t elements = 0;
  double prescale = 1.0, postscale = 1.0;  // of floats
  uint32_t number_of_sources = 0, number_of_targets = 0;
};

}  // namespace herring::device
