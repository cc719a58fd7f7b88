#include "engine/program.h"

#include <algorithm>
#include <exception>

namespace herring::engine {

uint64_t Program::begin(const observe::Entry& entry) noexcept {
  if (forked()) return 0;
  ++(entry.kind == observe::Kind::kRound ? rounds_ : calls_);
  if (const Nanos now = entry.when(observe::Moment::kCalled); now != 0) called(now);
  return recorder_.begin(entry);
}

void Program::end(uint64_t id, Nanos now, Code outcome) noexcept {
  if (forked()) return;
  ++over_;
  recorder_.end(id, now, outcome);
}

std::vector<Program::Wait>::iterator Program::find(const Awaited& awaited) {
  return std::find_if(waits_.begin(), waits_.end(),
                      [&awaited](const Wait& wait) { return wait.awaited == &awaited; });
}

Program::Wait& Program::enter(const Awaited& awaited, uint64_t id, Nanos now, std::string where) {
  auto wait = find(awaited);
  if (wait == waits_.end()) {
    waits_.emplace_back();
    wait = std::prev(waits_.end());
    wait->awaited = &awaited;
    wait->since = now;
  } else if (!wait->waits() && wait->until < now) {
    wait->since = now;
  }
  wait->id = id;
  if (!where.empty()) wait->where = std::move(where);
  if (!wait->waits()) {
    wait->began = now;
    if (waiting_++ == 0) began_ = now;
  }
  return *wait;
}

bool Program::enter(const Awaited& awaited, uint64_t id, Nanos now) noexcept {
  try {
    std::lock_guard lock(mutex_);
    ++enter(awaited, id, now, {}).threads;
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

bool Program::enter_elsewhere(const Awaited& awaited, uint64_t id, Nanos now) noexcept {
  try {
    std::string where = awaited.where();
    std::lock_guard lock(mutex_);
    enter(awaited, id, now, std::move(where)).elsewhere = true;
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

// Counts the time if nobody waits for this result any more.
void Program::leave(std::vector<Wait>::iterator wait, Nanos now) {
  called(now);
  if (wait->waits()) return;
  recorder_.waited(wait->id, now - wait->began);
  if (--waiting_ == 0) waited_ += now - began_;
}

void Program::leave(const Awaited& awaited, Nanos now, bool over) noexcept {
  std::lock_guard lock(mutex_);
  const auto wait = find(awaited);
  --wait->threads;
  leave(wait, now);
  if (wait->waits()) return;
  if (over) {
    waits_.erase(wait);
    return;
  }
  wait->until = now + kBetweenSlices;
  try {
    wait->where = awaited.where();
  } catch (const std::exception&) {
    waits_.erase(wait);
  }
}

void Program::leave_elsewhere(const Awaited& awaited, Nanos now) noexcept {
  if (forked()) return;
  std::lock_guard lock(mutex_);
  const auto wait = find(awaited);
  wait->elsewhere = false;
  leave(wait, now);
  if (!wait->waits()) waits_.erase(wait);
}

void Program::over(const Awaited& awaited) noexcept {
  if (forked()) return;
  std::lock_guard lock(mutex_);
  const auto wait = find(awaited);
  if (wait != waits_.end() && !wait->waits()) waits_.erase(wait);
}

// Forgets the waits that were given up.
void Program::drop_old(Nanos now) {
  std::erase_if(waits_, [now](const Wait& wait) { return !wait.waits() && wait.until < now; });
}

void Program::held_up(Nanos now, Nanos since, std::vector<std::string>& out) {
  std::lock_guard lock(mutex_);
  drop_old(now);
  for (const Wait& wait : waits_) {
    if (wait.since < since) out.push_back(wait.text());
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
  activity.waited = waited_ + (waiting_ > 0 ? now - began_ : 0);
  const auto longest = std::min_element(
      waits_.begin(), waits_.end(),
      [](const Wait& one, const Wait& other) { return one.since < other.since; });
  if (longest == waits_.end()) return activity;
  activity.since = longest->since;
  activity.where = "waits in " + longest->text();
  return activity;
}

}  // namespace herring::engine
