// Packs of the largest numbers (top-k). A pack stands for pack_numbers() numbers, of which it has
// up to kSparseEntries: a count (u16), two bytes that are 0, the indices (u16 each, ascending), and
// the values (bfloat16 each). The other numbers are 0. What a pack says is checked here, so a pack
// from a stranger does no harm.
//
// Of equal numbers the first is larger. NaN is larger than infinity, so neither is left behind.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace herring::reduce {

struct Stage;

// As pack(), which calls this for sparse types. What does not travel is left in `residual`; but it
// stays as it was if a number is not finite, because the step will be skipped.
void pack_largest(const float* values, size_t count, void* pack, float* residual);

// As combine(), which calls this. Packs are summed in the order of sources. A sparse result has the
// largest sums, and a result of another type has all.
void combine_sparse(const void* const* sources, size_t n, void* out, size_t count,
                    const Stage& stage);

// As give_back(), which calls this.
void add_missing(const void* sent, const void* result, size_t count, float* residual);

}  // namespace herring::reduce
