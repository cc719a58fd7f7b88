// Casts on a device, for plans whose float32 gradients travel in a 16-bit dtype. A kernel narrows a
// gradient that is ready into an arena of that dtype on the device. What leaves the device, what
// ranks of a node add, and what comes back lies there. At the end of a round a kernel widens the
// averages into the arenas of the caller. So the link to the host carries half the bytes.
#pragma once

#include <memory>
#include <vector>

#include "device/copier.h"
#include "plan/plan.h"
#include "rounds/planned.h"

namespace herring::rounds {

// The calls come from threads that may call the device's driver, unless stated otherwise.
class DeviceCasts {
 public:
  // Returns whether the gradients can be cast. Each arena of the caller has one dtype, so no
  // gradient may have the 16-bit dtype already. Any thread.
  static bool apply_to(const std::vector<plan::Gradient>& gradients, DType wire);
  // Loads the kernels. Returns kConfiguration if there is no compiler for them, or if they cannot
  // be loaded because streams wait for other ranks.
  static Result<std::shared_ptr<DeviceCasts>> create(device::Copier& copier, DType wire);

  // Returns the gradients in the dtypes in which they travel. Any thread.
  std::vector<plan::Gradient> narrowed(std::vector<plan::Gradient> gradients) const;
  // Returns the plan with the arenas and ranges of the caller. Any thread.
  plan::Plan widened(plan::Plan plan) const;

  // Takes the caller's arenas, and allocates those that travel.
  Status place(const plan::Plan& plan, std::vector<device::Address> wide);
  // Returns the caller's arenas.
  const std::vector<device::Address>& wide_arenas() const { return wide_; }
  // Returns the arenas that travel. Those of other dtypes are the caller's.
  const std::vector<device::Address>& arenas() const { return narrow_; }

  // Append casts of a range, which counts bytes that travel. Nothing is appended if the arena's
  // dtype does not change. Adjacent ranges become one cast.
  void narrow(uint32_t arena, const plan::Range& range, std::vector<device::Launch>& casts) const;
  void widen(uint32_t arena, const plan::Range& range, std::vector<device::Launch>& casts) const;

  // Releases the memory when its last share is dropped and no stream waits any more.
  std::shared_ptr<void> memory() const { return memory_; }

 private:
  DeviceCasts(device::Device& device, DType wire) : device_(device), wire_(wire) {}
  bool casts(uint32_t arena) const { return wide_[arena] != narrow_[arena]; }
  void append(device::Kernel kernel, device::Address from, device::Address to, size_t elements,
              std::vector<device::Launch>& casts) const;

  device::Device& device_;
  const DType wire_;
  device::Kernel narrows_ = 0, widens_ = 0;
  std::vector<device::Address> wide_, narrow_;  // by arena
  std::shared_ptr<void> memory_;
};

}  // namespace herring::rounds
