#include "base/lists.h"

#include <algorithm>

namespace herring {

std::string list_numbers(std::vector<uint32_t> numbers, size_t most) {
  std::ranges::sort(numbers);
  std::string text;
  for (size_t i = 0, ranges = 0; i < numbers.size(); ++ranges) {
    if (ranges == most) return concat(text, " and ", numbers.size() - i, " more");
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] - numbers[end - 1] <= 1) ++end;
    const uint32_t first = numbers[i], last = numbers[end - 1];
    text += concat(i == 0 ? "" : ", ", first);
    if (first != last) text += concat("-", last);
    i = end;
  }
  return text;
}

std::string list_ranks(const std::vector<uint32_t>& ranks, size_t most) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", list_numbers(ranks, most));
}

}  // namespace herring
