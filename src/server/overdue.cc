// What the slot table says about operations that wait.
#include <algorithm>
#include <utility>

#include "server/aggregator.h"

namespace herring::server {
namespace {

// How long an operation may wait for a member that gives nothing more.
constexpr Nanos kLeftGrace = kSecond;

}  // namespace

Aggregator::Awaited Aggregator::awaited(const Operation& op) const {
  Awaited found;
  found.fewest = op.segments;
  std::vector<std::pair<uint32_t, uint32_t>> opened;  // ranks, and how many segments have arrived
  for (const uint32_t rank : op.group->members.ranks()) {
    const uint32_t contributor = contributor_of(op.group->members, op.open, rank);
    if (contributor == kNobody) continue;
    if (goes_on_without(op) && std::ranges::find(lost_, rank) != lost_.end()) continue;
    const Contributor& one = op.contributors[contributor];
    found.fewest = std::min(found.fewest, one.arrived);
    (one.opened ? found.present : found.missing).push_back(rank);
    if (one.opened) opened.emplace_back(rank, one.arrived);
  }
  if (!found.missing.empty() || found.fewest == op.segments) return found;
  for (const auto& [rank, arrived] : opened) {
    if (arrived == found.fewest) found.behind.push_back(rank);
  }
  return found;
}

std::string Aggregator::describe(const Operation& op, const Awaited& awaited) const {
  if (!awaited.missing.empty()) return cluster_.describe_ranks(awaited.missing);
  if (awaited.fewest == op.segments) return "workers to read the results";
  if (awaited.level()) {
    return concat("segments that no rank has sent yet; ", awaited.fewest, " of ", op.segments,
                  " have arrived from each");
  }
  return concat("segments of ", cluster_.describe_ranks(awaited.behind), "; ", awaited.fewest,
                " of ", op.segments, " have arrived");
}

std::vector<Aggregator::Overdue> Aggregator::overdue(Nanos now) {
  std::vector<Overdue> list;
  std::lock_guard lock(mutex_);
  for (auto& [key, op] : operations_) {
    const Nanos age = now - op->since;
    const Deadline& deadline = op->open.deadline;
    if (has_ended(*op) || rests(*op)) continue;
    const bool fatal = deadline.passed(now, op->since, moved_);
    if (!fatal && (op->warned || !deadline.warns(now, op->since))) continue;
    op->warned = true;
    Overdue item{fatal, {}, awaited(*op)};
    item.text = concat("'", op->open.name, "'", op->group->members.suffix(), " (round ",
                       key.round, ", buffer ", key.buffer, ") has waited ", in_seconds(age),
                       " for ", describe(*op, item.awaited));
    if (fatal) {
      op->since = now;  // told once; the job fails anyway
      op->mark.end(now, Code::kTimeout);
    }
    list.push_back(std::move(item));
  }
  return list;
}

std::map<std::shared_ptr<JobGroup>, std::string> Aggregator::stranded(Nanos now,
                                                                         bool by_left) {
  std::map<std::shared_ptr<JobGroup>, std::string> found;
  std::lock_guard lock(mutex_);
  for (const auto& [key, op] : operations_) {
    const JobGroup& group = *op->group;
    const bool may = !group.gone.empty() && !has_ended(*op) && !rests(*op) &&
                     now - std::max(op->since, op->newest) > kLeftGrace;
    if (!may) continue;
    Awaited waits = awaited(*op);
    waits.missing.insert(waits.missing.end(), waits.behind.begin(), waits.behind.end());
    for (const uint32_t rank : waits.missing) {
      const uint32_t index = group.members.index_of(rank);
      const bool destroyed = group.has_destroyed(index);
      if (!destroyed && !(by_left && group.is_gone(index))) continue;
      found.try_emplace(op->group,
                        concat("'", op->open.name, "'", group.members.suffix(),
                               " cannot complete: ", cluster_.describe_rank(rank), " ",
                               destroyed ? kDestroyedGroup : kLeftJob,
                               " and gives nothing more"));
    }
  }
  return found;
}

void Aggregator::report(Nanos now, ServerView& view) {
  // When nothing moves, thousands of operations may wait, of which the oldest are enough.
  constexpr size_t kMostLooked = 16 * ServerView::kMostMissing;
  std::vector<std::pair<Nanos, const Operation*>> waiting;
  std::lock_guard lock(mutex_);
  view.add(lateness_);
  view.sums += sums_;
  view.sum_time += sum_time_;
  for (const auto& [key, op] : operations_) {
    if (rests(*op)) continue;
    ++view.in_flight;
    if (has_ended(*op)) continue;
    // While segments come, nobody waits for ranks that have opened the operation.
    const Nanos since = op->unopened > 0 ? op->called : std::max(op->called, op->newest);
    if (now - since > ServerView::kLeastWait) waiting.emplace_back(since, op.get());
  }
  const size_t looked = std::min(waiting.size(), kMostLooked);
  std::partial_sort(waiting.begin(), waiting.begin() + looked, waiting.end());
  for (size_t i = 0; i < looked; ++i) {
    const auto& [since, op] = waiting[i];
    Awaited awaited = Aggregator::awaited(*op);
    if (awaited.level()) continue;  // none of them is late here
    std::vector<uint32_t>& ranks = awaited.missing.empty() ? awaited.behind : awaited.missing;
    if (ranks.empty()) continue;  // only results are on their way
    view.missing.push_back({concat("'", op->open.name, "'", op->group->members.suffix(),
                                   " (round ", op->key.round, ")"),
                            now - since, std::move(ranks)});
  }
}

}  // namespace herring::server
