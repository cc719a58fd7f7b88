#include "devices.h"

#include <nanobind/stl/string.h>

#include <map>
#include <mutex>
#include <vector>

#include "bindings.h"
#include "device/rates.h"

namespace herring::bindings {
namespace {

struct Copiers {
  std::mutex mutex;
  std::map<int, std::shared_ptr<device::Copier>> by_device;
};

Copiers& copiers() {
  static auto* const all = new Copiers;
  return *all;
}

// Raises ConfigurationError with why there are none.
device::Platform& platform() {
  return *take(without_gil([] { return device::platform(); }));
}

nb::dict describe_devices() {
  device::Platform& all = platform();
  nb::list devices;
  for (int i = 0; i < all.count(); ++i) {
    const device::Properties& properties = all.properties(i);
    nb::dict one;
    one["name"] = properties.name;
    one["bus"] = properties.bus;
    one["memory"] = properties.memory;
    one["capability"] = nb::make_tuple(properties.major, properties.minor);
    one["numa_node"] = properties.numa_node;
    one["stream_memory"] = properties.stream_memory;
    nb::list peers;
    for (int peer = 0; peer < all.count(); ++peer) {
      if (peer != i && all.can_access(i, peer)) peers.append(peer);
    }
    one["peers"] = peers;
    devices.append(one);
  }
  nb::dict found;
  found["driver"] = all.version();
  found["devices"] = devices;
  return found;
}

nb::dict measure_copies(int index, size_t bytes) {
  device::Platform& all = platform();
  const device::Rates rates = take(without_gil([&]() -> Result<device::Rates> {
    auto one = all.device(index);
    return one.ok() ? device::measure_rates(all, **one, bytes) : one.status();
  }));
  nb::dict found;
  found["out"] = rates.out;
  found["in"] = rates.in;
  found["both"] = rates.both;
  found["pinned"] = rates.pinned;
  return found;
}

// What this process has copied out of a device and back.
nb::dict copied(int index) {
  const device::Copier::Counters counters = take(copier_of(index))->counters();
  nb::dict found;
  found["bytes_out"] = counters.bytes_out;
  found["bytes_back"] = counters.bytes_back;
  return found;
}

}  // namespace

Result<std::shared_ptr<device::Copier>> copier_of(int index) {
  auto all = device::platform();
  if (!all.ok()) return all.status();
  auto device = (*all)->device(index);
  if (!device.ok()) return device.status();
  std::lock_guard lock(copiers().mutex);
  std::shared_ptr<device::Copier>& copier = copiers().by_device[index];
  if (copier == nullptr) {
    auto made = device::Copier::create(**all, **device, device::Watcher::shared());
    if (!made.ok()) return made.status();
    copier = *made;
  }
  return copier;
}

void drain_copiers() {
  if (copiers().by_device.empty() || !device::platform().ok()) return;
  std::lock_guard lock(copiers().mutex);
  for (const auto& [index, copier] : copiers().by_device) {
    if (copier != nullptr) copier->drain();
  }
}

void register_devices(nb::module_& module) {
  using namespace nb::literals;
  module.def("describe_devices", &describe_devices);
  module.def("measure_copies", &measure_copies, "device"_a, "bytes"_a);
  module.def("copied", &copied, "device"_a);
}

}  // namespace herring::bindings
