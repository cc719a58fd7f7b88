// GPUs, as this process uses them.
#pragma once

#include <memory>

#include "device/copier.h"

namespace herring::bindings {

// The way out of a device and back, one for all that this process does there; never destroyed.
Result<std::shared_ptr<device::Copier>> copier_of(int index);
// Waits until nothing is on its way any more, on any device.
void drain_copiers();

}  // namespace herring::bindings
