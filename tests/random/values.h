// What ranks contribute, and what must come of it, computed without the core: every element is a
// small whole number that follows from salt, rank and index, chosen so that sums, products and
// averages are exact in their type (or rounded once, by one division). So a result is right to the
// bit whatever the order of the sum, and an element that lands in a wrong place shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace herring::random_test {

struct Values {
  uint64_t salt = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0, postscale = 1.0;
  // Averages only: multiples of this, so that dividing by it is exact; 0: any whole number.
  uint32_t divisor = 0;
};

// Elements first ... first + count - 1 of `rank`'s array.
void fill(const Values& values, uint32_t rank, uint64_t first, uint64_t count, void* out);

// Elements [first, first + count) of the reduction over `ranks`. No ranks: zeros.
void reduce(const Values& values, const std::vector<uint32_t>& ranks, uint64_t first,
            uint64_t count, void* out);

// "" when equal, else where the first difference is.
std::string difference(DType dtype, const void* got, const void* expected, uint64_t count);

}  // namespace herring::random_test
