#include "device/kept.h"

#include <mutex>
#include <vector>

namespace herring::device {

// The list is not destroyed when the process ends, because the device may still be at work. What it
// holds can be reached, so checkers of leaks accept it.
void keep_for_ever(std::shared_ptr<const void> owner) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  std::lock_guard lock(mutex);
  kept->push_back(std::move(owner));
}

}  // namespace herring::device
