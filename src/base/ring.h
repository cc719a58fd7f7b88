// A growing FIFO in one power-of-two array, which does not allocate once it has its working size.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace herring {

template <typename T>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  T& front() { return items_[head_ & mask()]; }
  T& operator[](size_t i) { return items_[(head_ + i) & mask()]; }
  T& push(T value) {
    if (size() == items_.size()) grow();
    T& place = items_[tail_++ & mask()];
    place = std::move(value);
    return place;
  }
  void pop() { ++head_; }
  void pop(size_t n) { head_ += n; }
  void clear() { head_ = tail_ = 0; }

 private:
  size_t mask() const { return items_.size() - 1; }
  void grow() {
    std::vector<T> larger(items_.empty() ? 16 : 2 * items_.size());
    const size_t n = size();
    for (size_t i = 0; i < n; ++i) larger[i] = std::move((*this)[i]);
    items_ = std::move(larger);
    head_ = 0;
    tail_ = n;
  }

  std::vector<T> items_;
  size_t head_ = 0, tail_ = 0;
};

}  // namespace herring
