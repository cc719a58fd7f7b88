#include "device/pin.h"

#include <sys/mman.h>

#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "base/log.h"
#include "device/device.h"

namespace herring::device {
namespace {

struct Left {
  std::mutex mutex;
  std::vector<std::function<void(Platform&)>> list;
};

Left& left() {
  static auto* const all = new Left;
  return *all;
}

}  // namespace

void Pin::set(char* memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kNone) return;
  auto devices = platform();
  const Status pinned = devices.ok() ? (*devices)->register_host(memory, bytes) : devices.status();
  state_ = pinned.ok() ? State::kSet : State::kRefused;
  generation_ = fork_generation();
  static std::once_flag said;
  if (pinned.ok()) return;
  std::call_once(said, [&] {
    log(LogLevel::kWarning, "memory for copies to and from GPUs cannot be pinned, so that they are "
        "slower by a factor of 3 to 5: ", pinned.message(), ". Allow this process to lock more "
        "memory (ulimit -l unlimited; in containers --ulimit memlock=-1)");
  });
}

bool Pin::is_set() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kSet && generation_ == fork_generation();
}

bool Pin::unmap_later(char* memory, size_t bytes) {
  if (!is_set()) return false;
  leave_to_unmap([memory, bytes](Platform& platform) {
    static_cast<void>(platform.unregister_host(memory));
    ::munmap(memory, bytes);
  });
  return true;
}

void leave_to_unmap(std::function<void(Platform&)> unmap) {
  std::lock_guard lock(left().mutex);
  left().list.push_back(std::move(unmap));
}

bool any_to_unmap() {
  std::lock_guard lock(left().mutex);
  return !left().list.empty();
}

void unmap_left() {
  std::vector<std::function<void(Platform&)>> now;
  {
    std::lock_guard lock(left().mutex);
    now.swap(left().list);
  }
  if (now.empty()) return;
  auto devices = platform();
  if (!devices.ok()) return;  // in a forked child everything stays mapped
  for (const auto& unmap : now) unmap(**devices);
}

}  // namespace herring::device
