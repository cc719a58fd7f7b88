// The description of an array, without its content.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "base/dtype.h"

namespace herring::wire {

struct Array {
  DType dtype = DType::kUInt8;
  std::vector<uint64_t> shape;

  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // Returns the number of elements in a row, even if the array has no rows.
  uint64_t row_elements() const {
    return std::accumulate(shape.begin() + (shape.empty() ? 0 : 1), shape.end(), uint64_t{1},
                           std::multiplies<>());
  }
  uint64_t row_bytes() const { return row_elements() * size_of(dtype); }
  uint64_t elements() const { return rows() * row_elements(); }
  uint64_t bytes() const { return elements() * size_of(dtype); }
};

// Returns whether `splits` has `ranks` counts for each array, one array after the other, and the
// counts of each array sum up to its rows.
inline bool are_splits(const std::vector<uint64_t>& splits, const std::vector<Array>& arrays,
                       uint32_t ranks) {
  if (splits.size() != arrays.size() * ranks) return false;
  for (size_t i = 0; i < arrays.size(); ++i) {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (__builtin_add_overflow(sum, splits[i * ranks + rank], &sum)) return false;
    }
    if (sum != arrays[i].rows()) return false;
  }
  return true;
}

}  // namespace herring::wire
