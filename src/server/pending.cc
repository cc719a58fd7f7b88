#include "server/pending.h"

#include <algorithm>

namespace herring::server {

std::vector<uint32_t> Pending::missing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t index = 0; index < here.size(); ++index) {
    if (!here[index]) ranks.push_back(group->members.ranks()[index]);
  }
  return ranks;
}

std::string Reminders::name_of(const Pending& pending) {
  const wire::Announce& first = pending.calls.front().message;
  return concat(wire::name_of(first.what), " '", first.name, "'", pending.group->members.suffix());
}

std::string Reminders::waits(const Pending& pending, Nanos now, const char* verb) const {
  return concat(name_of(pending), verb, in_seconds(now - pending.since), " for ",
                cluster_.describe_ranks(pending.missing()));
}

Status Reminders::timed_out(const Pending& pending, Nanos now) const {
  if (now - pending.since <= pending.timeout_ms * kMillisecond) return {};
  return {Code::kTimeout,
          concat(waits(pending, now, " waited "), ", which did not call it",
                 whereabouts_.describe(pending.missing()),
                 "; check that every rank makes the same calls, or give it more time "
                 "(timeout=, HERRING_TIMEOUT)")};
}

// Returns whether the first caller is held up in this call and all missing ranks are held up in
// other calls.
bool Reminders::holds_each_other_up(const Pending& pending, Nanos now) const {
  const auto waits = [this](uint32_t rank) { return whereabouts_.waits(rank); };
  const uint32_t first = pending.group->members.ranks()[pending.calls.front().index];
  if (now < quiet_[first].until || !waits(first)) return false;
  return std::ranges::all_of(pending.missing(), waits);
}

void Reminders::remind(Pending& pending, Nanos now, std::vector<Answer>& out) {
  const Announcement& first = pending.calls.front();
  const Nanos age = now - pending.since, warns = first.message.warn_ms * kMillisecond;
  const bool late = !pending.warned && age > warns;
  const bool early =
      !pending.warned_early && age > first_reminder(warns) && holds_each_other_up(pending, now);
  if (!late && !early) return;
  pending.warned |= late;
  pending.warned_early |= early;
  const uint32_t rank = pending.group->members.ranks()[first.index];
  out.push_back(warning_answer(
      rank, concat(waits(pending, now, " has waited "), whereabouts_.describe(pending.missing()),
                   early ? "; do all ranks make the same calls?" : "")));
  if (!early) return;
  Quiet& quiet = quiet_[rank];
  quiet.until = now + quiet.pause;
  quiet.pause *= 2;
}

}  // namespace herring::server
