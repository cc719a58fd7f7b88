// Ranks in messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace herring {

// Returns "rank 3" or "ranks 0-3, 6". `ranks`: ascending.
std::string list_ranks(const std::vector<uint32_t>& ranks);

}  // namespace herring
