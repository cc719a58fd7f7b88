// CUDA's run-time compiler (NVRTC), loaded when the first kernel is needed. PyTorch, CuPy and JAX
// bring it; nothing of it is needed to build or to install.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace herring::device::cuda {

inline constexpr const char* kCombine = "herring_combine";

// Code of kernels.cu for one dtype and operator, for a GPU of that compute capability: machine
// code, or where the compiler is older than the GPU, text that the driver translates.
// kConfiguration: there is no compiler, or what it says.
Result<std::string> compile_combination(int major, int minor, DType dtype, ReduceOp op);

// Looks for the compiler's library in this folder, too. Before the first kernel.
void add_compiler_folder(const std::string& folder);
// "NVRTC 13.0"; kConfiguration: why there is none.
Result<std::string> compiler_version();

}  // namespace herring::device::cuda
