#include "device/device.h"

#include "base/fork_guard.h"
#include "device/cuda/cuda.h"

namespace herring::device {

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
