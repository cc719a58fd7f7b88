// CUDA devices. Streams, events and memory belong to the primary context of a device, as those of
// frameworks do. Herring never creates another context.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace herring::device::cuda {

// Loads the driver. The system's search path decides where `library` is found.
Result<std::unique_ptr<Platform>> load(const std::string& library = "libcuda.so.1");

}  // namespace herring::device::cuda
