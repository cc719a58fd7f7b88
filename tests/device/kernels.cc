#include "tests/device/kernels.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/device/driver.h"

namespace standin {
namespace {

using namespace herring_kernels;

char* bytes_at(uint64_t address, size_t bytes) {
  char* const found = driver().bytes_at(address, bytes);
  if (found == nullptr) std::abort();
  return found;
}
uint64_t address_at(uint64_t address, size_t bytes) {
  return reinterpret_cast<uint64_t>(bytes_at(address, bytes));
}

template <typename T, typename To, typename Operator>
void combine_all(const Combination& told) {
  // A thread that stops a kernel may be about to free memory that the kernel would touch.
  const Command command =
      told.command == 0
          ? undivided()
          : *reinterpret_cast<const Command*>(bytes_at(told.command, sizeof(Command)));
  if (command.stop != 0 || told.elements == 0) return;
  Combination what = told;
  const size_t bytes = what.elements * sizeof(typename T::Bits);
  const size_t out = what.elements * sizeof(typename To::Bits);
  for (U32 s = 0; s < what.number_of_sources; ++s) {
    if (command.active >> s & 1u) what.sources[s] = address_at(what.sources[s], bytes);
  }
  for (U32 t = 0; t < what.number_of_targets; ++t) {
    what.targets[t] = address_at(what.targets[t], out);
  }
  herring_kernels::combine<T, Operator, To>(what, command, 0, 1);
}

template <typename T, typename To, typename Operator>
std::function<void()> bind_combination(void** arguments, int) {
  return [told = *static_cast<const Combination*>(arguments[0])] {
    combine_all<T, To, Operator>(told);
  };
}

std::atomic<uint32_t>& word_at(uint64_t address) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(bytes_at(address, sizeof(uint32_t)));
}

std::function<void()> bind_wait(void** arguments, int device) {
  const auto address = *static_cast<const uint64_t*>(arguments[0]);
  const auto value = *static_cast<const uint32_t*>(arguments[1]);
  return [=] {
    if (address == 0) return;
    const std::atomic<uint32_t>& word = word_at(address);
    while (!herring_words::reached(word.load(std::memory_order_acquire), value) &&
           !is_lost(device)) {
      std::this_thread::sleep_for(20us);
    }
  };
}

std::function<void()> bind_write(void** arguments, int) {
  const auto address = *static_cast<const uint64_t*>(arguments[0]);
  const auto value = *static_cast<const uint32_t*>(arguments[1]);
  return [=] {
    if (address != 0) word_at(address).store(value, std::memory_order_release);
  };
}

#define CAST(type, target, op)                                                           \
  KernelEntry {                                                                          \
    image_of(#type, #target, #op), "herring_combine", bind_combination<type, target, op> \
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
      CAST(Float16, Float32, Sum), CAST(BFloat16, Float32, Sum),
      KernelEntry{kWordsImage, "herring_wait", bind_wait},
      KernelEntry{kWordsImage, "herring_write", bind_write}};
  return *all;
}

}  // namespace

const KernelEntry* find_kernel(const std::string& image, const std::string& name) {
  for (const KernelEntry& one : all_kernels()) {
    if (one.image == image && (name.empty() || one.name == name)) return &one;
  }
  return nullptr;
}

}  // namespace standin
