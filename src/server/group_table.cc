#include "server/group_table.h"

#include <algorithm>

namespace herring::server {

bool JobGroup::is_gone(uint32_t index) const {
  return std::any_of(gone.begin(), gone.end(),
                     [index](const Gone& one) { return one.index == index; });
}

bool JobGroup::has_destroyed(uint32_t index) const {
  return std::any_of(gone.begin(), gone.end(), [index](const Gone& one) {
    return one.index == index && one.how == kDestroyedGroup;
  });
}

void JobGroup::add_gone(uint32_t rank, const std::string& how) {
  const uint32_t index = members.index_of(rank);
  if (index != control::Group::kNobody && !is_gone(index)) gone.push_back({index, how});
}

GroupTable::GroupTable(const control::Cluster& cluster, uint16_t credit)
    : cluster_(cluster),
      world_(std::make_shared<JobGroup>(cluster, control::Group(cluster), credit)) {}

std::shared_ptr<JobGroup> GroupTable::find(uint32_t id) const {
  if (id == control::Group::kWorld) return world_;
  std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.group;
}

Status GroupTable::define(uint32_t id, std::string name, std::vector<uint32_t> ranks,
                          uint32_t rank, uint64_t call, bool formed) {
  if (Status fits = control::Group::check(cluster_, ranks);
      !fits.ok() || id == control::Group::kWorld ||
      !std::binary_search(ranks.begin(), ranks.end(), rank)) {
    return breach("rank ", rank, " defines group ", id, ", '", name, "': ",
                  fits.ok() ? "it is not a member" : fits.message());
  }
  std::lock_guard lock(mutex_);
  if (groups_.size() >= kMost && !groups_.contains(id)) {
    return {Code::kInvalidArgument,
            concat("group '", name, "' exceeds the limit of ", kMost,
                   " groups in a job; destroy() groups that are no longer used")};
  }
  Entry& entry = groups_[id];
  if (!entry.group) {
    entry.left.assign(ranks.size(), false);
    entry.defined.assign(ranks.size(), false);
    entry.group = std::make_shared<JobGroup>(
        cluster_, control::Group(id, cluster_, std::move(ranks), std::move(name)),
        world_->credit.load());
    for (const auto& [gone, how] : gone_) entry.group->add_gone(gone, how);
    entry.group->called_off = !entry.group->gone.empty();
  } else if (entry.group->members.ranks() != ranks) {
    return {Code::kMismatch, concat("rank ", rank, " says that group '", name, "' has ",
                                    list_ranks(ranks), "; others say ",
                                    list_ranks(entry.group->members.ranks()),
                                    "; give new_group() the same ranks everywhere")};
  }
  entry.defined[entry.group->members.index_of(rank)] = true;
  if (formed) {
    answered_.push_back({id, rank, call, {}});
  } else {
    entry.waiting.emplace_back(rank, call);
    forming_.insert(id);
  }
  return {};
}

std::vector<GroupTable::Defined> GroupTable::take_defined() {
  std::lock_guard lock(mutex_);
  std::vector<Defined> taken = std::exchange(answered_, {});
  for (auto id = forming_.begin(); id != forming_.end();) {
    Entry& entry = groups_.at(*id);
    const control::Group& members = entry.group->members;
    Status status;
    bool waits = false;
    for (uint32_t index = 0; index < members.size(); ++index) {
      if (entry.defined[index]) continue;
      const auto gone = gone_.find(members.ranks()[index]);
      waits |= gone == gone_.end();
      if (gone == gone_.end() || !status.ok()) continue;
      status = {Code::kPeerLost,
                concat("group '", members.name(), "' cannot be formed: ",
                       cluster_.describe_rank(gone->first), " ", gone->second)};
    }
    if (waits && status.ok()) {
      ++id;
      continue;
    }
    for (const auto& [rank, call] : std::exchange(entry.waiting, {})) {
      taken.push_back({*id, rank, call, status});
    }
    id = forming_.erase(id);
  }
  return taken;
}

bool GroupTable::nobody_left(const Entry& entry) const {
  for (uint32_t index = 0; index < entry.left.size(); ++index) {
    if (!entry.left[index] && !gone_.contains(entry.group->members.ranks()[index])) return false;
  }
  return true;
}

void GroupTable::leave(uint32_t id, uint32_t rank) {
  std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  const uint32_t index = found->second.group->members.index_of(rank);
  if (index == control::Group::kNobody) return;
  found->second.left[index] = true;
  if (!nobody_left(found->second)) return;
  forming_.erase(id);
  groups_.erase(found);
}

void GroupTable::rank_gone(uint32_t rank, const std::string& how) {
  std::lock_guard lock(mutex_);
  gone_.emplace(rank, how);
  std::erase_if(groups_, [this](const auto& one) {
    const bool ends = nobody_left(one.second);
    if (ends) forming_.erase(one.first);
    return ends;
  });
}

bool GroupTable::is_gone(uint32_t rank) const {
  std::lock_guard lock(mutex_);
  return gone_.contains(rank);
}

void GroupTable::note_gone(JobGroup& group) const {
  std::lock_guard lock(mutex_);
  for (const auto& [rank, how] : gone_) group.add_gone(rank, how);
}

std::vector<std::shared_ptr<JobGroup>> GroupTable::of_rank(uint32_t rank) const {
  std::vector<std::shared_ptr<JobGroup>> groups{world_};
  std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : groups_) {
    if (entry.group->members.has(rank)) groups.push_back(entry.group);
  }
  return groups;
}

bool GroupTable::any_without(uint32_t rank) const {
  std::lock_guard lock(mutex_);
  return std::any_of(groups_.begin(), groups_.end(), [rank](const auto& one) {
    return !one.second.group->members.has(rank) && !one.second.group->called_off;
  });
}

}  // namespace herring::server
