#include "server/view.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "server/server.h"

namespace herring::server {

void ServerView::add(const std::vector<observe::Lateness>& counted) {
  ranks.resize(std::max(ranks.size(), counted.size()));
  for (size_t rank = 0; rank < counted.size(); ++rank) ranks[rank] += counted[rank];
}

void ServerView::arrange() {
  std::ranges::stable_sort(missing, std::greater(), &observe::Missing::age);
  // Shards of one round on this server are listed once.
  for (size_t i = 0; i < missing.size() && i < kMostMissing; ++i) {
    const auto again = [&first = missing[i]](const observe::Missing& one) {
      return one.what == first.what && one.ranks == first.ranks;
    };
    missing.erase(std::remove_if(missing.begin() + i + 1, missing.end(), again), missing.end());
  }
  if (missing.size() > kMostMissing) missing.resize(kMostMissing);
  std::ranges::move(messages, std::back_inserter(missing));
  std::map<uint32_t, observe::PathReport> of_ranks;
  for (const observe::PathReport& flow : paths) {
    observe::PathReport& path = of_ranks[flow.index];
    path.index = flow.index;
    path.rtt = path.shortest_rtt = std::max(path.rtt, flow.rtt);
    path.retransmits += flow.retransmits;
  }
  paths.clear();
  for (const auto& [rank, path] : of_ranks) paths.push_back(path);
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const observe::Lateness& late = ranks[rank];
    if (late.calls > 0 || late.segments > 0) lateness.emplace_back(rank, late);
  }
}

ServerView Server::view(Nanos now) {
  ServerView view;
  if (!changes_) return view;
  view.seen = now;
  for (const auto& proxy : proxies_) {
    std::lock_guard lock(proxy->seen_mutex_);
    view.seen = std::min(view.seen, proxy->seen_at_);
    for (const Proxy::Seen& flow : proxy->seen_) {
      view.undelivered += flow.undelivered;
      view.bytes_received += flow.bytes_in;
      view.bytes_sent += flow.bytes_out;
      view.retransmits += flow.path.retransmits;
      view.paths.push_back(flow.path);
    }
  }
  aggregator_->report(now, view);
  changes_->report(now, view);
  view.arrange();
  return view;
}

}  // namespace herring::server
