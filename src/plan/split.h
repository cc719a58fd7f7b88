// Even splits of a count over ranks: the first `count % parts` get one more.
#pragma once

#include <algorithm>
#include <cstdint>

namespace herring::plan {

struct Part {
  uint64_t first = 0, count = 0;
};

inline Part even_split(uint64_t count, uint32_t parts, uint32_t index) {
  const uint64_t each = count / parts, extra = count % parts;
  return {index * each + std::min<uint64_t>(index, extra), each + (index < extra ? 1 : 0)};
}

}  // namespace herring::plan
