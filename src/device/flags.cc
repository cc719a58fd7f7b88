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
  for (const Page& page : pages_) let_go(page);
}

void Flags::let_go(const Page& page) {
  if (page.allocated) {
    static_cast<void>(platform_.free_host(page.memory));
  } else {
    static_cast<void>(platform_.unregister_host(page.memory));
    ::munmap(page.memory, page_bytes());
  }
}

Result<Flags::Page> Flags::map(size_t bytes) {
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return Status(Code::kInternal, concat("no memory for flags: ", std::strerror(errno)));
  }
  // Without this a fork would turn the page into copies, and the device would keep using one of
  // them only.
  ::madvise(page, bytes, MADV_DONTFORK);
  place_near(near_node(device_.properties()), page, bytes);
  if (Status known = platform_.register_host(page, bytes); !known.ok()) {
    ::munmap(page, bytes);
    return known;
  }
  return Page{static_cast<char*>(page), false};
}

Result<Flag> Flags::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    const size_t bytes = page_bytes();
    auto page = map(bytes);
    // Devices may accept memory of the driver's where they refuse memory of the process.
    if (page.status().code() == Code::kDevice) {
      auto memory = platform_.allocate_host(bytes);
      if (!memory.ok()) {
        return Status(Code::kDevice,
                      concat("the words through which GPUs and processors meet cannot be pinned: ",
                             page.status().message(), "; ", memory.status().message(),
                             ". If the process may lock too little memory, allow it more "
                             "(ulimit -l unlimited; in containers --ulimit memlock=-1)"));
      }
      page = Page{static_cast<char*>(*memory), true};
    }
    if (!page.ok()) return page.status();
    auto address = device_.address_of(page->memory);
    if (!address.ok()) {
      let_go(*page);
      return address.status();
    }
    pages_.push_back(*page);
    for (size_t at = 0; at < bytes; at += kLine) {
      auto* const word = new (page->memory + at) std::atomic<uint32_t>(0);
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
