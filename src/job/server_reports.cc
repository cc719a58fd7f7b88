#include "job/server_reports.h"

#include <algorithm>
#include <utility>

namespace herring::job {

Nanos ServerReports::pause() const { return std::max<Nanos>(due_ - monotonic_now(), 0); }

std::optional<observe::Report> ServerReports::report() {
  const Nanos now = monotonic_now();
  if (now < due_) return std::nullopt;
  server::ServerView view = server_.view(now);
  const bool stalled = !view.missing.empty() && !view.missing.front().by;  // messages come last
  due_ = now + (stalled ? kStalledInterval : kInterval);
  view.still = stands_still(view, now);
  view.resources = observe::own_resources(true);
  view.in_flight += view.announced;
  return observe::Report(std::move(view));
}

// Returns since when the server has done nothing and all that it has sent has arrived. Everything
// in a server begins with a message, except the ends of partial all-reduces, of which the ranks
// that take part in them know.
observe::Still ServerReports::stands_still(const server::ServerView& view, Nanos now) {
  const std::array<uint64_t, 3> done{view.sums, view.in_flight, view.announced};
  if (view.undelivered > 0 || done_ != done) {
    done_ = done;
    still_since_ = now;
    return {};
  }
  return {still_since_, view.seen};
}

observe::ProcessRecord ServerReports::timeline(bool last) {
  return observe::for_timeline(server_.recorder(), told_, last);
}

observe::ProcessRecord ServerReports::record() {
  observe::ProcessRecord record;
  record.entries = server_.recorder().latest(observe::kMostRecorded);
  return record;
}

void ServerReports::told(const observe::RankTexts& texts) {
  server_.tell_states(observe::states_of(texts));
}

}  // namespace herring::job
