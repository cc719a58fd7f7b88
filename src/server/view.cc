#include "server/view.h"

#include <algorithm>

#include "server/server.h"

namespace herring::server {

void ServerView::arrange() {
  std::ranges::stable_sort(missing, {}, &Missing::since);
  // Shards of one round on this server are listed once.
  for (size_t i = 0; i < missing.size() && i < kMostMissing; ++i) {
    const auto again = [&first = missing[i]](const Missing& one) {
      return one.what == first.what && one.ranks == first.ranks;
    };
    missing.erase(std::remove_if(missing.begin() + i + 1, missing.end(), again), missing.end());
  }
  if (missing.size() > kMostMissing) missing.resize(kMostMissing);
  std::ranges::stable_sort(paths, {}, &Path::rank);
  size_t kept = 0;
  for (const Path& path : paths) {
    if (kept == 0 || paths[kept - 1].rank != path.rank) {
      paths[kept++] = path;
      continue;
    }
    paths[kept - 1].rtt = std::max(paths[kept - 1].rtt, path.rtt);
    paths[kept - 1].retransmits += path.retransmits;
  }
  paths.resize(kept);
}

ServerView Server::view(Nanos now) {
  ServerView view;
  if (!changes_) return view;
  view.ranks.resize(cluster_.size);
  view.seen = now;
  for (const auto& proxy : proxies_) {
    std::lock_guard lock(proxy->seen_mutex_);
    view.seen = std::min(view.seen, proxy->seen_at_);
    for (const Proxy::Seen& flow : proxy->seen_) {
      view.undelivered += flow.undelivered;
      view.bytes_in += flow.bytes_in;
      view.bytes_out += flow.bytes_out;
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
