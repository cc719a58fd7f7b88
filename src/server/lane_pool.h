// A pool of equal memory blocks for contributions and results. The block returned last is given out
// first, so the working set stays in cache. The pool grows by slabs as credit grows; slabs are huge
// pages if the system has them. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/huge_pages.h"

namespace herring::server {

class LanePool {
 public:
  // Lanes of whole pages begin at a page boundary, so that lending them touches as few pages as
  // possible. Other lanes have a stride that is not a power of two. Thus equal offsets in many
  // lanes do not share a cache set.
  explicit LanePool(size_t lane_bytes)
      : lane_bytes_(lane_bytes % kPage == 0 ? lane_bytes : (lane_bytes + 63) / 64 * 64 + 64) {}

  char* take() {
    if (free_.empty()) grow();
    char* lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void give(char* lane) { free_.push_back(lane); }
  size_t allocated() const { return slabs_.size() * lanes_per_slab(); }

 private:
  static constexpr size_t kPage = 4096;

  struct Free {
    void operator()(char* p) const { std::free(p); }
  };

  size_t slab_bytes() const { return (lane_bytes_ + kHugePage - 1) / kHugePage * kHugePage; }
  size_t lanes_per_slab() const { return slab_bytes() / lane_bytes_; }

  void grow() {
    auto* slab = static_cast<char*>(std::aligned_alloc(kHugePage, slab_bytes()));
    if (slab == nullptr) throw std::bad_alloc();
    advise_huge_pages(slab, slab_bytes());
    slabs_.emplace_back(slab);
    free_.reserve(allocated());
    for (size_t i = lanes_per_slab(); i-- > 0;) free_.push_back(slab + i * lane_bytes_);
  }

  const size_t lane_bytes_;
  std::vector<std::unique_ptr<char, Free>> slabs_;
  std::vector<char*> free_;
};

}  // namespace herring::server
