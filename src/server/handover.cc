#include "server/handover.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

namespace herring::server {

std::vector<Announcement>::iterator Handover::find(uint32_t index, const std::string& name) {
  return std::ranges::find_if(held, [&](const Announcement& one) {
    return one.index == index && one.message.name == name && !wire::is_message(one.message.what);
  });
}

std::vector<uint32_t> Handover::missing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t index = 0; index < said.size(); ++index) {
    if (!said[index] && !group->is_gone(index)) ranks.push_back(group->members.ranks()[index]);
  }
  return ranks;
}

Result<KnownAnswers> what_is_known(const Handover& handover) {
  // By number. Calls that all had joined before have the number of that join, and come before it.
  using Place = std::tuple<uint64_t, bool, std::string_view>;
  const auto place_of = [](const wire::KeptAnswer& answer) {
    return Place(answer.number, answer.name == wire::kJoinName, answer.name);
  };
  std::map<Place, Lacked> kept;
  KnownAnswers known;
  for (const auto& one : handover.said) {
    if (!one) continue;
    known.highest = std::max(known.highest, one->latest());
    for (const wire::KeptAnswer& answer : one->kept) kept[place_of(answer)].answer = &answer;
  }
  const auto had = [&handover](uint64_t number) {
    return std::ranges::any_of(handover.said,
                               [number](const auto& one) { return one && one->has(number); });
  };
  for (uint32_t index = 0; index < handover.said.size(); ++index) {
    if (!handover.said[index]) continue;
    const wire::Handover& one = *handover.said[index];
    const auto find = [&kept](uint64_t number) {
      const auto found = kept.lower_bound(Place(number, false, {}));
      return found == kept.end() || std::get<0>(found->first) != number ? kept.end() : found;
    };
    std::vector<uint64_t> lacks = one.holes;
    if (one.joined) {
      // Answers come in the order of their numbers, and nobody knows which ones the rank needs.
      std::set<Place> has;
      for (const wire::KeptAnswer& answer : one.kept) has.insert(place_of(answer));
      const uint64_t first = std::max(one.latest(), one.highest + 1);
      for (auto later = kept.lower_bound(Place(first, false, {})); later != kept.end(); ++later) {
        if (!has.contains(later->first)) later->second.by.push_back(index);
      }
      for (const uint64_t hole : lacks) {
        const auto found = find(hole);
        if (found != kept.end() && !has.contains(found->first)) found->second.by.push_back(index);
      }
      continue;
    }
    const uint64_t behind = known.highest - one.highest;
    for (uint64_t n = 1; n <= std::min<uint64_t>(behind, wire::kMostHoles); ++n) {
      lacks.push_back(one.highest + n);
    }
    bool lost = behind > wire::kMostHoles;
    for (const uint64_t number : lacks) {
      if (const auto found = find(number); found != kept.end()) {
        found->second.by.push_back(index);
      } else {
        // If nobody has had it, the call is simply made again.
        lost |= had(number);
      }
    }
    if (!lost) continue;
    return Status(Code::kPeerLost,
                  concat("a server is lost, and with it an answer that rank ",
                         handover.group->members.ranks()[index],
                         " still needs; ranks keep the latest ", wire::kMostKept,
                         " answers, at most ", wire::kMostKeptBytes >> 20, " MiB of them"));
  }
  for (auto& [place, lacked] : kept) {
    if (!lacked.by.empty()) known.lacked.push_back(std::move(lacked));
  }
  return known;
}

}  // namespace herring::server
