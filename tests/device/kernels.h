// The kernels of src/device/cuda/kernels.cu, compiled for the host.
#pragma once

#include <string>

#include "device/cuda/kernels.cu"

namespace standin {

struct KernelEntry {
  std::string image;  // what the stand-in for the compiler calls it
  size_t element;     // bytes
  void (*combine)(const herring_kernels::Combination&, const herring_kernels::Command&);
};

inline std::string image_of(const std::string& type, const std::string& op) {
  return "stand-in " + type + " " + op;
}

// Null: there is none.
const KernelEntry* find_kernel(const std::string& image);
// As a device does it, with addresses of its own. An illegal one ends the process.
void run_kernel(const KernelEntry& kernel, const herring_kernels::Combination& what);

}  // namespace standin
