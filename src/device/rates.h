// How fast a device's copy engines are, for reports.
#pragma once

#include <cstddef>

#include "device/device.h"

namespace herring::device {

struct Rates {
  double out = 0, in = 0, both = 0;  // bytes a second; both: out and in together, at once
  bool pinned = false;               // the host's memory was known to the device
};

// Copies some times so many bytes each way. It waits for the device, and needs memory at both ends.
Result<Rates> measure_rates(Platform& platform, Device& device, size_t bytes);

}  // namespace herring::device
