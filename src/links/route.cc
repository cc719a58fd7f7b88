#include "links/route.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace herring::links {
namespace {

// Attempts that are not pushed yet may still name one of the latest versions.
constexpr size_t kMostVersions = 256;

}  // namespace

StreamId stream_id(const Transfer& transfer, uint32_t run) {
  const Key& key = transfer.key;
  if (transfer.ways.empty() || transfer.ways[run].since == 0) {
    return {key.group, key.stream, 0, 0};
  }
  return {key.group, key.stream, home_of(transfer, run) + 1, transfer.ways[run].since};
}

const RunRoute::Outstanding* elsewhere_of(const Transfer& transfer, uint32_t run, uint32_t server,
                                   uint32_t since) {
  const auto& all = transfer.ways[run].elsewhere;
  const auto found = std::ranges::find_if(all, [&](const RunRoute::Outstanding& one) {
    return one.server == server && one.since == since;
  });
  return found == all.end() ? nullptr : &*found;
}

bool is_over(const Transfer& transfer) {
  return transfer.segments_left == 0 && std::ranges::all_of(transfer.ways, [](const RunRoute& way) {
    return way.elsewhere.empty();
  });
}

void call_off(Transfer& transfer) {
  transfer.called_off = true;
  transfer.segments_left =
      std::accumulate(transfer.on_the_way.begin(), transfer.on_the_way.end(), 0u);
}

void lose(Transfer& transfer, uint32_t run) {
  auto& answered = transfer.answered[run];
  // A transfer that is called off waits only for what is on its way.
  const auto lost = transfer.called_off ? transfer.on_the_way[run]
                                        : std::ranges::count(answered, false);
  if (lost == 0) return;
  answered.assign(answered.size(), true);
  transfer.on_the_way[run] = 0;
  transfer.fewest_workers = 0;
  transfer.segments_left -= static_cast<uint32_t>(lost);
}

void Route::add_server(uint32_t server) {
  serving_.serving.resize(server + 1, true);
  serving_.since.resize(server + 1, 0);
  versions_ = {{0, serving_}};
  for (auto one = static_cast<uint32_t>(world_.servers.size()); one <= server; ++one) {
    world_.servers.push_back(one);
  }
}

// What a worker lacks must be the last that it has pushed, so it must have one connection to each
// server. And the same rank of every other node must push what this one pushes.
bool Route::window_settles(uint32_t group) const { return of(group).even && !several_flows_; }

bool Route::keeps_results(const Transfer& transfer) const {
  if (transfer.receive == nullptr && transfer.owner != nullptr) return false;
  if (transfer.lockstep) return true;
  return transfer.open.participants == wire::Participants::kNodes &&
         window_settles(transfer.key.group);
}

std::vector<uint32_t> Route::serve(const control::ServerSet& set) {
  const control::ServerSet before = serving_;
  serving_.adopt(set);
  std::vector<uint32_t> lost;
  for (uint32_t server = 0; server < world_.servers.size(); ++server) {
    if (before.has(server) && !set.has(server)) lost.push_back(server);
  }
  if (!lost.empty()) lost_in_ = set.epoch;
  versions_[set.epoch] = serving_;
  return lost;
}

void Route::forget_versions(uint32_t earliest) {
  // A version counts until the next one.
  while (versions_.size() > kMostVersions && std::next(versions_.begin())->first <= earliest) {
    versions_.erase(versions_.begin());
  }
}

// Returns the set of servers that has the transfer's runs. If nobody keeps the results, the runs
// must not move when a server comes back: some ranks may have results that others lack. Either all
// ranks use the same version of the set, or nothing of it is in flight when a server is lost,
// because that would end the job.
const control::ServerSet& Route::set_of(const Transfer& transfer) const {
  if (keeps_results(transfer)) return serving_;
  return std::prev(versions_.upper_bound(transfer.attempt.value_or(lost_in_)))->second;
}

control::ServerSet::StandIn Route::stand_in(const Transfer& transfer, uint32_t run) const {
  const uint32_t home = home_of(transfer, run);
  auto now = set_of(transfer).stand_in(home, transfer.key.buffer, servers_of(transfer.key.group));
  if (now.server == home) now.epoch = 0;
  return now;
}

}  // namespace herring::links
