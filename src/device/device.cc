#include "device/device.h"

#include <algorithm>

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

}  // namespace herring::device
