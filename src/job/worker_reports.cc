#include "job/worker_reports.h"

#include <algorithm>
#include <utility>

#include "base/program_stack.h"

namespace herring::job {

using observe::Entry;
using observe::Kind;
using observe::Moment;

void WorkerReports::told(const observe::RankTexts& texts) {
  const auto own = std::find_if(texts.begin(), texts.end(), [this](const auto& text) {
    return text.rank == rank_;
  });
  watched_.store(own == texts.end() ? -1 : own->usual);
  engine_.tell_states(observe::states_of(texts));
}

Nanos WorkerReports::pause() const {
  const Nanos left = std::max<Nanos>(due_ - monotonic_now(), 0);
  return watched_.load() < 0 ? left : std::min(left, kLook);
}

// Returns whether the program has computed in this round for longer than `usual`.
bool WorkerReports::computes_too_long(Nanos now, Nanos usual) {
  constexpr size_t kEntries = 256;
  const std::vector<Entry> latest = engine_.recorder().latest(kEntries);
  Nanos done = 0;
  bool begun = false;
  for (const Entry& entry : latest) {
    if (entry.kind != Kind::kRound) continue;
    if (entry.ended) {
      done = std::max(done, entry.when(Moment::kDone));
    } else {
      begun = true;
      if (entry.when(Moment::kReady) != 0) return false;  // it has given all its data
    }
  }
  if (done == 0 && !begun) {  // a program without planned rounds
    const worker::Activity activity = engine_.activity(now);
    return activity.where.empty() && now - activity.since > std::max(usual, kLook);
  }
  return done != 0 && now - done > usual + kLook / 2;
}

std::optional<observe::Report> WorkerReports::report() {
  const Nanos now = monotonic_now();
  const Nanos usual = watched_.load();
  if (usual >= 0 && now - asked_ > kInterval / 4 && computes_too_long(now, usual)) {
    ask_program_stack();
    asked_ = now;
  }
  if (now < due_) return std::nullopt;
  const worker::Activity activity = engine_.activity(now);
  const bool stalled = now - activity.since > kStalled;
  if (stalled && activity.where.empty() && !std::exchange(delayed_, true)) {
    ask_program_stack();
    asked_ = now;
    due_ = now + kAnswer;
    return std::nullopt;
  }
  delayed_ = false;
  due_ = now + (stalled ? kStalledInterval : kInterval);
  return make(now, activity);
}

std::vector<Entry> WorkerReports::ended() { return engine_.recorder().ended_since(told_); }

observe::ProcessRecord WorkerReports::record() {
  const Nanos now = monotonic_now();
  const worker::Activity activity = engine_.activity(now);
  observe::ProcessRecord record;
  record.where = activity.where;
  record.age = std::max<Nanos>(now - activity.since, 0);
  const ProgramStack stack = latest_program_stack();
  if (stack.taken != 0 && now - stack.taken < 2 * kInterval) record.stack = stack.text;
  record.entries = engine_.recorder().latest(observe::kMostRecorded);
  return record;
}

observe::Report WorkerReports::make(Nanos now, const worker::Activity& activity) {
  observe::Report report;
  report.where = activity.where;
  report.age = std::max<Nanos>(now - activity.since, 0);
  report.rounds = activity.rounds;
  report.calls = activity.calls;
  report.in_flight = activity.in_flight;
  const ProgramStack stack = latest_program_stack();
  const bool fresh = stack.taken != 0 && now - stack.taken < 2 * kInterval;
  if (asked_ != 0 && now - asked_ < 2 * kInterval && (fresh || stack.overdue(now))) {
    report.stack = stack.say(now);
    if (fresh) report.cause = stack.cause;
  }
  report.samples = sampler_.take(engine_.recorder().ended_since(sampled_));
  report.stride = sampler_.stride();
  report.resources = observe::own_resources();
  const worker::Engine::Counters counters = engine_.counters();
  report.bytes_sent = counters.workers.bytes_sent;
  report.bytes_received = counters.workers.bytes_received;
  for (const transport::FlowCounters& server : counters.servers) {
    report.bytes_sent += server.bytes_sent;
    report.bytes_received += server.bytes_received;
  }
  report.retransmits = counters.retransmits;
  report.credit = counters.credit_bytes;
  for (uint32_t server = 0; server < counters.paths.size(); ++server) {
    const transport::PathInfo& path = counters.paths[server];
    report.paths.push_back({server, path.rtt, path.min_rtt, path.retransmits});
  }
  return report;
}

}  // namespace herring::job
