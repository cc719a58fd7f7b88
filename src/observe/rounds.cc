#include "observe/rounds.h"

#include <algorithm>
#include <cmath>

namespace herring::observe {
namespace {

// A rank counts as late from this on, and from this part of a step.
constexpr Nanos kLate = kMillisecond;
constexpr double kLatePart = 0.05;

template <typename Get>
auto values(const auto& items, const Get& get) {
  std::vector<Nanos> found;
  found.reserve(items.size());
  for (const auto& item : items) found.push_back(get(item));
  return found;
}

Nanos between(Nanos from, Nanos to) {
  return from == 0 || to == 0 ? 0 : std::max<Nanos>(to - from, 0);
}

}  // namespace

Nanos quantile(std::vector<Nanos> values, double q) {
  if (values.empty()) return 0;
  const double last = static_cast<double>(values.size() - 1);
  const auto place = values.begin() + static_cast<ptrdiff_t>(q * last);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

void Rounds::add(uint32_t rank, const RoundSample& sample, Nanos error, Nanos now) {
  if (rank >= verdicts_.size() || sample.ready == 0 || sample.done == 0) return;
  const Key key{sample.group, sample.stream, sample.round};
  if (sample.group != 0) {
    if (groups_.size() >= kMostOpen && groups_.count(sample.group) == 0) {
      groups_.erase(groups_.begin());
    }
    groups_.try_emplace(sample.group, Seen{now, {}}).first->second.ranks.insert(rank);
  }
  auto found = open_.find(key);
  if (found == open_.end()) {
    if (open_.size() >= kMostOpen) open_.erase(open_.begin());
    found = open_.emplace(key, Open{now, {}}).first;
  }
  std::vector<Told>& told = found->second.told;
  const bool known = std::any_of(told.begin(), told.end(), [&](const Told& one) {
    return one.rank == rank;
  });
  if (!known) told.push_back({rank, sample, error});
}

// Rounds of a group end on all members at about the same time, so those who have told of none for a
// while are no members.
size_t Rounds::awaited(uint32_t group, uint32_t expected, Nanos now) const {
  const auto found = groups_.find(group);
  if (found == groups_.end() || now - found->second.since < kFamiliar) return expected;
  return found->second.ranks.size();
}

void Rounds::compare(uint32_t expected, Nanos now) {
  for (auto it = open_.begin(); it != open_.end();) {
    const Open& open = it->second;
    const size_t awaits = awaited(std::get<0>(it->first), expected, now);
    if (open.told.size() < awaits && now - open.since < kPatience) {
      ++it;
      continue;
    }
    if (open.told.size() > 1) compare_one(it->first, open);
    it = open_.erase(it);
  }
}

void Rounds::compare_one(const Key& key, const Open& open) {
  const auto& told = open.told;
  const auto of = [&told](const auto& get) {
    return values(told, [&get](const Told& one) { return get(one.sample); });
  };
  const auto work_of = [](const RoundSample& s) { return between(s.before, s.ready); };
  const auto ready = of([](const RoundSample& s) { return s.ready; });
  const Nanos typical = median(ready), last = quantile(ready, 1);
  const Nanos typical_work = median(of(work_of));
  const Nanos typical_before = median(of([](const RoundSample& s) { return s.before; }));
  const Nanos done = median(of([](const RoundSample& s) { return s.done; }));

  Split split;
  split.step = median(of([](const RoundSample& s) { return between(s.before, s.done); }));
  split.compute = typical_work;
  split.ranks = last - typical;
  split.spread = last - quantile(ready, 0);
  split.tail = std::max<Nanos>(done - last, 0);
  split.node_stage = median(of([](const RoundSample& s) { return between(s.ready, s.reduced); }));
  split.push = median(of([](const RoundSample& s) {
    return between(std::max(s.ready, s.reduced), s.pushed);
  }));
  split.pull = median(of([](const RoundSample& s) {
    return between(std::max({s.ready, s.reduced, s.pushed}), s.done);
  }));
  split.exposed = median(of([](const RoundSample& s) { return s.waited; }));
  split.bytes = told.front().sample.bytes;
  // The first round has no beginning: what the program did before is no step.
  if (split.step > 0) splits_.push_back(split);
  if (splits_.size() > kWindow) splits_.pop_front();
  ++compared_;

  Nanos error = 0;
  for (const Told& one : told) error = std::max(error, one.error);
  const Nanos threshold = std::max(
      {kLate, static_cast<Nanos>(kLatePart * static_cast<double>(split.step)), 2 * error});
  for (const Told& one : told) {
    Verdict verdict;
    verdict.round = std::get<2>(key);
    verdict.by = one.sample.ready - typical;
    verdict.work = work_of(one.sample);
    verdict.typical_work = typical_work;
    verdict.waited = one.sample.waited;
    // In a partial all-reduce, results come without a late rank: nobody waits for it. Before its
    // first round a program does other things, too.
    verdict.late = verdict.by > threshold && done >= one.sample.ready && one.sample.before != 0;
    verdict.last = verdict.late && one.sample.ready == last;
    if (verdict.late) {
      verdict.computed = std::clamp<Nanos>(verdict.work - typical_work, 0, verdict.by);
      verdict.received = std::clamp<Nanos>(one.sample.before - typical_before, 0,
                                           verdict.by - verdict.computed);
    }
    std::deque<Verdict>& of_rank = verdicts_[one.rank];
    of_rank.push_back(verdict);
    if (of_rank.size() > kWindow) of_rank.pop_front();
  }
}

Rounds::Late Rounds::late(uint32_t rank, size_t latest) const {
  Late late;
  std::vector<Nanos> by;
  double total = 0, computed = 0, received = 0, squares = 0;
  const std::deque<Verdict>& verdicts = verdicts_[rank];
  for (size_t i = verdicts.size() - std::min(latest, verdicts.size()); i < verdicts.size(); ++i) {
    const Verdict& verdict = verdicts[i];
    ++late.rounds;
    late.mean += static_cast<double>(verdict.by);
    squares += static_cast<double>(verdict.by) * static_cast<double>(verdict.by);
    if (!verdict.late) continue;
    ++late.late;
    late.last += verdict.last;
    by.push_back(verdict.by);
    total += static_cast<double>(verdict.by);
    computed += static_cast<double>(verdict.computed);
    received += static_cast<double>(verdict.received);
    if (verdict.by > late.most) {
      late.most = verdict.by;
      late.most_round = verdict.round;
    }
  }
  if (total > 0) {
    late.computed = computed / total;
    late.received = received / total;
  }
  if (late.rounds > 0) {
    const double n = late.rounds;
    late.mean /= n;
    late.mean_error = std::sqrt(std::max(squares / n - late.mean * late.mean, 0.0) / n);
  }
  late.median = median(std::move(by));
  late.work = median(values(verdicts_[rank], [](const Verdict& one) { return one.work; }));
  late.waited = median(values(verdicts_[rank], [](const Verdict& one) { return one.waited; }));
  return late;
}

double Rounds::score(uint32_t rank) const {
  std::vector<Nanos> parts;  // in millionths
  for (const Verdict& verdict : verdicts_[rank]) {
    if (verdict.work <= 0 || verdict.typical_work <= 0) continue;
    parts.push_back(static_cast<Nanos>(1e6 * static_cast<double>(verdict.typical_work) /
                                       static_cast<double>(verdict.work)));
  }
  if (parts.empty()) return 1;
  return std::min(1.0, static_cast<double>(median(std::move(parts))) * 1e-6);
}

Rounds::Split Rounds::split() const {
  const auto of = [this](Nanos Split::* field) {
    return median(values(splits_, [field](const Split& split) { return split.*field; }));
  };
  Split all;
  if (splits_.empty()) return all;
  const auto steps = values(splits_, [](const Split& split) { return split.step; });
  all.step = median(steps);
  all.shortest = quantile(steps, 0);
  all.longest = quantile(steps, 1);
  all.most = quantile(steps, 0.9);
  all.compute = of(&Split::compute);
  all.ranks = of(&Split::ranks);
  all.spread = of(&Split::spread);
  all.node_stage = of(&Split::node_stage);
  all.push = of(&Split::push);
  all.pull = of(&Split::pull);
  all.tail = of(&Split::tail);
  all.exposed = of(&Split::exposed);
  all.bytes = splits_.back().bytes;
  return all;
}

}  // namespace herring::observe
