#include "device/flags.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "device/numa.h"

namespace herring::device {
namespace {

constexpr size_t kLine = 64;

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

Flags::~Flags() {
  for (void* page : pages_) {
    static_cast<void>(platform_.unregister_host(page));
    ::munmap(page, page_bytes());
  }
}

Result<Flag> Flags::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const size_t bytes = page_bytes();
    void* const page =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
      return Status(Code::kInternal, concat("no memory for flags: ", std::strerror(errno)));
    }
    // Without this a fork would turn the page into copies, and the device would keep using one of
    // them only.
    ::madvise(page, bytes, MADV_DONTFORK);
    place_near(near_node(device_.properties()), page, bytes);
    Status known = platform_.register_host(page, bytes);
    Result<Address> address = known.ok() ? device_.address_of(page) : Result<Address>(known);
    if (!address.ok()) {
      if (known.ok()) static_cast<void>(platform_.unregister_host(page));
      ::munmap(page, bytes);
      return address.status();
    }
    pages_.push_back(page);
    for (size_t at = 0; at < bytes; at += kLine) {
      auto* const word = new (static_cast<char*>(page) + at) std::atomic<uint32_t>(0);
      free_.push_back({word, *address + at});
    }
  }
  const Flag flag = free_.back();
  free_.pop_back();
  return flag;
}

void Flags::give_back(Flag flag) {
  std::lock_guard lock(mutex_);
  free_.push_back(flag);
}

}  // namespace herring::device
