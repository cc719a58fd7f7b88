#include "server/settlements.h"

#include <algorithm>
#include <utility>

namespace herring::server {

Status Settlements::say(uint32_t rank, uint32_t group_id, std::string_view text) {
  HERRING_ASSIGN_OR_RETURN(const auto& all, wire::decode_settled(text));
  const std::shared_ptr<JobGroup> group = groups_.find(group_id);
  if (!group) return {};  // its members are gone
  const uint32_t index = group->members.index_of(rank);
  if (index == control::Group::kNobody) {
    return breach("rank ", rank, " settles something in group ", group_id,
                  ", of which it is not a member");
  }
  Subjects& subjects = said_[group_id];
  for (const wire::Settled& one : all) {
    if (subjects.size() >= kMostOpen && !subjects.contains(one.subject)) continue;
    uint64_t& upto = subjects[one.subject].by[index];
    upto = std::max(upto, one.upto);
    changed_.emplace(group_id, one.subject);
  }
  return {};
}

// A member that has called the group off may still take part in partial all-reduces. One that has
// destroyed it has had nothing under way.
bool Settlements::is_gone(const JobGroup& group, uint32_t index) const {
  return groups_.is_gone(group.members.ranks()[index]) || group.has_destroyed(index);
}

// Returns whether nothing is open: all members that are not gone have said the same. `settled`: up
// to where none of them lacks anything.
bool Settlements::agree(const JobGroup& group, const Statements& said, uint64_t* settled) const {
  uint64_t least = UINT64_MAX, most = 0;
  for (uint32_t index = 0; index < group.members.size(); ++index) {
    if (is_gone(group, index)) continue;
    const auto found = said.by.find(index);
    const uint64_t upto = found == said.by.end() ? 0 : found->second;
    least = std::min(least, upto);
    most = std::max(most, upto);
  }
  *settled = std::min(least, most);  // 0 if nobody is left
  return least >= most;
}

void Settlements::settle(std::vector<Answer>& out) {
  if (std::exchange(some_gone_, false)) {
    for (const auto& [group, subjects] : said_) {
      for (const auto& [subject, said] : subjects) changed_.emplace(group, subject);
    }
  }
  const auto changed = std::exchange(changed_, {});
  for (auto next = changed.begin(); next != changed.end();) {
    const uint32_t group_id = next->first;
    const std::shared_ptr<JobGroup> group = groups_.find(group_id);
    Subjects& subjects = said_[group_id];
    std::vector<wire::Settled> settled;
    for (; next != changed.end() && next->first == group_id; ++next) {
      const auto found = subjects.find(next->second);
      if (!group || found == subjects.end()) continue;
      uint64_t upto = 0;
      const bool agreed = agree(*group, found->second, &upto);
      if (upto > std::exchange(found->second.told, std::max(upto, found->second.told))) {
        settled.push_back({next->second, upto});
      }
      if (agreed) subjects.erase(found);
    }
    for (size_t at = 0; at < settled.size(); at += wire::kMostSettled) {
      const size_t end = std::min(at + wire::kMostSettled, settled.size());
      const std::string text =
          encode(std::vector<wire::Settled>(settled.begin() + static_cast<ptrdiff_t>(at),
                                            settled.begin() + static_cast<ptrdiff_t>(end)));
      wire::FrameHeader header{.type = wire::FrameType::kSettled, .group = group_id};
      for (uint32_t index = 0; index < group->members.size(); ++index) {
        if (!is_gone(*group, index)) out.push_back({group->members.ranks()[index], header, text});
      }
    }
    if (!group || subjects.empty()) said_.erase(group_id);
  }
}

size_t Settlements::open() const {
  size_t open = 0;
  for (const auto& [group, subjects] : said_) open += subjects.size();
  return open;
}

}  // namespace herring::server
