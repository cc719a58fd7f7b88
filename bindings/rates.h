// Measures how fast a device's copy engines are, for reports.
#pragma once

#include <cstddef>

#include "device/device.h"

namespace herring::bindings {

struct Rates {
  double out = 0, in = 0, both = 0;  // bytes per second; both: the sum of both directions at once
  Status pinned;  // OK if the host memory was registered with the device, else why it was not
};

// Copies `bytes` bytes several times each way. Waits for the device, and needs the memory at both
// ends.
Result<Rates> measure_rates(device::Platform& platform, device::Device& device, size_t bytes);

}  // namespace herring::bindings
