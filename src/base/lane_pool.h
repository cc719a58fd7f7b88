// A pool of equal memory blocks for contributions and results. The block returned last is given out
// first, so the working set stays in cache. The pool grows by slabs as credit grows; slabs are huge
// pages if the system has them. The slabs are mapped, not allocated: pages that were lent and not
// read yet outlive their mapping unchanged, but allocated memory would be used again. Not
// thread-safe.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "base/huge_pages.h"

namespace herring {

class LanePool {
 public:
  // Lanes of whole pages begin at a page boundary, so that lending them touches as few pages as
  // possible. Other lanes have a stride that is not a power of two. Thus equal offsets in many
  // lanes do not share a cache set.
  explicit LanePool(size_t lane_bytes)
      : lane_bytes_(lane_bytes % kPage == 0 ? lane_bytes : (lane_bytes + 63) / 64 * 64 + 64) {}

  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;
  ~LanePool() {
    for (char* slab : slabs_) ::munmap(slab, slab_bytes());
  }

  char* take() {
    if (free_.empty()) grow();
    char* lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void give(char* lane) { free_.push_back(lane); }
  size_t allocated() const { return slabs_.size() * lanes_per_slab(); }
  size_t taken() const { return allocated() - free_.size(); }

 private:
  static constexpr size_t kPage = 4096;

  size_t slab_bytes() const { return (lane_bytes_ + kHugePage - 1) / kHugePage * kHugePage; }
  size_t lanes_per_slab() const { return slab_bytes() / lane_bytes_; }

  void grow() {
    slabs_.reserve(slabs_.size() + 1);
    // The aligned part of a larger mapping; what is before and after it is given back.
    const size_t mapped = slab_bytes() + kHugePage;
    void* const mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    char* const first = static_cast<char*>(mapping);
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
    char* const slab = first + before;
    if (before > 0) ::munmap(first, before);
    ::munmap(slab + slab_bytes(), kHugePage - before);
    advise_huge_pages(slab, slab_bytes());
    slabs_.push_back(slab);
    free_.reserve(allocated());
    for (size_t i = lanes_per_slab(); i-- > 0;) free_.push_back(slab + i * lane_bytes_);
  }

  const size_t lane_bytes_;
  std::vector<char*> slabs_;
  std::vector<char*> free_;
};

}  // namespace herring
