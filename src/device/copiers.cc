#include "device/copiers.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "device/pin.h"

namespace herring::device {
namespace {

// How often, and at which interval, it is checked whether streams are idle before a kernel is
// loaded.
constexpr int kLooks = 10;
constexpr auto kBetweenLooks = std::chrono::microseconds(200);
// Of an image that only shows whether neighbours can map it.
constexpr size_t kSmallImage = 256;

struct OfDevice {
  OfDevice(Platform& platform, Device& device) : flags(platform, device) {}
  Flags flags;
  std::shared_ptr<Copier> shared;
  std::vector<std::weak_ptr<Copier>> own;
  std::vector<std::shared_ptr<Relay>> relays;
  std::map<KernelName, Kernel> kernels;  // that have run once
};

class Copiers {
 public:
  static Copiers& instance() {
    static auto* const copiers = new Copiers;
    return *copiers;
  }

  Result<std::shared_ptr<Copier>> shared(int index) {
    auto all = platform();  // before locking: in a forked child the lock may be held for ever
    if (!all.ok()) return all.status();
    std::lock_guard lock(mutex_);
    HERRING_ASSIGN_OR_RETURN(auto& device, of(**all, index));
    unmap();
    if (device->shared == nullptr) {
      HERRING_RETURN_IF_ERROR(
          Copier::create(device->flags, Watcher::shared()).move_to(device->shared));
    }
    return device->shared;
  }

  Result<std::shared_ptr<Copier>> own(int index) {
    HERRING_ASSIGN_OR_RETURN(auto& all, platform());
    std::lock_guard lock(mutex_);
    HERRING_ASSIGN_OR_RETURN(auto& device, of(*all, index));
    auto made = Copier::create(device->flags, Watcher::shared());
    if (made.ok()) device->own.push_back(*made);
    return made;
  }

  Result<Taken> relay(int index, DType dtype, ReduceOp op, const Near& near) {
    HERRING_ASSIGN_OR_RETURN(auto& all, platform());
    std::lock_guard lock(mutex_);
    HERRING_ASSIGN_OR_RETURN(auto& found, of(*all, index));
    OfDevice& device = *found;
    // A lost relay whose device may still come to it holds itself, and nothing may be loaded or
    // unmapped meanwhile.
    std::erase_if(device.relays,
                  [](const auto& one) { return one->is_lost() && one.use_count() == 1; });
    std::shared_ptr<Relay> relay;
    for (const auto& one : device.relays) {
      if (one.use_count() == 1) relay = one;
    }
    if (relay == nullptr && device.relays.size() < kMostRelays) {
      HERRING_ASSIGN_OR_RETURN(auto& made, Relay::create(device.flags, Watcher::shared()));
      device.relays.push_back(relay = made);
    }
    if (relay == nullptr) return Taken{};
    HERRING_ASSIGN_OR_RETURN(auto& kernel, ready(device, *relay, KernelName::of(dtype, op)));
    if (kernel == 0) return Taken{};
    if (!near.owners.empty()) share(device, relay, near);
    return Taken{relay, kernel};
  }

  Result<Kernel> kernel(Copier& copier, const KernelName& name) {
    HERRING_ASSIGN_OR_RETURN(auto& all, platform());
    std::lock_guard lock(mutex_);
    HERRING_ASSIGN_OR_RETURN(auto& device, of(*all, copier.device().index()));
    const Status idle = copier.drain(monotonic_now() + Copier::kPatience);
    if (idle.code() == Code::kTimeout) return Kernel{0};
    HERRING_RETURN_IF_ERROR(idle);
    HERRING_ASSIGN_OR_RETURN(auto& relay, Relay::create(device->flags, Watcher::shared()));
    return ready(*device, *relay, name);
  }

  void unmap_if_idle() {
    if (generation_ != fork_generation()) return;
    std::lock_guard lock(mutex_);
    unmap();
  }

  // Callbacks that learn of an error may ask for a copier, so they are called without the lock.
  void check() {
    if (generation_ != fork_generation()) return;
    std::vector<std::shared_ptr<Copier>> copiers;
    std::vector<std::shared_ptr<Relay>> relays;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [index, device] : devices_) {
        if (device->shared != nullptr) copiers.push_back(device->shared);
        for (const auto& one : device->own) {
          if (auto copier = one.lock()) copiers.push_back(std::move(copier));
        }
        std::ranges::copy_if(device->relays, std::back_inserter(relays),
                             [](const auto& one) { return one.use_count() > 1; });  // it is taken
      }
    }
    for (const auto& copier : copiers) static_cast<void>(copier->check());
    for (const auto& relay : relays) static_cast<void>(relay->check());
  }

  void drain() {
    if (generation_ != fork_generation()) return;  // copies under way belong to the parent
    std::lock_guard lock(mutex_);
    const Nanos deadline = monotonic_now() + Copier::kPatience;
    for (const auto& [index, device] : devices_) {
      if (device->shared == nullptr) continue;
      if (device->shared->drain(deadline).code() == Code::kTimeout) {
        log(LogLevel::kWarning, "GPU ", index, " has not come to copies of calls that have ended; "
            "it is not waited for any longer");
      }
    }
    unmap();
  }

