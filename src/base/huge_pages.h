// Asks the system for huge pages: memory that goes through the kernel is looked up, pinned and
// counted page by page there.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace herring {

// The size to align to: of most systems' smallest huge pages.
inline constexpr size_t kHugePage = size_t{2} << 20;

// Advice only: many systems have them for private memory, but not for shared, and some for neither.
inline void advise_huge_pages(void* memory, size_t bytes) {
  if (bytes >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
}

}  // namespace herring
