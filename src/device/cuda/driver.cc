#include "device/cuda/driver.h"

#include <dlfcn.h>

namespace herring::device::cuda {
namespace {

constexpr const char* kOldest = "11.7";  // the CUDA version that has all functions used here

// The two forms of the function that finds addresses by name and version: CUDA 11.3 has the first,
// CUDA 12.0 the second.
using FindFirst = Answer (*)(const char*, void**, int, uint64_t);
using FindSecond = Answer (*)(const char*, void**, int, uint64_t, int*);

}  // namespace

Result<Driver> Driver::load(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(Code::kConfiguration, concat("no CUDA driver: ", ::dlerror()));
  }
  // The library is never unloaded, because user streams may use it until the process ends.
  const auto first = reinterpret_cast<FindFirst>(::dlsym(handle, "cuGetProcAddress"));
  const auto second = reinterpret_cast<FindSecond>(::dlsym(handle, "cuGetProcAddress_v2"));
  if (first == nullptr && second == nullptr) {
    return Status(Code::kConfiguration,
                  concat(library, " has no cuGetProcAddress; a driver for CUDA ", kOldest,
                         " or later is needed"));
  }
  Driver driver;
  const auto find = [&](const char* symbol, int version, void** address) {
    int outcome = 0;
    const Answer found = second != nullptr ? second(symbol, address, version, 0, &outcome)
                                            : first(symbol, address, version, 0);
    if (found == kSuccess && *address != nullptr) return Status();
    return Status(Code::kConfiguration,
                  concat(library, " has no ", symbol, " of CUDA ", version / 1000, ".",
                         version % 1000 / 10, "; a driver for CUDA ", kOldest,
                         " or later is needed"));
  };
#define HERRING_FIND(member, symbol, version, arguments) \
  HERRING_RETURN_IF_ERROR(find(symbol, version, reinterpret_cast<void**>(&driver.member)));
  HERRING_CUDA_FUNCTIONS(HERRING_FIND)
#undef HERRING_FIND
  return driver;
}

Status Driver::check(Answer result, const char* function, const std::string& who) const {
  if (result == kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) name = "an error without a name";
  if (error_text(result, &text) != kSuccess || text == nullptr) text = "no text";
  return {Code::kDevice, concat(who, ": ", function, " failed: ", text, " (", name, ", ", result,
                                ")")};
}

}  // namespace herring::device::cuda
