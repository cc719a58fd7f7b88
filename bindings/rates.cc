#include "rates.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "device/numa.h"

namespace herring::bindings {
namespace {

using device::Device, device::Platform;

constexpr int kTimes = 5;  // the fastest try counts

// One direction, with the memory at both ends.
class Direction {
 public:
  Direction(Platform& platform, Device& device, size_t bytes)
      : platform_(platform), device_(device), bytes_(bytes) {}
  ~Direction() {
    if (stream_ != 0) device_.destroy_stream(stream_);
    if (there_ != 0) device_.free(there_);
    if (host_ != nullptr && pinned_.ok()) static_cast<void>(platform_.unregister_host(host_));
    if (host_ != nullptr) ::munmap(host_, bytes_);
  }
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  Status open() {
    HERRING_RETURN_IF_ERROR(device_.make_stream().move_to(stream_));
    HERRING_RETURN_IF_ERROR(device_.allocate(bytes_).move_to(there_));
    void* const host = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
      return {Code::kInternal, concat("no memory to copy to: ", std::strerror(errno))};
    }
    host_ = static_cast<char*>(host);
    device::place_near(device::near_node(device_.properties()), host_, bytes_);
    std::memset(host_, 0, bytes_);  // touches all pages before copies are timed
    pinned_ = platform_.register_host(host_, bytes_);
    return {};
  }
  Status out() { return device_.copy_out(host_, there_, bytes_, stream_); }
  Status in() { return device_.copy_in(there_, host_, bytes_, stream_); }
  Status finish() { return device_.synchronize(stream_); }
  // Returns why the host memory is not registered with the device, or OK if it is.
  const Status& pinned() const { return pinned_; }

 private:
  Platform& platform_;
  Device& device_;
  const size_t bytes_;
  device::Stream stream_ = 0;
  device::Address there_ = 0;
  char* host_ = nullptr;
  Status pinned_;
};

// Returns the bytes per second of the fastest try.
template <typename Copies>
Status measure(double& rate, size_t bytes, const Copies& copies) {
  for (int i = 0; i < kTimes; ++i) {
    const Nanos start = monotonic_now();
    HERRING_RETURN_IF_ERROR(copies());
    const double seconds = to_seconds(std::max<Nanos>(monotonic_now() - start, 1));
    rate = std::max(rate, static_cast<double>(bytes) / seconds);
  }
  return {};
}

}  // namespace

Result<Rates> measure_rates(Platform& platform, Device& device, size_t bytes) {
  Direction one(platform, device, bytes), other(platform, device, bytes);
  HERRING_RETURN_IF_ERROR(one.open());
  HERRING_RETURN_IF_ERROR(other.open());
  Rates rates;
  rates.pinned = one.pinned().ok() ? other.pinned() : one.pinned();
  HERRING_RETURN_IF_ERROR(measure(rates.out, bytes, [&]() -> Status {
    HERRING_RETURN_IF_ERROR(one.out());
    return one.finish();
  }));
  HERRING_RETURN_IF_ERROR(measure(rates.in, bytes, [&]() -> Status {
    HERRING_RETURN_IF_ERROR(other.in());
    return other.finish();
  }));
  HERRING_RETURN_IF_ERROR(measure(rates.both, 2 * bytes, [&]() -> Status {
    HERRING_RETURN_IF_ERROR(one.out());
    HERRING_RETURN_IF_ERROR(other.in());
    HERRING_RETURN_IF_ERROR(one.finish());
    return other.finish();
  }));
  return rates;
}

}  // namespace herring::bindings
