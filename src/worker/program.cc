#include "worker/program.h"

#include <algorithm>

namespace herring::worker {

uint64_t Program::begin(const observe::Entry& entry) noexcept {
  if (forked()) return 0;
  ++(entry.kind == observe::Kind::kRound ? rounds_ : calls_);
  called(entry.when(observe::Moment::kCalled));
  return recorder_.begin(entry);
}

void Program::end(uint64_t id, Nanos now, Code outcome) noexcept {
  if (forked()) return;
  ++over_;
  recorder_.end(id, now, outcome);
}

std::vector<Program::Wait>::iterator Program::find(const void* key) {
  return std::find_if(waits_.begin(), waits_.end(),
                      [key](const Wait& wait) { return wait.key == key; });
}

void Program::enter_now(const void* key, uint64_t id, std::string where, Nanos now) {
  std::lock_guard lock(mutex_);
  auto wait = find(key);
  if (wait == waits_.end()) {
    waits_.emplace_back();
    wait = std::prev(waits_.end());
    wait->key = key;
    wait->since = now;
  } else if (wait->threads == 0 && wait->until < now) {
    wait->since = now;
  }
  wait->id = id;
  wait->where = std::move(where);
  if (wait->threads++ == 0) wait->began = now;
  if (threads_++ == 0) began_ = now;
}

void Program::leave(const void* key, Nanos now, bool over) noexcept {
  std::lock_guard lock(mutex_);
  called(now);
  if (--threads_ == 0) waited_ += now - began_;
  const auto wait = find(key);
  if (--wait->threads > 0) return;
  recorder_.waited(wait->id, now - wait->began);
  if (over) {
    waits_.erase(wait);
  } else {
    wait->until = now + kBetweenSlices;
  }
}

void Program::over(const void* key) noexcept {
  if (forked()) return;
  std::lock_guard lock(mutex_);
  const auto wait = find(key);
  if (wait != waits_.end() && wait->threads == 0) waits_.erase(wait);
}

// Forgets the waits that were given up.
void Program::drop_old(Nanos now) {
  std::erase_if(waits_, [now](const Wait& wait) { return wait.threads == 0 && wait.until < now; });
}

void Program::held_up(Nanos now, Nanos since, std::vector<std::string>& out) {
  std::lock_guard lock(mutex_);
  drop_old(now);
  for (const Wait& wait : waits_) {
    if (wait.since < since) out.push_back(wait.where);
  }
}

Activity Program::activity(Nanos now) {
  Activity activity;
  activity.since = busy_since_.load(std::memory_order_relaxed);
  // Read in this order, so that the difference is never negative.
  const uint64_t over = over_.load();
  activity.rounds = rounds_.load();
  activity.calls = calls_.load();
  activity.in_flight = activity.rounds + activity.calls - over;
  std::lock_guard lock(mutex_);
  drop_old(now);
  activity.waited = waited_ + (threads_ > 0 ? now - began_ : 0);
  const auto longest = std::min_element(
      waits_.begin(), waits_.end(),
      [](const Wait& one, const Wait& other) { return one.since < other.since; });
  if (longest == waits_.end()) return activity;
  activity.since = longest->since;
  activity.where = "waits in " + longest->where;
  return activity;
}

}  // namespace herring::worker
