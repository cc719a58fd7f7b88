// Memory of a call's own, in the heap that neighbours and devices can see, for arrays that lie
// elsewhere. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "node/shared_memory.h"

namespace herring::calls {

class Staging {
 public:
  explicit Staging(std::shared_ptr<SharedHeap> heap) : heap_(std::move(heap)) {}
  ~Staging() { drop(); }

  const std::shared_ptr<SharedHeap>& heap() const { return heap_; }
  // Before anyone else knows of it.
  Status allocate(size_t bytes, Use use) {
    HERRING_ASSIGN_OR_RETURN(auto& memory, heap_->allocate(bytes, use));
    memory_ = static_cast<char*>(memory);
    return {};
  }
  char* memory() const { return memory_; }  // null: there is none, or it is gone
  // Frees the memory, unless a device is to copy from it.
  void drop() {
    std::lock_guard lock(mutex_);
    if (held_) return;
    if (char* const memory = std::exchange(memory_, nullptr)) heap_->free(memory);
  }
  // A device is to copy from the memory, until let_go(). Returns false if it is gone.
  bool hold() {
    std::lock_guard lock(mutex_);
    return held_ = memory_ != nullptr;
  }
  void let_go() {
    {
      std::lock_guard lock(mutex_);
      held_ = false;
    }
    drop();
  }

 private:
  const std::shared_ptr<SharedHeap> heap_;
  std::mutex mutex_;
  char* memory_ = nullptr;
  bool held_ = false;
};

}  // namespace herring::calls
