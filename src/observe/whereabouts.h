// In which call each rank is held up, as the rank itself reports (worker/held_up.h).
// Ranks that wait for a held-up rank are told. This does not prove that the rank will not come:
// another of its threads may make the missing call, and waits can be given up. So the text is only
// added to messages, and no operation fails because of it before its timeout.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/lists.h"
#include "observe/rank_states.h"

namespace herring::observe {

class Whereabouts {
 public:
  // `states`: what the rendezvous says about ranks that are not held up in a call. It must outlive
  // this object.
  Whereabouts(uint32_t size, const RankStates& states) : states_(states), where_(size) {}

  // An empty text means that the rank is not held up.
  void set(uint32_t rank, std::string where) { where_[rank] = std::move(where); }
  bool waits(uint32_t rank) const { return !where_[rank].empty(); }

  // Returns "; rank 1 waits in allgather 'a'; ranks 2-3 wait in ...; rank 4 has been computing for
  // 12 s", or "". `ranks`: ranks in the job.
  std::string describe(const std::vector<uint32_t>& ranks) const {
    std::map<std::string, std::vector<uint32_t>> by_place;
    std::vector<uint32_t> elsewhere;
    for (const uint32_t rank : ranks) {
      waits(rank) ? by_place[where_[rank]].push_back(rank) : elsewhere.push_back(rank);
    }
    std::string text;
    size_t left = kMostPlaces;
    for (const auto& [place, here] : by_place) {
      if (left-- == 0) return text + "; and more";
      text += concat("; ", list_ranks(here), here.size() == 1 ? " waits in " : " wait in ",
                     place);
    }
    return text + states_.describe(elsewhere);
  }
  // Describes ranks that have come but are behind: where they wait now is where they should be.
  std::string describe_behind(const std::vector<uint32_t>& ranks) const {
    return states_.describe(ranks);
  }

 private:
  static constexpr size_t kMostPlaces = 8;
  const RankStates& states_;
  std::vector<std::string> where_;  // by rank
};

}  // namespace herring::observe
