// The copiers of this process. Flags, the thread that watches them, and what says who copies, are
// never destroyed: a driver may end before they would be.
#pragma once

#include <memory>

#include "device/copier.h"

namespace herring::device {

// For calls that wait for nobody on the device. One for all that this process does there. On a
// thread that may call the driver; so is all that follows.
Result<std::shared_ptr<Copier>> shared_copier(int device);
// For copies that wait for other ranks, in an order of their own.
Result<std::shared_ptr<Copier>> own_copier(int device);
// Waits until nothing is on its way any more in any of the shared ones: for some seconds, for a
// device may never come to it. What is on its way keeps the memory at both its ends.
void drain_shared_copiers();

}  // namespace herring::device
