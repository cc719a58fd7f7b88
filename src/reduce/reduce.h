// n-source reduction. One call combines n arrays element by element in one fixed tree of adjacent
// pairs (((0,1),(2,3)),((4,5),...)), an odd one out moves up a level unchanged, so the bits of the
// result depend on the order of the sources alone: not on the CPU, not on how a sum is split in
// calls as long as the parts are aligned subtrees (kTreeGroup).
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace herring::reduce {

// A sum over many sources may be taken in steps: full groups of kTreeGroup adjacent sources (whose
// first index is a multiple of it) into the accumulator type, then the groups' results.
inline constexpr size_t kTreeGroup = 8;

struct Stage {
  DType in = DType::kFloat32;   // of every source
  DType out = DType::kFloat32;  // `in`, its accumulator, or any float type when both are floats
  ReduceOp op = ReduceOp::kSum; // kAverage adds; `divisor` does the rest
  // Floats only; each is rounded to the accumulator type before it is applied.
  double prescale = 1.0;   // multiplies every source element
  double divisor = 1.0;    // divides the combined value
  double postscale = 1.0;  // multiplies after the division
};

// From sources to results in one step, all in one dtype.
inline Stage whole(DType dtype, const Reduction& reduction, double divisor = 1.0) {
  return {dtype, dtype, reduction.op, reduction.prescale, divisor, reduction.postscale};
}

// out[i] = round(combine(sources[0][i], ...) / divisor * postscale), computed in
// accumulator_of(in) (float64 stays float64). NaN results carry one canonical bit pattern; NaN
// propagates through min and max, which order -0 below +0. Integers wrap; bool (any byte but 0 is
// true, results are 0 or 1): sum and max are "or", product and min "and". The calling thread's
// rounding and flush-to-zero modes have no influence and are left as they were.
// `out` may be exactly one of the sources when size_of(in) == size_of(out); no other overlap.
// 1 <= n. Never allocates, never fails: callers have checked the stage with check_stage().
void combine(const void* const* sources, size_t n, void* out, size_t count, const Stage& stage);

// Names the values that do not fit together.
Status check_stage(const Stage& stage);

// Element-wise conversion between float types (round to nearest even, subnormals kept, NaN
// canonical), times `scale`. In place when the sizes are equal.
void convert(const void* in, DType in_type, void* out, DType out_type, size_t count, double scale);

// "avx512", "avx2" or "baseline": what combine() runs on. HERRING_SIMD, read once, caps it (tests,
// triage); a value that is none of these is ignored.
const char* simd_level();
// For tests: run at a given level; returns false where this CPU lacks it.
bool set_simd_level(const char* level);

}  // namespace herring::reduce
