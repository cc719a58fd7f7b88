// Host memory that devices know, so that their copy engines reach it. It is unmapped only after
// they have let go of it, which some thread sees to that may call their driver; whoever frees the
// memory may not.
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
  // Whole pages. Once; later calls do nothing. Where the driver refuses, it is logged, once, and
  // what follows works without. On a thread that may call the driver.
  void set(char* memory, size_t bytes);
  bool is_set() const;
  // Takes over the mapping of memory that set() was called for; false: it has nothing to do with
  // any device. Any thread.
  bool unmap_later(char* memory, size_t bytes);

 private:
  enum class State { kNone, kSet, kRefused };

  mutable std::mutex mutex_;
  State state_ = State::kNone;  // guarded by mutex_
  uint32_t generation_ = 0;     // the fork that it was set in
};

// Leaves something to be done by some thread that may call the driver, while devices are idle:
// unmapping does wait for that, so no stream may wait then for what this thread is to do. Any
// thread.
void leave_to_unmap(std::function<void(Platform&)> unmap);
// Whether anything was left. Any thread.
bool any_to_unmap();
// Does it.
void unmap_left();

}  // namespace herring::device
