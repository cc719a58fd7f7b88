// Lists in messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace herring {

// Returns what `show` makes of each of the entries, with `between` between them.
template <typename Entries, typename Show = std::identity>
std::string list_of(const Entries& entries, const Show& show = {},
                    std::string_view between = ", ") {
  std::string text;
  for (const auto& entry : entries) {
    if (!text.empty()) text += between;
    text += concat(show(entry));
  }
  return text;
}

// A long list is easier to read without its end. In the name of a call, a list must be complete.
inline constexpr size_t kMostRanges = 16, kAllRanges = SIZE_MAX;
// Returns "0-3, 6", or the first ranges "and 4 more".
std::string list_numbers(std::vector<uint32_t> numbers, size_t most = kMostRanges);
// Returns "rank 3" or "ranks 0-3, 6".
std::string list_ranks(const std::vector<uint32_t>& ranks, size_t most = kAllRanges);

}  // namespace herring
