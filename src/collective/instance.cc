#include "collective/instance.h"

#include <algorithm>

namespace herring::collective {

Instance::Instance(const Schedule& schedule)
    : schedule_(schedule),
      state_(schedule.size(), State::kClosed),
      waits_(schedule.size()),
      followers_(schedule.number_of_needs()),
      follow_(schedule.size() + 1) {
  const uint32_t size = schedule.size();
  for (uint32_t i = 0; i < size; ++i) {
    waits_[i] = static_cast<uint32_t>(schedule.needs(i).size());
    for (const uint32_t earlier : schedule.needs(i)) ++follow_[earlier];
    if (must_run(i)) ++left_;
  }
  // First the ends, and from the back the beginnings.
  for (uint32_t i = 0; i < size; ++i) follow_[i + 1] += follow_[i];
  for (uint32_t i = size; i > 0; --i) {
    for (const uint32_t earlier : schedule.needs(i - 1)) followers_[--follow_[earlier]] = i - 1;
  }
  open_.reserve(8);
  for (uint32_t i = 0; i < size; ++i) {
    const bool at_once = schedule[i].after == Operation::After::kAll && schedule.needs(i).empty();
    if (at_once && state_[i] == State::kClosed) open(i);
  }
}

bool Instance::must_run(uint32_t number) const {
  const Operation& operation = schedule_[number];
  const bool may_never_come =
      operation.kind == Operation::Kind::kReceive && operation.is_signal();
  return operation.after == Operation::After::kAll && !may_never_come;
}

bool Instance::share(uint32_t earlier, uint32_t later) const {
  return schedule_[later].after == Operation::After::kAll &&
         overlap(schedule_[earlier].range, schedule_[later].range);
}

bool Instance::is_free(uint32_t number) const {
  if (!is_open(number)) return false;
  if (schedule_[number].after == Operation::After::kAny) return true;
  const auto needs = schedule_.needs(number);
  return std::all_of(needs.begin(), needs.end(),
                     [this](uint32_t earlier) { return is_complete(earlier); });
}

void Instance::open(uint32_t number) {
  state_[number] = State::kOpen;
  if (schedule_[number].after == Operation::After::kAny) ++left_;
  if (schedule_[number].kind == Operation::Kind::kNop) return complete(number);
  open_.insert(std::lower_bound(open_.begin(), open_.end(), number), number);
  unlock(number, false);
}

void Instance::fire(uint32_t number) {
  if (state_[number] == State::kClosed) open(number);
}

void Instance::complete(uint32_t number) {
  state_[number] = State::kComplete;
  const Operation& operation = schedule_[number];
  if (must_run(number) || operation.after == Operation::After::kAny) --left_;
  if (operation.kind != Operation::Kind::kNop) {
    open_.erase(std::lower_bound(open_.begin(), open_.end(), number));
  }
  unlock(number, true);
}

void Instance::unlock(uint32_t earlier, bool complete) {
  for (uint32_t k = follow_[earlier]; k < follow_[earlier + 1]; ++k) {
    const uint32_t later = followers_[k];
    if (state_[later] != State::kClosed) continue;
    if (schedule_[later].after == Operation::After::kAny) {
      if (complete) open(later);
    } else if (share(earlier, later) != complete && --waits_[later] == 0) {
      open(later);
    }
  }
}

}  // namespace herring::collective
