// Reduction of n sources. One call combines n arrays element by element in one fixed tree of
// adjacent pairs (((0,1),(2,3)),((4,5),...)), in which an unpaired source moves up a level
// unchanged. So the bits of the result depend only on the order of the sources. They do not depend
// on the CPU, nor on how a sum is split into calls if the parts are aligned subtrees (kTreeGroup).
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace herring::reduce {

// A sum over many sources may be computed in steps. Full groups of kTreeGroup adjacent sources,
// whose first index is a multiple of kTreeGroup, are combined into the accumulator type. Then the
// results of the groups are combined.
inline constexpr size_t kTreeGroup = 8;

struct Stage {
  DType in = DType::kFloat32;   // dtype of every source
  DType out = DType::kFloat32;  // `in`, its accumulator, or any float type if both are floats
  ReduceOp op = ReduceOp::kSum; // kAverage adds; `divisor` does the rest
  // For floats only. Each factor is rounded to the accumulator type before it is applied.
  double prescale = 1.0;   // multiplies every source element
  double divisor = 1.0;    // divides the combined value
  double postscale = 1.0;  // multiplies the quotient
};

// Returns the stage that goes from the values of so many ranks to results in one step, all in this
// dtype but for the results of a pair.
inline Stage whole(DType dtype, const Reduction& reduction, uint64_t contributors = 1) {
  return {dtype,
          result_of(dtype),
          reduction.op,
          reduction.prescale,
          divisor_of(reduction, contributors),
          reduction.postscale};
}

// Computes out[i] = round(combine(sources[0][i], ...) / divisor * postscale) in accumulator_of(in);
// float64 stays float64. `n` must be at least 1. Callers must have checked the stage with
// check_stage(). Never fails, and allocates only for sparse packs, once for each thread.
// Floats: NaN results have one canonical bit pattern. NaN propagates through min and max, which
// order -0 below +0. The calling thread's rounding and flush-to-zero modes have no influence and
// are left unchanged.
// Integers wrap. For bool, any byte but 0 is true, and results are 0 or 1; sum and max mean "or",
// product and min mean "and".
// Packed types are for sums and averages. `count` is then a multiple of pack_numbers(). Sparse
// packs are added one after the other, not in the tree.
// `out` may be exactly one of the sources if size_of(in) == size_of(out); nothing else may overlap.
void combine(const void* const* sources, size_t n, void* out, size_t count, const Stage& stage);

// Returns kInvalidArgument naming the values that do not fit together.
Status check_stage(const Stage& stage);

// Converts `count` elements between float types and multiplies them by `scale`. Rounds to nearest
// even, keeps subnormals and makes NaN canonical. May work in place if the sizes are equal.
void convert(const void* in, DType in_type, void* out, DType out_type, size_t count, double scale);

// Rounds up to pack_numbers() values to a pack of this type; those that are missing count as 0. If
// `residual` is not null, its numbers are added first, and it gets what rounding has lost, so that
// the next pack may make up for it (error feedback). Nothing is kept of a block of numbers of which
// one is not finite.
void pack(const float* values, size_t count, DType packed, void* pack, float* residual);

// Adds to the residual of a sparse pack, which stands for `count` numbers, what it has of numbers
// that the pack with the result lacks. So nothing that was sent is lost.
void give_back(const void* sent, const void* result, size_t count, float* residual);

// Returns the level that combine() uses: "avx512", "avx2" or "baseline". HERRING_SIMD, which is
// read once, caps the level (for tests and triage); an invalid value is ignored.
const char* simd_level();
// For tests: uses the given level. Returns false if this CPU lacks it.
bool set_simd_level(const char* level);

}  // namespace herring::reduce