 private:
  Result<OfDevice*> of(Platform& platform, int index) {
    HERRING_ASSIGN_OR_RETURN(auto& device, platform.device(index));
    std::unique_ptr<OfDevice>& one = devices_[index];
    if (one == nullptr) one = std::make_unique<OfDevice>(platform, *device);
    return one.get();
  }

  // Returns 0 if the kernel cannot be loaded now.
  Result<Kernel> ready(OfDevice& device, Relay& relay, const KernelName& name) {
    Status loaded;
    soon_while_nobody_waits([&] { return loaded.ok() && !device.kernels.contains(name); }, kLooks,
                            [&] { loaded = load(device, relay, name); });
    if (!loaded.ok()) return loaded;
    const auto kernel = device.kernels.find(name);
    return kernel == device.kernels.end() ? Kernel{0} : kernel->second;
  }

  // Maps the images of near ranks, and gives the relay an image for them. Without that, data goes
  // through host memory.
  void share(OfDevice& of, const std::shared_ptr<Relay>& relay, const Near& near) {
    Device& device = of.flags.device();
    Neighbours& neighbours = Neighbours::instance();
    // Another array in flight waits for other ranks for long, but this call can do without.
    const bool alone = std::none_of(of.relays.begin(), of.relays.end(), [&](const auto& one) {
      return one != relay && one.use_count() > 1;
    });
    const size_t bytes = neighbours.reaches_us(near.owners) ? near.bytes : kSmallImage;
    soon_while_nobody_waits(
        [&] {
          return relay->should_share(bytes) || neighbours.any_to_map(device.index(), near.owners);
        },
        alone ? kLooks : 1,
        [&] {
          neighbours.map(device, near.owners);
          if (!relay->should_share(bytes)) return;
          if (Status shared = relay->share(bytes); !shared.ok()) {
            log(LogLevel::kInfo, "GPU ", device.index(), " has no memory of ", bytes,
                " bytes that its neighbours could read: ", shared.message());
          }
        });
  }

  // Runs `call` while it is `wanted`, if no stream of this process waits for other ranks now or
  // after one of a few looks.
  void soon_while_nobody_waits(const std::function<bool()>& wanted, int looks,
                               const std::function<void()>& call) {
    for (int i = 0; i < looks && wanted(); ++i) {
      // After a stream's last word is visible, the driver needs a moment to report the stream as
      // idle.
      if (i > 0) std::this_thread::sleep_for(kBetweenLooks);
      while_nobody_waits(call);
    }
  }

  static Status load(OfDevice& device, Relay& relay, const KernelName& name) {
    HERRING_ASSIGN_OR_RETURN(auto& kernel, device.flags.device().kernel(name));
    HERRING_RETURN_IF_ERROR(relay.try_kernel(kernel));
    device.kernels.emplace(name, kernel);
    return {};
  }

  // Unmaps only if that waits for nothing.
  void unmap() {
    if (!any_to_unmap()) return;
    std::vector<std::shared_ptr<Copier>> shared;
    for (const auto& [index, device] : devices_) {
      if (device->shared != nullptr) shared.push_back(device->shared);
    }
    while_nobody_waits([&] { while_all_idle(shared, 0, unmap_left); });
  }

  // Runs `call` if no stream of this process waits for other ranks; none begins to wait meanwhile.
  void while_nobody_waits(const std::function<void()>& call) {
    std::vector<std::shared_ptr<Copier>> copiers;
    std::vector<std::shared_ptr<Relay>> relays;
    for (const auto& [index, device] : devices_) {
      std::erase_if(device->own, [](const auto& one) { return one.expired(); });
      for (const auto& one : device->own) {
        if (auto copier = one.lock()) copiers.push_back(std::move(copier));
      }
      // A relay that nobody holds cannot be used by anybody else.
      for (const auto& one : device->relays) {
        if (one.use_count() > 1) relays.push_back(one);
      }
    }
    while_all_idle(relays, 0, [&] { while_all_idle(copiers, 0, call); });
  }

  template <typename Queues>
  static void while_all_idle(const std::vector<std::shared_ptr<Queues>>& all, size_t first,
                             const std::function<void()>& call) {
    if (first == all.size()) return call();
    all[first]->while_idle([&] { while_all_idle(all, first + 1, call); });
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

Result<Taken> take_relay(int device, DType dtype, ReduceOp op, const Near& near) {
  return Copiers::instance().relay(device, dtype, op, near);
}

Result<Kernel> ready_kernel(Copier& copier, const KernelName& name) {
  return Copiers::instance().kernel(copier, name);
}

void unmap_if_idle() { Copiers::instance().unmap_if_idle(); }

void check_devices() { Copiers::instance().check(); }

void drain_shared_copiers() { Copiers::instance().drain(); }

}  // namespace herring::device
