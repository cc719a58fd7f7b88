// Random numbers that are the same on every machine: everything in a program follows from its seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace herring::random_test {

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  // Seeds that differ in one part give unrelated streams.
  explicit Random(std::initializer_list<uint64_t> seed) {
    for (const uint64_t part : seed) state_ = mix(state_ ^ part);
  }

  uint64_t next() { return mix(state_++); }
  // Returns a number in [0, n).
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }
  uint64_t from_to(uint64_t first, uint64_t last) { return first + below(last - first + 1); }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }
  // Returns 0 ... n - 1 in random order.
  std::vector<uint32_t> order(size_t n) {
    std::vector<uint32_t> all(n);
    for (size_t i = 0; i < n; ++i) all[i] = static_cast<uint32_t>(i);
    shuffle(all);
    return all;
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace herring::random_test
