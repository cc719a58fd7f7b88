// Asks the system for huge pages: memory that goes through the kernel is looked up, pinned and
// counted page by page there.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace herring {

// The size to align to: of most systems' smallest huge pages.
inline constexpr size_t kHugePage = size_t{2} << 20;

// Advice only: many systems have them for private memory, but not for shared, and some for neither.
// Of memory that begins anywhere, what lies in whole pages.
inline void advise_huge_pages(void* memory, size_t bytes) {
  constexpr uintptr_t kPage = 64 << 10;  // the largest that systems have
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (end < begin + kHugePage) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace herring
