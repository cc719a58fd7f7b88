// What one kernel of a device combines. The kernel computes what reduce::combine() computes on the
// host: the same tree, the same bits, in any of its dtypes. cuda/kernels.cu has both structs with
// the same memory layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace herring::device {

inline constexpr size_t kMostSources = 8;  // reduce::kTreeGroup

// The parameters that are known only when the kernel begins. The struct fills a cache line, so that
// the commands of two kernels do not disturb each other.
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
