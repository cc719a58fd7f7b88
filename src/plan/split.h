// Splits of a count over ranks. In an even split, the first `count % parts` ranks get one more;
// other splits are given by the caller.
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

// Returns the parts of all ranks, in rank order. `given` has the counts of several splits one after
// the other; `before` is the number of splits that come before this one. The counts of a split sum
// up to `count`. If `given` is empty, the split is even.
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
