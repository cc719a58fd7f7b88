// A queue of items ordered by their times; items with equal times keep the order in which they
// came. Items come in lanes, in which times hardly ever go back, such as the packets of one link. A
// lane is a plain queue, and only its first item is in the heap. Items that are out of order are
// kept apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "virtual/time_heap.h"

namespace herring::transport::virtual_time {

template <typename Item>
class EventQueue {
 public:
  explicit EventQueue(size_t lanes) : lanes_(lanes) {}

  bool empty() const { return heap_.empty(); }
  size_t size() const { return size_; }
  Nanos time() const { return heap_.top().time; }
  const Item& top() const {
    const size_t number = place();
    return number < lanes_.size() ? lanes_[number].front().item : apart_[number - lanes_.size()];
  }

  void push(size_t lane, Nanos time, const Item& item) {
    ++size_;
    const uint64_t order = order_++ << kPlaceBits;
    Lane& queue = lanes_[lane];
    if (queue.count == 0) {
      heap_.push({time, order | lane});
    } else if (time < queue.back().time) {
      heap_.push({time, order | put_apart(item)});
      return;
    }
    queue.push({time, order | lane, item});
  }

  void pop() {
    --size_;
    const size_t number = place();
    if (number >= lanes_.size()) {
      free_.push_back(static_cast<uint32_t>(number - lanes_.size()));
      heap_.pop();
      return;
    }
    Lane& queue = lanes_[number];
    queue.pop();
    if (queue.count == 0) {
      heap_.pop();
    } else {
      heap_.replace_top({queue.front().time, queue.front().tag});
    }
  }

 private:
  static constexpr int kPlaceBits = 24;  // 2^24 items may be out of order, 2^40 in all

  struct Waiting {
    Nanos time;
    uint64_t tag;
    Item item;
  };
  struct Lane {
    std::vector<Waiting> ring;  // its size is a power of two
    size_t begin = 0, count = 0;

    const Waiting& front() const { return ring[begin]; }
    const Waiting& back() const { return ring[(begin + count - 1) & (ring.size() - 1)]; }
    void push(const Waiting& waiting) {
      if (count == ring.size()) grow();
      ring[(begin + count++) & (ring.size() - 1)] = waiting;
    }
    void pop() {
      begin = (begin + 1) & (ring.size() - 1);
      --count;
    }
    void grow() {
      std::vector<Waiting> larger(ring.empty() ? 8 : 2 * ring.size());
      for (size_t i = 0; i < count; ++i) larger[i] = ring[(begin + i) & (ring.size() - 1)];
      ring.swap(larger);
      begin = 0;
    }
  };

  size_t place() const {
    return static_cast<size_t>(heap_.top().tag & ((uint64_t{1} << kPlaceBits) - 1));
  }
  size_t put_apart(const Item& item) {
    if (free_.empty()) {
      apart_.push_back(item);
      return lanes_.size() + apart_.size() - 1;
    }
    const uint32_t number = free_.back();
    free_.pop_back();
    apart_[number] = item;
    return lanes_.size() + number;
  }

  TimeHeap heap_;
  std::vector<Lane> lanes_;
  std::vector<Item> apart_;
  std::vector<uint32_t> free_;  // free places in apart_
  uint64_t order_ = 0;
  size_t size_ = 0;
};

}  // namespace herring::transport::virtual_time
