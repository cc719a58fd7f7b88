#include "device/pin.h"

#include <sys/mman.h>

#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "base/log.h"
#include "device/device.h"

namespace herring::device {
namespace {

struct Retired {
  char* memory;
  size_t bytes;
};

struct Retirees {
  std::mutex mutex;
  std::vector<Retired> list;
};

Retirees& retirees() {
  static auto* const all = new Retirees;
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
  Retirees& all = retirees();
  std::lock_guard lock(all.mutex);
  all.list.push_back({memory, bytes});
  return true;
}

bool any_to_unmap() {
  Retirees& all = retirees();
  std::lock_guard lock(all.mutex);
  return !all.list.empty();
}

void unmap_pinned() {
  std::vector<Retired> now;
  {
    Retirees& all = retirees();
    std::lock_guard lock(all.mutex);
    now.swap(all.list);
  }
  if (now.empty()) return;
  auto devices = platform();
  if (!devices.ok()) return;  // in a forked child: they stay mapped there
  for (const Retired& one : now) {
    static_cast<void>((*devices)->unregister_host(one.memory));
    ::munmap(one.memory, one.bytes);
  }
}

}  // namespace herring::device
