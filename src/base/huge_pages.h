// Asks the system for huge pages. When memory passes through the kernel, the kernel looks up, pins
// and counts every page, so fewer pages cost less.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace herring {

// The alignment to use: the size of the smallest huge pages on most systems.
inline constexpr size_t kHugePage = size_t{2} << 20;

// This is advice only: many systems have huge pages for private but not for shared memory, and some
// for neither.
inline void advise_huge_pages(void* memory, size_t bytes) {
  if (bytes >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
}

}  // namespace herring
