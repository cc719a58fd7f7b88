#include "observe/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "observe/monitor.h"

namespace herring::observe {

Groups::Groups(uint32_t size) : size_(size), gone_(size) {
  auto ranks = std::make_shared<std::vector<uint32_t>>(size);
  std::iota(ranks->begin(), ranks->end(), 0u);
  groups_[0] = {"world", std::move(ranks), std::vector<Member>(size)};
}

Groups::Member* Groups::member(Group& group, uint32_t rank) {
  const auto found = std::lower_bound(group.ranks->begin(), group.ranks->end(), rank);
  if (found == group.ranks->end() || *found != rank) return nullptr;
  return &group.members[static_cast<size_t>(found - group.ranks->begin())];
}

// Keeps what news say about the group itself. Returns whether the group is known now.
bool Groups::learn(uint32_t rank, const GroupNews& news) {
  const auto found = groups_.find(news.group);
  if (found != groups_.end()) {
    const bool same = (news.ranks.empty() || news.ranks == *found->second.ranks) &&
                      member(found->second, rank) != nullptr;
    if (same && !news.name.empty()) found->second.name = news.name;
    return same;
  }
  const bool sound = !news.ranks.empty() && news.ranks.back() < size_ &&
                     std::is_sorted(news.ranks.begin(), news.ranks.end(), std::less_equal<>()) &&
                     std::binary_search(news.ranks.begin(), news.ranks.end(), rank);
  if (!sound || groups_.size() >= kMost || members_ + news.ranks.size() > kMostMembers) {
    return false;
  }
  groups_[news.group] = {news.name, std::make_shared<const std::vector<uint32_t>>(news.ranks),
                         std::vector<Member>(news.ranks.size())};
  members_ += news.ranks.size();
  return true;
}

void Groups::add(uint32_t rank, const GroupNews& news, Nanos now) {
  if (rank >= size_) return;
  if (news.gone ? !groups_.contains(news.group) : !learn(rank, news)) return;
  const auto found = groups_.find(news.group);
  Group& group = found->second;
  Member* const one = member(group, rank);
  if (one == nullptr) return;
  one->told = true;
  one->gone = news.gone;
  if (!news.gone) {
    one->rounds = news.rounds;
    one->calls = news.calls;
    one->in_flight = news.in_flight;
    one->age = news.age;
    one->at = now;
    return;
  }
  one->in_flight = 0;
  // Nobody is left in the group, as far as members have told. One that tells of it later makes it
  // known again.
  for (size_t i = 0; i < group.members.size(); ++i) {
    const Member& other = group.members[i];
    if (other.told && !other.gone && !gone_[(*group.ranks)[i]]) return;
  }
  if (news.group == 0) return;
  members_ -= group.members.size();
  groups_.erase(found);
}

void Groups::gone(uint32_t rank) {
  if (rank >= size_) return;
  gone_[rank] = true;
  for (auto& [number, group] : groups_) {
    if (Member* const one = member(group, rank)) one->in_flight = 0;
  }
}

std::vector<Groups::View> Groups::views(Nanos now,
                                        const std::function<bool(uint32_t rank)>& waits) const {
  std::vector<View> all;
  all.reserve(groups_.size());
  for (const auto& [number, group] : groups_) {
    View& view = all.emplace_back();
    view.group = number;
    view.name = group.name;
    view.ranks = group.ranks;
    bool waited_for = false;
    for (size_t i = 0; i < group.members.size(); ++i) {
      const Member& one = group.members[i];
      const uint32_t rank = (*group.ranks)[i];
      view.rounds = std::max(view.rounds, one.rounds);
      view.calls = std::max(view.calls, one.calls);
      view.in_flight = std::max(view.in_flight, one.in_flight);
      if (one.in_flight == 0) {
        view.absent.push_back(rank);
        continue;
      }
      view.age = std::max(view.age, one.age + now - one.at);
      waited_for = waited_for || waits(rank);
    }
    // Reports of members are from different moments, so a short time says nothing.
    if (view.age < kStalled) view.absent.clear();
    // What concerns all ranks is told of the job.
    view.outlier = number != 0 && waited_for && view.age >= kStalled;
  }
  return all;
}

}  // namespace herring::observe
