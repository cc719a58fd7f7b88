// What the per-CPU translation units offer to reduce.cc. Do not add inline functions or anything
// from the standard library to this file: the linker could keep a copy compiled for AVX-512.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace herring::reduce {

// The factors of a Stage. Each kernel rounds them to its accumulator type.
struct Scaling {
  double prescale;
  double divisor;
  double postscale;
};

// Which factors a kernel applies; all others must be 1.
enum class Scaled { kNot, kSources, kFully };

// Combines a fixed number of sources: the kernel's index in its row, plus one.
using Kernel = void (*)(const void* const* sources, void* out, size_t count,
                        const Scaling& scaling);

inline constexpr size_t kMaxFanIn = 8;

// The kernels for 1 to `fan_in` sources.
struct Row {
  const Kernel* kernels;
  size_t fan_in;
};

// Writes a pack of kPackNumbers numbers, and reads one. If `residual` is not null, its numbers are
// added first, and it gets what rounding has lost.
using PackKernel = void (*)(const float* values, void* pack, float* residual);
using UnpackKernel = void (*)(const void* pack, float* values);

struct KernelTable {
  const char* name;
  // Returns a row with a fan-in of 0 if there is no fused kernel. There is always one for integers,
  // and for out == accumulator_of(in) with a scaling up to kSources. The row may apply more factors
  // than asked for. The fan-in of such rows depends only on the types and the operator: kMaxFanIn
  // for sums of numbers, and 2 for all that is rare, which combines more sources by pairs. (Kernels
  // for 3 to 8 sources of every operator and type took a third more time to compile.)
  Row (*row)(DType in, DType out, ReduceOp op, Scaled scaled);
  // Divides, scales and rounds one array from float32 or float64 to any float type.
  Kernel (*finish)(DType accumulator, DType out);
  // By packed dtype, from kMxE4M3 on.
  PackKernel pack[kNumPacked];
  UnpackKernel unpack[kNumPacked];
};

extern const KernelTable kBaselineKernels;
extern const KernelTable kAvx2Kernels;    // needs AVX2 and F16C
extern const KernelTable kAvx512Kernels;  // needs AVX-512 F, BW, VL and DQ

}  // namespace herring::reduce
