#include "observe/group_book.h"

#include <algorithm>
#include <utility>

namespace herring::observe {

GroupBook::GroupBook(bool on) : on_(on) {
  if (on_) add(0, "world", {});
}

void GroupBook::add(uint32_t group, std::string name, std::vector<uint32_t> ranks) {
  if (!on_) return;
  std::lock_guard lock(mutex_);
  std::list<GroupEntry*> node(1);  // first, because there may be no memory for it
  const auto [found, is_new] = groups_.try_emplace(group);
  GroupEntry& known = found->second;
  if (is_new) {
    node.front() = &known;
    known.place = node.begin();
    quiet_.splice(quiet_.end(), node);
  }
  known.number = group;
  known.name = std::move(name);
  known.ranks = std::move(ranks);
  known.told = false;
  change(known);
}

void GroupBook::remove(uint32_t group) {
  if (!on_) return;
  std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  GroupEntry& known = found->second;
  if (known.told) gone_.push_back(group);
  (known.queued ? changed_ : quiet_).erase(known.place);
  groups_.erase(found);
}

void GroupBook::rename(uint32_t group, const std::string& name) {
  if (!on_) return;
  std::lock_guard lock(mutex_);
  GroupEntry* const known = find(group);
  if (known == nullptr || known->name == name) return;
  known->name = name;
  known->told = false;
  change(*known);
}

GroupBook::GroupEntry* GroupBook::find(uint32_t group) noexcept {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : &found->second;
}

void GroupBook::change(GroupEntry& known) noexcept {
  if (std::exchange(known.queued, true)) return;
  changed_.splice(changed_.end(), quiet_, known.place);
}

void GroupBook::begin(uint32_t group, Kind kind, Nanos now) noexcept {
  // The mutex may be locked in a forked child for ever.
  if (!on_ || generation_ != fork_generation()) return;
  std::lock_guard lock(mutex_);
  GroupEntry* const known = find(group);
  if (known == nullptr) return;
  if (known->rounds + known->calls == known->over) known->since = now;
  ++(kind == Kind::kRound ? known->rounds : known->calls);
  change(*known);
}

void GroupBook::end(uint32_t group, Nanos now) noexcept {
  if (!on_ || generation_ != fork_generation()) return;
  std::lock_guard lock(mutex_);
  GroupEntry* const known = find(group);
  // The operations of a group that was destroyed and made again are not those of the new one.
  if (known == nullptr || known->over == known->rounds + known->calls) return;
  ++known->over;
  known->since = now;
  change(*known);
}

std::vector<GroupNews> GroupBook::news(Nanos now) {
  std::vector<GroupNews> all;
  std::lock_guard lock(mutex_);
  for (; !gone_.empty() && all.size() < kMostGroupNews; gone_.pop_front()) {
    all.emplace_back().group = gone_.front();
    all.back().gone = true;
  }
  size_t ranks = 0;
  while (!changed_.empty() && all.size() < kMostGroupNews) {
    GroupEntry& known = *changed_.front();
    const size_t more = known.told || known.ranks.size() > kMostGroupRanks ? 0 : known.ranks.size();
    if (ranks + more > kMostGroupRanks) break;
    ranks += more;
    GroupNews& one = all.emplace_back();
    one.group = known.number;
    one.rounds = known.rounds;
    one.calls = known.calls;
    one.in_flight = known.rounds + known.calls - known.over;
    const bool timed = one.in_flight > 0 && known.since > 0;
    one.age = timed ? std::max<Nanos>(now - known.since, 0) : 0;
    if (!known.told) one.name = known.name;
    if (more > 0) one.ranks = known.ranks;
    known.told = true;
    known.queued = false;
    quiet_.splice(quiet_.end(), changed_, known.place);
  }
  return all;
}

void GroupBook::tell_again() {
  std::lock_guard lock(mutex_);
  for (auto& [number, known] : groups_) {
    known.told = false;
    change(known);
  }
}

}  // namespace herring::observe
