// Words in host memory by which a stream of a device and the threads that move bytes tell each
// other how far they are, a cache line each.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace herring::device {

// Whether a word that only grows, and may have come round, has reached a value. Devices compare
// alike.
inline bool reached(uint32_t word, uint32_t value) {
  return static_cast<int32_t>(word - value) >= 0;
}

struct Flag {
  std::atomic<uint32_t>* word = nullptr;
  Address address = 0;  // as the device sees it

  bool has(uint32_t value) const { return reached(word->load(std::memory_order_acquire), value); }
  void set(uint32_t value) const { word->store(value, std::memory_order_release); }
};

// Gives out flags of one device. They start at 0, or where whoever had them before has left them.
class Flags {
 public:
  Flags(Platform& platform, Device& device) : platform_(platform), device_(device) {}
  // On a thread that may call the driver, when no stream waits for a flag any more.
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  Device& device() const { return device_; }

  // On a thread that may call the driver.
  Result<Flag> take();
  // Any thread.
  void give_back(Flag flag);

 private:
  Platform& platform_;
  Device& device_;
  std::mutex mutex_;
  std::vector<void*> pages_;
  std::vector<Flag> free_;
};

}  // namespace herring::device
