// The copiers and relays of this process. The flags, the thread that watches them, and the list of
// copiers are never destroyed, because a driver may end before static objects do.
#pragma once

#include <memory>
#include <vector>

#include "device/copier.h"
#include "device/images.h"
#include "device/relay.h"

namespace herring::device {

// Returns the copier that all calls of this process share which wait for no other rank on the
// device. This function and all that follow run on a thread that may call the driver.
Result<std::shared_ptr<Copier>> shared_copier(int device);
// Returns a new copier, for copies that wait for other ranks in an order of their own.
Result<std::shared_ptr<Copier>> own_copier(int device);

// A relay for one array at a time, and the loaded kernel that computes its sums.
struct Taken {
  std::shared_ptr<Relay> relay;  // null: none is available now
  Kernel kernel = 0;
};
// The array's ranks on the same node, whose GPUs may read an image of the relay.
struct Near {
  std::vector<Neighbours::Owner> owners;
  size_t bytes = 0;  // of the array
};
// Returns a relay, which the caller drops when the relay is through. The relay is null if
// kMostRelays are taken, or if the kernel would have to be loaded while streams wait for other
// ranks: a driver may load nothing before all streams are idle. Returns kConfiguration if there is
// no compiler for the kernel.
//
// If there are near ranks, their images are mapped and the relay gets an image, as soon as no
// stream waits for other ranks. The image is small until one of these ranks has mapped it.
inline constexpr size_t kMostRelays = 2;  // per device, whose streams share few queues
Result<Taken> take_relay(int device, DType dtype, ReduceOp op, const Near& near = {});

// Returns a loaded kernel. Returns 0 if the kernel would have to be loaded while streams wait for
// other ranks, or before what the copier has queued is through. What the copier has queued must not
// wait for other ranks. Returns kConfiguration if there is no compiler for the kernel.
Result<Kernel> ready_kernel(Copier& copier, const KernelName& name);

// Unmaps the memory that was left to be unmapped, if unmapping would not wait for anything now.
void unmap_if_idle();
// Looks whether devices are lost. What is expected of one that is lost fails.
void check_devices();
// Waits until no shared copier has copies under way, for at most Copier::kPatience, because a
// device may hang. The copies keep the memory at both their ends.
void drain_shared_copiers();

}  // namespace herring::device
