// Words in host memory through which a stream of a device and the threads that move bytes tell each
// other their progress. Each word has a cache line of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace herring::device {

// Returns whether a word that only grows, and may wrap around, has reached a value. Devices compare
// in the same way.
inline bool reached(uint32_t word, uint32_t value) {
  return static_cast<int32_t>(word - value) >= 0;
}

struct Flag {
  std::atomic<uint32_t>* word = nullptr;
  Address address = 0;  // under which the device sees the word

  bool has(uint32_t value) const { return reached(word->load(std::memory_order_acquire), value); }
  void set(uint32_t value) const { word->store(value, std::memory_order_release); }
};

// Hands out the flags of one device. A flag starts at 0, or at the value that its previous user has
// left.
class Flags {
 public:
  Flags(Platform& platform, Device& device) : platform_(platform), device_(device) {}
  // Must run on a thread that may call the driver, when no stream waits for a flag any more.
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  Device& device() const { return device_; }

  // Must run on a thread that may call the driver. An error says what to do if no memory can be
  // pinned.
  Result<Flag> take();
  // Any thread may call this.
  void give_back(Flag flag);

 private:
  struct Page {
    char* memory;
    bool allocated;  // by the driver; otherwise registered with it
  };
  // Maps a page and registers it.
  Result<Page> map(size_t bytes);
  void let_go(const Page& page);

  Platform& platform_;
  Device& device_;
  std::mutex mutex_;
  std::vector<Page> pages_;
  std::vector<Flag> free_;
};

}  // namespace herring::device
