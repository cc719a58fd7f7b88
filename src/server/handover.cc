#include "server/handover.h"

#include <algorithm>
#include <map>

namespace herring::server {

std::vector<uint32_t> Handover::missing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t index = 0; index < said.size(); ++index) {
    if (!said[index] && !group->is_gone(index)) ranks.push_back(group->members.ranks()[index]);
  }
  return ranks;
}

Result<Known> what_is_known(const Handover& handover) {
  std::map<uint64_t, Lacked> kept;  // by number
  Known known;
  for (const auto& one : handover.said) {
    if (!one) continue;
    known.highest = std::max(known.highest, one->highest);
    for (const wire::KeptAnswer& answer : one->kept) kept[answer.number].answer = &answer;
  }
  const auto had = [&handover](uint64_t number) {
    return std::ranges::any_of(handover.said,
                               [number](const auto& one) { return one && one->has(number); });
  };
  for (uint32_t index = 0; index < handover.said.size(); ++index) {
    if (!handover.said[index]) continue;
    const wire::Handover& one = *handover.said[index];
    std::vector<uint64_t> lacks = one.holes;
    const uint64_t behind = known.highest - one.highest;
    for (uint64_t n = 1; n <= std::min<uint64_t>(behind, wire::kMostHoles); ++n) {
      lacks.push_back(one.highest + n);
    }
    bool lost = behind > wire::kMostHoles;
    for (const uint64_t number : lacks) {
      const auto found = kept.find(number);
      if (found != kept.end()) {
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
  for (auto& [number, lacked] : kept) {
    if (!lacked.by.empty()) known.lacked.push_back(std::move(lacked));
  }
  return known;
}

}  // namespace herring::server
