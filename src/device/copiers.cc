#include "device/copiers.h"

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "device/pin.h"

namespace herring::device {
namespace {

constexpr Nanos kPatience = 5 * kSecond;

struct OfDevice {
  OfDevice(Platform& platform, Device& device) : flags(platform, device) {}
  Flags flags;
  std::shared_ptr<Copier> shared;
  std::vector<std::weak_ptr<Copier>> own;
};

class Copiers {
 public:
  static Copiers& instance() {
    static auto* const copiers = new Copiers;
    return *copiers;
  }

  Result<std::shared_ptr<Copier>> shared(int index) {
    auto all = platform();  // before the lock, which a forked child may never get
    if (!all.ok()) return all.status();
    std::lock_guard lock(mutex_);
    auto device = of(**all, index);
    if (!device.ok()) return device.status();
    unmap();
    if ((*device)->shared == nullptr) {
      auto made = Copier::create((*device)->flags, Watcher::shared());
      if (!made.ok()) return made.status();
      (*device)->shared = *made;
    }
    return (*device)->shared;
  }

  Result<std::shared_ptr<Copier>> own(int index) {
    auto all = platform();
    if (!all.ok()) return all.status();
    std::lock_guard lock(mutex_);
    auto device = of(**all, index);
    if (!device.ok()) return device.status();
    auto made = Copier::create((*device)->flags, Watcher::shared());
    if (made.ok()) (*device)->own.push_back(*made);
    return made;
  }

  void drain() {
    if (generation_ != fork_generation()) return;  // what is on its way is the parent's
    std::lock_guard lock(mutex_);
    const Nanos deadline = monotonic_now() + kPatience;
    for (const auto& [index, device] : devices_) {
      if (device->shared == nullptr) continue;
      if (device->shared->await_idle(deadline)) {
        static_cast<void>(device->shared->drain());
      } else {
        log(LogLevel::kWarning, "GPU ", index, " has not come to copies of calls that have ended; "
            "it is not waited for any longer");
      }
    }
    unmap();
  }

 private:
  Result<OfDevice*> of(Platform& platform, int index) {
    auto device = platform.device(index);
    if (!device.ok()) return device.status();
    std::unique_ptr<OfDevice>& one = devices_[index];
    if (one == nullptr) one = std::make_unique<OfDevice>(platform, **device);
    return one.get();
  }

  // If that waits for nothing.
  void unmap() {
    if (!any_to_unmap()) return;
    std::vector<std::shared_ptr<Copier>> all;
    for (const auto& [index, device] : devices_) {
      if (device->shared != nullptr) all.push_back(device->shared);
      std::erase_if(device->own, [](const auto& one) { return one.expired(); });
      for (const auto& one : device->own) {
        if (auto copier = one.lock()) all.push_back(std::move(copier));
      }
    }
    while_all_idle(all, 0, unmap_left);
  }

  static void while_all_idle(const std::vector<std::shared_ptr<Copier>>& copiers, size_t first,
                             const std::function<void()>& call) {
    if (first == copiers.size()) return call();
    copiers[first]->while_idle([&] { while_all_idle(copiers, first + 1, call); });
  }

  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::map<int, std::unique_ptr<OfDevice>> devices_;
};

}  // namespace

Result<std::shared_ptr<Copier>> shared_copier(int device) {
  return Copiers::instance().shared(device);
}

Result<std::shared_ptr<Copier>> own_copier(int device) { return Copiers::instance().own(device); }

void drain_shared_copiers() { Copiers::instance().drain(); }

}  // namespace herring::device
