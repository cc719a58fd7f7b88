// GPUs of the stand-in that are lost, as if they had fallen off the bus: what their streams run
// ends where it is, nothing that is queued runs any more, and every call fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace standin {

inline std::atomic<uint32_t> lost_devices{0};  // bits

inline bool is_lost(int device) { return (lost_devices.load() >> device & 1u) != 0; }

// Takes as long as a kernel does. Returns whether the device is still there.
inline bool rest(int device, std::chrono::microseconds time) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + time;
  while (Clock::now() < end && !is_lost(device)) {
    const Clock::time_point soon = Clock::now() + std::chrono::milliseconds(5);
    std::this_thread::sleep_until(std::min(end, soon));
  }
  return !is_lost(device);
}

}  // namespace standin
