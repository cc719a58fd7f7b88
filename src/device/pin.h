// Host memory that is registered with devices, so that their copy engines reach it. The memory must
// be unregistered before it is unmapped, by a thread that may call the driver. The thread that
// frees the memory may be another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/status.h"
#include "device/device.h"

namespace herring::device {

class Pin {
 public:
  // Registers whole pages. Only the first call has an effect. If the driver refuses, this is logged
  // once per process, and copies work without registration. Must run on a thread that may call the
  // driver.
  void set(char* memory, size_t bytes);
  bool is_set() const;
  // Takes over the mapping of the memory that set() was called for. Returns false if no device
  // knows the memory, so that the caller unmaps it. Any thread may call this.
  bool unmap_later(char* memory, size_t bytes);

 private:
  enum class State { kNone, kSet, kRefused };

  mutable std::mutex mutex_;
  State state_ = State::kNone;  // guarded by mutex_
  uint32_t generation_ = 0;     // fork_generation() at the registration
};

// Leaves `unmap` to a thread that may call the driver, to be run while devices are idle. Unmapping
// waits for the devices, so no stream may then wait for anything that this thread is to do. Any
// thread may call this.
void leave_to_unmap(std::function<void(Platform&)> unmap);
// Returns whether anything was left. Any thread may call this.
bool any_to_unmap();
// Runs what was left.
void unmap_left();

}  // namespace herring::device
