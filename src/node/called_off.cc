#include "node/called_off.h"

#include <algorithm>
#include <utility>

namespace herring {

bool CalledOffGroups::add(const std::shared_ptr<const LocalGroup>& group) {
  return groups_.try_emplace(group->id(), Entry{group}).second;
}

std::shared_ptr<const LocalGroup> CalledOffGroups::find(uint32_t group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : found->second.group;
}

std::vector<uint32_t> CalledOffGroups::numbers() const {
  std::vector<uint32_t> all;
  for (const auto& [number, one] : groups_) all.push_back(number);
  return all;
}

bool CalledOffGroups::tells(uint32_t group) {
  return !std::exchange(groups_.at(group).told, true);
}

void CalledOffGroups::heard(uint32_t group, uint32_t local_rank) {
  const auto found = forgotten_.find(group);
  if (found == forgotten_.end()) {
    said_[group].insert(local_rank);
    return;
  }
  found->second.erase(local_rank);
  if (found->second.empty()) forgotten_.erase(found);
}

bool CalledOffGroups::untouched(uint32_t group) const {
  const auto said = said_.find(group);
  const std::vector<uint32_t>& locals = groups_.at(group).group->locals();
  return std::all_of(locals.begin(), locals.end(), [&](uint32_t local) {
    return local == local_rank_ || gone_[local] ||
           (said != said_.end() && said->second.contains(local));
  });
}

void CalledOffGroups::forget(const LocalGroup& group) {
  groups_.erase(group.id());
  const auto said = said_.extract(group.id());
  std::set<uint32_t> silent;
  for (const uint32_t local : group.locals()) {
    const bool has_said = !said.empty() && said.mapped().contains(local);
    if (local != local_rank_ && !gone_[local] && !has_said) silent.insert(local);
  }
  if (!silent.empty()) forgotten_.emplace(group.id(), std::move(silent));
}

void CalledOffGroups::lose(uint32_t local_rank) {
  gone_[local_rank] = true;
  for (auto& [group, silent] : forgotten_) silent.erase(local_rank);
  std::erase_if(forgotten_, [](const auto& one) { return one.second.empty(); });
}

}  // namespace herring
