// Holds one bit for each number of a window that moves upwards.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace herring::transport::virtual_time {

class BitRing {
 public:
  // Makes room for numbers in [first, end); bits outside this range must be clear.
  void reserve(uint64_t first, uint64_t end) {
    size_t words = words_.size();
    if (end - first + 64 <= words * 64) return;
    std::vector<uint64_t> old(std::bit_ceil((end - first + 64) / 64 + 1));
    old.swap(words_);
    if (old.empty()) return;
    for (uint64_t word = first / 64; word < first / 64 + old.size(); ++word) {
      words_[word & (words_.size() - 1)] = old[word & (old.size() - 1)];
    }
  }
  // Numbers without room count as clear.
  bool test(uint64_t number) const { return !words_.empty() && (word(number) >> number % 64 & 1); }
  void set(uint64_t number) { word(number) |= uint64_t{1} << number % 64; }
  void clear(uint64_t number) { word(number) &= ~(uint64_t{1} << number % 64); }

  // Return the first number in [from, end) that is set, or clear; `end` if there is none.
  uint64_t next_set(uint64_t from, uint64_t end) const { return next(from, end, 0); }
  uint64_t next_clear(uint64_t from, uint64_t end) const { return next(from, end, ~uint64_t{0}); }
  // Returns the first number of the run of set bits that ends before `end`; at least `first`.
  uint64_t run_begin(uint64_t end, uint64_t first) const {
    while (end > first) {
      uint64_t below = (end - 1) % 64 + 1;  // bits of this word that lie below `end`
      uint64_t unset = ~(word(end - 1) << (64 - below));
      uint64_t run = std::min<uint64_t>(below, static_cast<uint64_t>(std::countl_zero(unset)));
      end -= run;
      if (run < below) break;
    }
    return std::max(end, first);
  }

 private:
  uint64_t& word(uint64_t number) { return words_[number / 64 & (words_.size() - 1)]; }
  uint64_t word(uint64_t number) const { return words_[number / 64 & (words_.size() - 1)]; }

  uint64_t next(uint64_t from, uint64_t end, uint64_t flip) const {
    if (words_.empty()) return flip ? std::min(from, end) : end;
    while (from < end) {
      uint64_t bits = (word(from) ^ flip) >> from % 64;
      if (bits != 0) return std::min(end, from + static_cast<uint64_t>(std::countr_zero(bits)));
      from += 64 - from % 64;
    }
    return end;
  }

  std::vector<uint64_t> words_;  // their number is a power of two
};

}  // namespace herring::transport::virtual_time
