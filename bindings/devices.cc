// GPUs, for reports.
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "device/cuda/compiler.h"
#include "rates.h"

namespace herring::bindings {
namespace {

// Raises ConfigurationError, with the reason, if there are no GPUs.
device::Platform& platform() {
  return *take(without_gil([] { return device::platform(); }));
}

nb::dict describe_devices() {
  using namespace nb::literals;
  device::Platform& all = platform();
  nb::list devices;
  for (int i = 0; i < all.count(); ++i) {
    const device::Properties& properties = all.properties(i);
    nb::list peers;
    for (int peer = 0; peer < all.count(); ++peer) {
      if (peer != i && all.can_access(i, peer)) peers.append(peer);
    }
    devices.append(dict_of(
        "name"_a = properties.name, "bus"_a = properties.bus, "memory"_a = properties.memory,
        "capability"_a = nb::make_tuple(properties.major, properties.minor),
        "numa_node"_a = properties.numa_node, "stream_memory"_a = properties.stream_memory,
        "refused"_a = all.check_words(i).message(), "peers"_a = peers));
  }
  const auto compiler = device::cuda::compiler_version();
  return dict_of("driver"_a = all.version(),
                 "compiler"_a = compiler.ok()
                                    ? *compiler
                                    : concat("none (", compiler.status().message(), ")"),
                 "devices"_a = devices);
}

nb::dict measure_copies(int index, size_t bytes) {
  using namespace nb::literals;
  device::Platform& all = platform();
  const Rates rates = take(without_gil([&]() -> Result<Rates> {
    auto one = all.device(index);
    return one.ok() ? measure_rates(all, **one, bytes) : one.status();
  }));
  return dict_of("out"_a = rates.out, "in"_a = rates.in, "both"_a = rates.both,
                 "pinned"_a = rates.pinned.ok(), "refused"_a = rates.pinned.message());
}

}  // namespace

void register_devices(nb::module_& module) {
  using namespace nb::literals;
  module.def("describe_devices", &describe_devices);
  module.def("compile_kernel", [](int major, int minor, const std::string& dtype,
                                  const std::string& op, const std::string& target) {
    auto name = device::KernelName::of(take(parse_dtype(dtype)), take(parse_reduce_op(op)));
    if (!target.empty()) name.to = take(parse_dtype(target));
    const std::string code = take(device::cuda::compile_kernel(major, minor, name));
    return nb::bytes(code.data(), code.size());
  }, "major"_a, "minor"_a, "dtype"_a, "op"_a, "target"_a = "");
  module.def("compile_words", [](int major, int minor) {
    const std::string code = take(device::cuda::compile_words(major, minor));
    return nb::bytes(code.data(), code.size());
  }, "major"_a, "minor"_a);
  module.def("add_compiler_folder", &device::cuda::add_compiler_folder, "folder"_a);
  module.def("check_memory_of", [](int device, uintptr_t address, size_t bytes) {
    check(check_memory_of(device, reinterpret_cast<const char*>(address), bytes));
  }, "device"_a, "address"_a, "bytes"_a);
  module.def("measure_copies", &measure_copies, "device"_a, "bytes"_a);
}

}  // namespace herring::bindings
