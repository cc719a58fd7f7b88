// Access to the stand-in for CUDA's driver from the tests of a process.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "device/device.h"
#include "tests/device/standin.h"

namespace herring::device {

// Returns the function of the stand-in with this name.
template <typename Function>
Function* standin(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  auto* const found = reinterpret_cast<Function*>(library ? ::dlsym(library, name) : nullptr);
  if (found == nullptr) ADD_FAILURE() << "no stand-in for libcuda.so.1, or without " << name;
  return found;
}
#define STANDIN(function) (*::herring::device::standin<decltype(::function)>(#function))

inline Device& gpu(int index) {
  auto platform = device::platform();
  EXPECT_TRUE(platform.ok()) << platform.status().message();
  auto device = (*platform)->device(index);
  EXPECT_TRUE(device.ok()) << device.status().message();
  return **device;
}

inline Stream user_stream(int device) {
  return reinterpret_cast<Stream>(STANDIN(standin_stream)(device));
}
inline void* handle_of(Stream stream) { return reinterpret_cast<void*>(stream); }

// While a Jitter exists, every item of a stream first waits for a random time of up to
// `microseconds`.
class Jitter {
 public:
  explicit Jitter(uint32_t microseconds) { STANDIN(standin_jitter)(microseconds); }
  ~Jitter() { STANDIN(standin_jitter)(0); }
};

}  // namespace herring::device
