// Computes, without the core, what ranks contribute and what the results must be. Every element is
// a small whole number that follows from salt, rank and index. Sums, products and averages are
// exact in their type, or rounded once by one division. A result must therefore have the right bits
// whatever the order of the sum, and an element in a wrong place shows.
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
  // For averages only: values are multiples of this, so that the division is exact. 0 allows any
  // whole number.
  uint32_t divisor = 0;
  // In each place only one of the job's ranks, of which there are so many, has a number other than
  // 0. So 8 bits hold all sums. 0: all ranks have numbers.
  uint32_t lone = 0;
};

// Writes elements first ... first + count - 1 of `rank`'s array.
void fill(const Values& values, uint32_t rank, uint64_t first, uint64_t count, void* out);

// Writes elements [first, first + count) of the reduction over `ranks`, or zeros if there are no
// ranks.
void reduce(const Values& values, const std::vector<uint32_t>& ranks, uint64_t first,
            uint64_t count, void* out);

// Returns where the first difference is, or "" if there is none.
std::string difference(DType dtype, const void* got, const void* expected, uint64_t count);

}  // namespace herring::random_test
