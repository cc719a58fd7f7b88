// Splits of a count over ranks: even ones, where the first `count % parts` get one more, or given
// ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace herring::plan {

struct Part {
  uint64_t first = 0, count = 0;
};

inline Part even_split(uint64_t count, uint32_t parts, uint32_t index) {
  const uint64_t each = count / parts, extra = count % parts;
  return {index * each + std::min<uint64_t>(index, extra), each + (index < extra ? 1 : 0)};
}

// Of all ranks, in their order. `given`: counts that sum up to `count`, behind those of `before`
// other splits; empty: an even split.
inline std::vector<Part> split(uint64_t count, uint32_t parts, const std::vector<uint64_t>& given,
                               size_t before = 0) {
  std::vector<Part> all(parts);
  uint64_t first = 0;
  for (uint32_t i = 0; i < parts; ++i) {
    all[i] = given.empty() ? even_split(count, parts, i) : Part{first, given[before * parts + i]};
    first += all[i].count;
  }
  return all;
}

}  // namespace herring::plan
