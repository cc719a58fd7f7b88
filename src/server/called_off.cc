// The part of the slot table for ranks that are gone, and for groups that are called off.
#include <algorithm>

#include "server/aggregator.h"

namespace herring::server {

void Aggregator::rank_gone(uint32_t rank, bool left) {
  std::vector<Missing> missing;
  std::vector<std::shared_ptr<JobGroup>> broken;
  if (!left) broken = groups_.of_rank(rank);
  {
    std::lock_guard lock(mutex_);
    if (std::find(lost_.begin(), lost_.end(), rank) != lost_.end()) return;
    lost_.push_back(rank);
    for (auto& [key, op] : operations_) {
      const uint32_t index = op->group->members.index_of(rank);
      if (index == control::Group::kNobody) continue;
      const bool goes_on = goes_on_without(*op);
      if (goes_on && !op->contributors[index].opened) opened(*op);
      for_each_slot(*op, [&](Slot& slot) {
        for (uint32_t c = 0; c < slot.contributions.size(); ++c) {
          Contribution& contribution = slot.contributions[c];
          // Data that the rank was sending never becomes whole. Nobody waits for data that it has
          // not begun.
          const bool began = contribution.state == Contribution::kReceiving &&
                             contribution.rank == rank;
          const bool never = goes_on && c == index && contribution.state == Contribution::kNone;
          if (!began && !never) continue;
          if (left && !goes_on) broken.push_back(slot.op->group);
          if (contribution.lane != nullptr) {
            pool_of(slot, contribution).give(std::exchange(contribution.lane, nullptr));
            --slot.added;
          }
          missing.push_back({&slot, c});
        }
      });
    }
    for (const auto& group : broken) call_off(*group, missing);
  }
  settle_missing(missing);
}

void Aggregator::break_group(JobGroup& group) {
  std::vector<Missing> missing;
  {
    std::lock_guard lock(mutex_);
    call_off(group, missing);
  }
  settle_missing(missing);
}

// Calls off a group. Contributions that have not begun are given up. Those that have begun are read
// to their end, and answered when the slot is complete.
void Aggregator::call_off(JobGroup& group, std::vector<Missing>& missing) {
  if (group.called_off.exchange(true)) return;
  std::vector<Operation*> idle;
  for (auto& [key, op] : operations_) {
    if (op->group.get() != &group || goes_on_without(*op)) continue;
    if (op->slots == 0) idle.push_back(op.get());
    give_up(*op, missing);
  }
  for (Operation* op : idle) erase(*op, now_());
}

void Aggregator::give_up(Operation& op, std::vector<Missing>& missing) {
  for_each_slot(op, [&](Slot& slot) {
    for (uint32_t c = 0; c < slot.contributions.size(); ++c) {
      if (slot.contributions[c].state == Contribution::kNone) missing.push_back({&slot, c});
    }
  });
}

// Settles each missing contribution once. The last one of a slot may complete and free the slot.
void Aggregator::settle_missing(const std::vector<Missing>& missing) {
  for (const Missing& one : missing) {
    settle(*one.slot, one.contributor, Contribution::kLost, now_());
  }
}

}  // namespace herring::server
