// The kernels of src/device/cuda, compiled for the host.
#pragma once

#include <functional>
#include <string>

#include "device/cuda/kernels.cu"
#include "device/cuda/words.cu"

namespace standin {

struct KernelEntry {
  std::string image;  // the name that the compiler's stand-in gives
  std::string name;   // of the kernel in its module
  // Returns what a device does for these arguments, which are read at once. Addresses are those of
  // the device; an illegal address ends the process.
  std::function<std::function<void()>(void** arguments, int device)> bind;
};

inline std::string image_of(const std::string& type, const std::string& target,
                            const std::string& op) {
  return "stand-in " + type + " " + target + " " + op;
}

inline const std::string kWordsImage = "stand-in words";

// Returns the first kernel of a module, or its kernel with this name; null if there is none.
const KernelEntry* find_kernel(const std::string& image, const std::string& name = "");

}  // namespace standin
