// The part of Links that knows of which results no other worker can lack anything, in a job that
// goes on when a server dies (failover.cc). Later results in a stream say it, or all workers have
// said it (Keeping).
#include <algorithm>

#include "base/streams.h"
#include "links/links.h"

namespace herring::links {

// The result of a round is here, so all ranks have those of earlier rounds.
void Links::settle_rounds_before(const Key& key) {
  std::vector<Key> settled;
  for (auto one = kept_.lower_bound({key.stream}); one != kept_.end(); ++one) {
    if (one->first.stream != key.stream || one->first.round >= key.round) break;
    if (one->first.group == key.group) settled.push_back(one->first);
  }
  forget_settled(settled);
}

void Links::forget_settled(const std::vector<Key>& keys) {
  for (const Key& key : keys) {
    release(*kept_[key]);
    forget_kept(key);
  }
}

// Returns the group and the home for which the all-reduces of a stream were announced; nothing for
// other streams.
std::optional<Links::Home> Links::home_of_calls(uint32_t group, uint32_t stream) const {
  const auto servers = static_cast<uint32_t>(links_.size());
  if (!options_.failover || !is_of_calls(stream, servers)) return std::nullopt;
  const uint32_t home = herring::home_of(stream, servers);
  return home < servers ? std::optional(Home{group, home}) : std::nullopt;
}

void Links::begin_in_reign(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (home) ++reigns_[*home].in_flight[key.stream];
}

// After the last transfer of a reign, those of the next one no longer have to wait.
void Links::end_in_reign(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (!home) return;
  auto& in_flight = reigns_[*home].in_flight;
  const auto found = in_flight.find(key.stream);
  if (--found->second > 0) return;
  in_flight.erase(found);
  if (in_flight.empty()) return;
  for (uint32_t server = 0; server < links_.size(); ++server) released_.push_back(server);
}

bool Links::waits_for_earlier_reign(const StreamId& id) const {
  const auto home = home_of_calls(id.group, id.stream);
  if (!home) return false;
  const auto found = reigns_.find(*home);
  if (found == reigns_.end() || found->second.in_flight.empty()) return false;
  return found->second.in_flight.begin()->first < id.stream;
}

// A result of a reign is here, so all ranks have those of earlier reigns.
void Links::settle_reigns_before(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (!home || reigns_[*home].settled >= key.stream) return;
  reigns_[*home].settled = key.stream;
  const auto is_earlier = [&](const auto& one) {
    const auto& id = one.first;
    return id.stream < key.stream && home_of_calls(id.group, id.stream) == home;
  };
  std::vector<Key> settled;
  for (const auto& one : kept_) {
    if (is_earlier(one)) settled.push_back(one.first);
  }
  forget_settled(settled);
  for (Link& link : links_) std::erase_if(link.settling, is_earlier);
}

// The result of a segment is here, so no other worker lacks results that are older than a window.
void Links::settle(const Transfer& transfer, uint32_t run, uint32_t segment) {
  if (transfer.lockstep && !kept_.empty()) settle_rounds_before(transfer.key);
  if (!window_settles(transfer.key.group)) return;
  if (transfer.key.stream >= kReignStreams) settle_reigns_before(transfer.key);
  const Way& way = transfer.ways[run];
  Link& link = links_[way.server];
  const auto found = link.settling.find(settling_id(transfer, run));
  if (found == link.settling.end()) return;
  Settling& settling = found->second;
  // A run that is pushed again contributes to some of its segments only.
  const uint64_t place = way.place + (way.again ? 0 : segment - transfer.runs[run].first);
  settling.answered = std::max(settling.answered, place + 1);
  const size_t window = size_t{options_.credit_max} + 1;  // what a worker may have outstanding
  if (settling.answered <= window) return;
  const uint64_t settled = settling.answered - window;
  while (!settling.runs.empty()) {
    const Settling::Run front = settling.runs.front();
    const bool here = settles(link, found->first, front);
    if (here) {
      Transfer* const one = find(front.key);
      free_chunks(*one, front.run, settled);
      if (!one->ways[front.run].elsewhere.empty()) break;
      if (one->ways[front.run].place + one->runs[front.run].count > settled) break;
      const bool answered = std::ranges::find(one->answered[front.run], false) ==
                            one->answered[front.run].end();
      if (!answered) break;
    }
    settling.runs.pop_front();
    if (here) forget_kept(front.key);
  }
}

// A rank has no share of a buffer that is smaller than its node has ranks. It is asked all the same
// whether it lacks anything.
void Links::note_over(const Transfer& transfer) {
  uint64_t& upto = over_[{transfer.key.group, transfer.key.stream}];
  upto = std::max(upto, wire::settled_at(transfer.key));
}

std::vector<Links::Over> Links::over() const {
  auto over = over_;
  for (const auto& [key, pushed] : transfers_) {
    const auto found = over.find({key.group, key.stream});
    if (found != over.end() && wire::settled_at(key) <= found->second) over.erase(found);
  }
  std::vector<Over> all;
  for (const auto& [where, upto] : over) all.push_back({where.first, where.second, upto});
  return all;
}

void Links::settle(const Over& all) {
  std::vector<Key> settled;
  for (auto one = kept_.lower_bound({all.stream}); one != kept_.end(); ++one) {
    const Key& key = one->first;
    if (key.stream != all.stream) break;
    if (key.group == all.group && wire::settled_at(key) <= all.upto) settled.push_back(key);
  }
  forget_settled(settled);
  const auto found = over_.find({all.group, all.stream});
  if (found == over_.end() || found->second > all.upto) return;
  over_.erase(found);
  for (Link& link : links_) {
    std::erase_if(link.settling, [&](const auto& one) {
      const bool here = one.first.group == all.group && one.first.stream == all.stream;
      return here && nothing_settles(link, one.first, one.second);
    });
  }
}

}  // namespace herring::links
