// What the slot table says about operations that wait.
#include <algorithm>

#include "server/aggregator.h"

namespace herring::server {

Aggregator::Awaited Aggregator::awaited(const Operation& op) {
  Awaited found;
  found.fewest = op.segments;
  bool all_opened = true;
  for (const Contributor& one : op.contributors) {
    found.fewest = std::min(found.fewest, one.arrived);
    all_opened = all_opened && one.opened;
  }
  for (const uint32_t rank : op.group->members.ranks()) {
    const uint32_t contributor = contributor_of(op.group->members, op.open, rank);
    if (contributor == kNobody) continue;
    const Contributor& one = op.contributors[contributor];
    (one.opened ? found.present : found.missing).push_back(rank);
    const bool behind = all_opened && found.fewest < op.segments && one.arrived == found.fewest;
    if (behind) found.behind.push_back(rank);
  }
  return found;
}

std::string Aggregator::describe(const Operation& op, const Awaited& awaited) const {
  const auto list = [this](const std::vector<uint32_t>& ranks) {
    std::string text;
    for (const uint32_t rank : ranks) {
      text += (text.empty() ? "" : ", ") + cluster_.describe_rank(rank);
    }
    return text;
  };
  if (!awaited.missing.empty()) return list(awaited.missing);
  if (awaited.fewest == op.segments) return "workers to read the results";
  return concat("segments of ", list(awaited.behind), "; ", awaited.fewest, " of ", op.segments,
                " have arrived");
}

std::vector<Aggregator::Overdue> Aggregator::overdue(Nanos now) {
  std::vector<Overdue> list;
  std::lock_guard lock(mutex_);
  for (auto& [key, op] : operations_) {
    const Nanos age = now - op->since;
    const Deadline& deadline = op->open.deadline;
    if (op->group->called_off && !goes_on_without(*op)) continue;  // its members know
    const bool fatal = deadline.passed(now, op->since, moved_);
    if (!fatal && (op->warned || !deadline.warns(now, op->since))) continue;
    op->warned = true;
    Overdue item{fatal, {}, awaited(*op)};
    item.text = concat("'", op->open.name, "'", op->group->members.suffix(), " (round ",
                       key.round, ", buffer ", key.buffer, ") has waited ", in_seconds(age),
                       " for ", describe(*op, item.awaited));
    if (fatal) op->since = now;  // told once; the job fails anyway
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace herring::server
