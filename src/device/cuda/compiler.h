// CUDA's run-time compiler (NVRTC), which is loaded when the first kernel is needed. PyTorch, CuPy
// and JAX bring it. Building and installing Herring needs nothing of it.
#pragma once

#include <string>

#include "base/status.h"
#include "device/combination.h"

namespace herring::device::cuda {

// Names of kernels, in kernels.cu and in words.cu.
inline constexpr const char* kCombine = "herring_combine";
inline constexpr const char* kWait = "herring_wait";
inline constexpr const char* kWrite = "herring_write";

// Compiles one kernel of kernels.cu for a GPU of the given compute capability.
// Returns machine code, or, if the compiler is older than the GPU, text that the driver translates.
// Returns kConfiguration if there is no compiler, or with the compiler's message.
Result<std::string> compile_kernel(int major, int minor, const KernelName& name);
// Compiles both kernels of words.cu in the same way.
Result<std::string> compile_words(int major, int minor);

// Adds a folder in which the compiler's library is searched. Must be called before the first
// kernel.
void add_compiler_folder(const std::string& folder);
// Returns a text such as "NVRTC 13.0", or kConfiguration with the reason why there is no compiler.
Result<std::string> compiler_version();

}  // namespace herring::device::cuda
