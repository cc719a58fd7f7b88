// The kernels of src/device/cuda/kernels.cu, compiled for the host.
#pragma once

#include <string>

#include "device/cuda/kernels.cu"

namespace standin {

struct KernelEntry {
  std::string image;  // the name that the compiler's stand-in gives
  size_t element;     // bytes of a source's
  size_t target;      // bytes of a target's element
  void (*combine)(const herring_kernels::Combination&, const herring_kernels::Command&);
};

inline std::string image_of(const std::string& type, const std::string& target,
                            const std::string& op) {
  return "stand-in " + type + " " + target + " " + op;
}

// Returns null if there is no such kernel.
const KernelEntry* find_kernel(const std::string& image);
// Runs a kernel like a device, with device addresses. An illegal address ends the process.
void run_kernel(const KernelEntry& kernel, const herring_kernels::Combination& what);

}  // namespace standin
