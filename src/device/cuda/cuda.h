// Devices of CUDA's. Streams, events and memory belong to the primary context of a device, as those
// of the frameworks do; no other context is ever made.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace herring::device::cuda {

// The library's name is looked for where the system looks for libraries.
Result<std::unique_ptr<Platform>> load(const std::string& library = "libcuda.so.1");

}  // namespace herring::device::cuda
