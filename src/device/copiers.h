// The copiers and relays of this process. Flags, the thread that watches them, and what says who
// copies, are never destroyed: a driver may end before they would be.
#pragma once

#include <memory>

#include "device/copier.h"
#include "device/relay.h"

namespace herring::device {

// For calls that wait for nobody on the device. One for all that this process does there. On a
// thread that may call the driver; so is all that follows.
Result<std::shared_ptr<Copier>> shared_copier(int device);
// For copies that wait for other ranks, in an order of their own.
Result<std::shared_ptr<Copier>> own_copier(int device);

// A relay for one array at a time, and the kernel that takes its sums, which is loaded.
struct Taken {
  std::shared_ptr<Relay> relay;  // null: not now
  Kernel kernel = 0;
};
// The caller lets go of the relay when it is through. Null where kMostRelays are taken, or where
// the kernel would have to be loaded while streams wait for other ranks: a driver may load nothing
// before all streams are idle. kConfiguration: there is no compiler for the kernel.
inline constexpr size_t kMostRelays = 2;  // of a device; its streams share a few queues
Result<Taken> take_relay(int device, DType dtype, ReduceOp op);

// A kernel that is loaded; 0 where it would have to be loaded while streams wait for other ranks,
// or before what the copier has queued is through, which waits for none of them. kConfiguration:
// there is no compiler for it.
Result<Kernel> ready_kernel(Copier& copier, DType dtype, ReduceOp op);

// Unmaps what was left to be, if that waits for nothing now.
void unmap_if_idle();
// Waits until nothing is on its way any more in any of the shared ones: for some seconds, for a
// device may never come to it. What is on its way keeps the memory at both its ends.
void drain_shared_copiers();

}  // namespace herring::device
