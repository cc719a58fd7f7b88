// Element types and reduction operators, and the rules for what may be combined.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace herring {

enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
};
inline constexpr int kNumDTypes = 10;

enum class ReduceOp : uint8_t { kSum = 0, kAverage, kMin, kMax, kProduct };
inline constexpr int kNumReduceOps = 5;

size_t size_of(DType dtype);
const char* name_of(DType dtype);  // "float32", ...
const char* name_of(ReduceOp op);  // "sum", ...
bool is_float(DType dtype);
Result<DType> parse_dtype(const std::string& name);
Result<ReduceOp> parse_reduce_op(const std::string& name);

// Returns the type in which `dtype` is summed: float32 for 16-bit floats, otherwise `dtype` itself.
DType accumulator_of(DType dtype);

// How values are combined: each rank's value is multiplied by `prescale`, and the result by
// `postscale`.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0, postscale = 1.0;
  uint32_t divisor = 0;  // of averages; 0: the number of ranks that have contributed
  bool operator==(const Reduction&) const = default;
};

// Returns the number by which a sum of so many ranks' values is divided.
double divisor_of(const Reduction& reduction, uint64_t contributors);

// Returns kInvalidArgument for reductions without a meaning: averaging or scaling integers or bool.
Status check_reducible(DType dtype, const Reduction& reduction);

}  // namespace herring
