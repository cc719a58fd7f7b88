#include "tests/device/kernels.h"

#include <cstdlib>
#include <vector>

#include "tests/device/driver.h"

namespace standin {
namespace {

using namespace herring_kernels;

template <typename T, typename To, typename Operator>
void combine_all(const Combination& what, const Command& command) {
  herring_kernels::combine<T, Operator, To>(what, command, 0, 1);
}

#define CAST(type, target, op)                                                         \
  KernelEntry {                                                                        \
    image_of(#type, #target, #op), sizeof(type::Bits), sizeof(target::Bits),           \
        combine_all<type, target, op>                                                  \
  }
#define KERNEL(type, op) CAST(type, type, op)
#define KERNELS(type) \
  KERNEL(type, Sum), KERNEL(type, Product), KERNEL(type, Min), KERNEL(type, Max)

const std::vector<KernelEntry>& all_kernels() {
  static const auto* const all = new std::vector<KernelEntry>{
      KERNELS(Float32), KERNELS(Float64), KERNELS(Float16), KERNELS(BFloat16), KERNELS(Int8),
      KERNELS(Int16),   KERNELS(Int32),   KERNELS(Int64),   KERNELS(UInt8),
      KERNEL(Bool, Or), KERNEL(Bool, And),
      CAST(Float32, Float16, Sum), CAST(Float32, BFloat16, Sum),
      CAST(Float16, Float32, Sum), CAST(BFloat16, Float32, Sum)};
  return *all;
}

}  // namespace

const KernelEntry* find_kernel(const std::string& image) {
  for (const KernelEntry& one : all_kernels()) {
    if (one.image == image) return &one;
  }
  return nullptr;
}

void run_kernel(const KernelEntry& kernel, const Combination& told) {
  const auto bytes_at = [](uint64_t address, size_t bytes) {
    char* const found = driver().bytes_at(address, bytes);
    if (found == nullptr) std::abort();
    return reinterpret_cast<uint64_t>(found);
  };
  // A thread that stops a kernel may be about to free memory that the kernel would touch.
  const Command command =
      told.command == 0
          ? undivided()
          : *reinterpret_cast<const Command*>(bytes_at(told.command, sizeof(Command)));
  if (command.stop != 0 || told.elements == 0) return;
  Combination what = told;
  const size_t bytes = what.elements * kernel.element, out = what.elements * kernel.target;
  for (U32 s = 0; s < what.number_of_sources; ++s) {
    if (command.active >> s & 1u) what.sources[s] = bytes_at(what.sources[s], bytes);
  }
  for (U32 t = 0; t < what.number_of_targets; ++t) {
    what.targets[t] = bytes_at(what.targets[t], out);
  }
  kernel.combine(what, command);
}

}  // namespace standin
