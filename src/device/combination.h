// What one kernel of a device combines. The kernel computes what reduce::combine() computes on the
// host: the same tree, the same bits, in any of its dtypes. cuda/kernels.cu has Command and
// Combination with the same memory layout.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace herring::device {

// Which kernel: it combines elements of dtype `from`, and stores the results in dtype `to`. The two
// differ only for casts, which have one source.
struct KernelName {
  DType from = DType::kFloat32, to = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // averages are sums with a divisor

  static KernelName of(DType dtype, ReduceOp op) {
    return {dtype, dtype, op == ReduceOp::kAverage ? ReduceOp::kSum : op};
  }
  static KernelName cast(DType from, DType to) { return {from, to, ReduceOp::kSum}; }
  auto operator<=>(const KernelName&) const = default;
};

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
  uint64_t command = 0;    // 0: all sources count, and nothing is divided
  uint64_t elements = 0;
  double prescale = 1.0, postscale = 1.0;  // of floats
  uint32_t number_of_sources = 0, number_of_targets = 0;
};

}  // namespace herring::device
