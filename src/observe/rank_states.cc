#include "observe/rank_states.h"

#include <algorithm>
#include <utility>

#include "base/lists.h"
#include "base/status.h"

namespace herring::observe {

void RankStates::set(std::map<uint32_t, std::string> states) {
  std::lock_guard lock(mutex_);
  states_ = std::move(states);
}

std::string RankStates::describe(const std::vector<uint32_t>& ranks) const {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> places;  // in the order of the ranks
  {
    std::lock_guard lock(mutex_);
    for (const uint32_t rank : ranks) {
      const auto found = states_.find(rank);
      if (found == states_.end() || found->second.empty()) continue;
      const auto same = std::ranges::find(places, found->second, [](const auto& one) {
        return one.first;
      });
      if (same != places.end()) {
        same->second.push_back(rank);
      } else if (places.size() <= kMostPlaces) {
        places.push_back({found->second, {rank}});
      }
    }
  }
  std::string text;
  for (size_t i = 0; i < places.size(); ++i) {
    if (i == kMostPlaces) return text + "; and more";
    const auto& [state, here] = places[i];
    text += concat("; ", here.size() == 1 ? "" : "each of ", list_ranks(here),
                   state.front() == ':' ? "" : " ", state);
  }
  return text;
}

}  // namespace herring::observe
