#include "device/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/fork_guard.h"
#include "device/cuda/cuda.h"

namespace herring::device {

uint32_t Device::blocks_for(size_t bytes) const {
  constexpr size_t kBytesPerThread = 16;
  const uint64_t most = 2 * static_cast<uint64_t>(properties().multiprocessors);
  return static_cast<uint32_t>(std::min<uint64_t>(bytes / kBytesPerThread / kThreads + 1, most));
}

Result<Platform*> platform() {
  struct Loaded {
    uint32_t generation = fork_generation();
    Result<std::unique_ptr<Platform>> platform = cuda::load();
  };
  // Never destroyed, because the driver may end before static objects do.
  static auto* const loaded = new Loaded;
  if (!loaded->platform.ok()) return loaded->platform.status();
  if (loaded->generation != fork_generation()) {
    return Status(Code::kShutdown, "GPUs cannot be used in this process, which was forked from one "
                                   "that has used them; start it anew ('spawn')");
  }
  return loaded->platform->get();
}

Result<bool> Device::empty_by(Nanos deadline, const std::vector<Stream>& streams) {
  constexpr auto kLongestRest = std::chrono::microseconds(2000);
  for (auto rest = std::chrono::microseconds(50);; rest = std::min(2 * rest, kLongestRest)) {
    Result<bool> empty = true;
    for (const Stream stream : streams) {
      if (empty.ok() && *empty) empty = idle(stream);
    }
    if (!empty.ok() || *empty || monotonic_now() >= deadline) return empty;
    std::this_thread::sleep_for(rest);
  }
}

}  // namespace herring::device
