#include "job/server_reports.h"

#include <algorithm>
#include <utility>

namespace herring::job {

Nanos ServerReports::pause() const { return std::max<Nanos>(due_ - monotonic_now(), 0); }

std::optional<observe::Report> ServerReports::report() {
  const Nanos now = monotonic_now();
  if (now < due_) return std::nullopt;
  server::ServerView view = server_.view(now);
  due_ = now + (view.missing.empty() ? kInterval : kStalledInterval);
  observe::Report report;
  report.still = stands_still(view, now);
  report.resources = observe::own_resources(true);
  report.bytes_sent = view.bytes_out;
  report.bytes_received = view.bytes_in;
  report.retransmits = view.retransmits;
  report.in_flight = view.in_flight + view.announced;
  report.sums = view.sums;
  report.sum_time = view.sum_time;
  for (uint32_t rank = 0; rank < view.ranks.size(); ++rank) {
    const observe::Lateness& late = view.ranks[rank];
    if (late.calls > 0 || late.segments > 0) report.lateness.emplace_back(rank, late);
  }
  for (const auto& path : view.paths) {
    report.paths.push_back({path.rank, path.rtt, path.rtt, path.retransmits});
  }
  for (auto& one : view.missing) {
    report.missing.push_back({std::move(one.what), now - one.since, std::move(one.ranks)});
  }
  for (auto& one : view.messages) {
    std::vector<uint32_t> other;
    if (one.other) other.push_back(*one.other);
    report.missing.push_back({std::move(one.what), now - one.since, std::move(other), one.by});
  }
  return report;
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
