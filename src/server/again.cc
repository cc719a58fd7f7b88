// The part of the slot table for operations that are pushed again after the loss of a server.
#include <algorithm>

#include "server/aggregator.h"

namespace herring::server {

// A contributor has given the result. What others have contributed is not needed.
void Aggregator::take_given(Slot& slot, uint32_t contributor) {
  slot.given = true;
  slot.given_workers = slot.op->contributors[contributor].result_workers;
  slot.result = std::exchange(slot.contributions[contributor].lane, nullptr);
  slot.results_pending.store(1, std::memory_order_relaxed);  // until end_given()
  for (uint32_t g = 0; g < slot.groups.size(); ++g) {
    Subtree& group = slot.groups[g];
    if (group.combining) continue;
    if (group.partial != nullptr) {
      group.pool->give(std::exchange(group.partial, nullptr));
    }
    for (uint32_t i = 0; i < group.members; ++i) {
      Contribution& one = slot.contributions[g * slot.op->together + i];
      if (one.state == Contribution::kHere && one.lane != nullptr) {
        pool_of(slot, one).give(std::exchange(one.lane, nullptr));
      }
    }
  }
}

// Returns whether a slot whose result was given is over now, so that the caller must release it.
bool Aggregator::end_given(Slot& slot) {
  if (slot.over || slot.combining > 0 || slot.arrived < slot.op->expected) return false;
  slot.over = true;
  mark_done(slot);
  return true;
}

// Returns whether nothing of the operation is begun any more.
bool Aggregator::has_ended(const Operation& op) {
  return op.moved || op.dropped || (op.group->called_off && !goes_on_without(op));
}

// Returns whether another server has the operation now, for all that this server knows.
bool Aggregator::has_moved(const Key& key, const JobGroup& group) const {
  return key.home > 0 &&
         servers_.stand_in(key.home - 1, key.buffer, group.owners).epoch > key.epoch;
}

// Returns whether nobody waits for anything of an operation that was pushed again.
bool Aggregator::rests(const Operation& op) {
  if (!op.again) return false;
  for (const Block* block : op.blocks) {
    if (block == nullptr) continue;
    for (const Slot* slot : block->slots) {
      if (slot == nullptr) continue;
      for (const Contribution& one : slot->contributions) {
        if (one.state == Contribution::kReceiving) return false;
        if (one.state == Contribution::kHere && !slot->given) return false;
      }
    }
  }
  return true;
}

// A contributor has opened an operation, so it has pushed all earlier ones of the stream, and all
// but a window of these are answered. Drops operations that were pushed again, once all
// contributors have opened so many later ones that nothing more can come. What one rank of a node
// has opened says nothing of the others, so where nodes have several the operations stay until
// their home serves again, or the group ends.
void Aggregator::note_later(const Key& key, uint32_t contributor, std::vector<Slot*>& over) {
  std::vector<Operation*> done;
  for (Operation* op : again_) {
    const Key& earlier = op->key;
    if (earlier.group != key.group || earlier.stream != key.stream || earlier.home != key.home ||
        earlier.epoch != key.epoch || earlier >= key || contributor >= op->contributors.size() ||
        op->group->members.most_on_a_node() > 1) {
      continue;
    }
    ++op->contributors[contributor].later;
    const bool all = std::ranges::all_of(op->contributors, [this](const Contributor& one) {
      return one.later > window_;
    });
    if (all && rests(*op)) done.push_back(op);
  }
  for (Operation* op : done) {
    op->dropped = true;
    if (op->slots == 0) {
      erase(*op, now_());
      continue;
    }
    for_each_slot(*op, [&over](Slot& slot) {
      if (!std::exchange(slot.over, true)) over.push_back(&slot);
    });
  }
}

bool Aggregator::idle() {
  std::lock_guard lock(mutex_);
  return std::ranges::all_of(operations_, [](const auto& one) { return rests(*one.second); });
}

void Aggregator::serve(const control::ServerSet& set, size_t window) {
  std::vector<Missing> missing;
  {
    std::lock_guard lock(mutex_);
    window_ = window;
    servers_.adopt(set);
    std::vector<Operation*> idle;
    for (auto& [key, op] : operations_) {
      if (op->open.stays || !has_moved(key, *op->group)) continue;
      if (op->moved.exchange(true)) continue;
      if (op->slots == 0) idle.push_back(op.get());
      give_up(*op, missing);
    }
    for (Operation* op : idle) erase(*op, now_());
  }
  settle_missing(missing);
}

}  // namespace herring::server
