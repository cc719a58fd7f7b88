#include "job/worker_reports.h"

#include <algorithm>
#include <utility>

#include "base/program_stack.h"
#include "observe/rounds.h"

namespace herring::job {

using observe::Entry;

void WorkerReports::told(const observe::RankTexts& texts) {
  const auto own = std::find_if(texts.begin(), texts.end(), [this](const auto& text) {
    return text.rank == rank_;
  });
  watched_.store(own == texts.end() ? -1 : own->usual);
  late_.store(own == texts.end() ? 0 : own->late);
  engine_.tell_states(observe::states_of(texts));
}

Nanos WorkerReports::pause() const {
  const Nanos left = std::max<Nanos>(due_ - monotonic_now(), 0);
  if (watched_.load() < 0) return left;
  return std::min(left, std::max<Nanos>(look_due_ - monotonic_now(), kLeastPause));
}

// Looks where the code is, now and then while the program computes.
void WorkerReports::look(Nanos now) {
  const ProgramStack stack = latest_program_stack();
  if (stack.taken > looked_) {
    looked_ = stack.taken;
    if (!stack.cause.empty()) looks_.add(stack.cause, stack.text, stack.taken);
  }
  if (now < look_due_ || !engine_.program().activity(now).where.empty()) return;
  ask_program_stack();
  asked_ = now;
  // Pauses vary, so that they are not in step with the program.
  chance_ = chance_ * 1664525 + 1013904223;
  look_due_ = now + kLook + chance_ % kLook;
}

std::optional<observe::Report> WorkerReports::report() {
  const Nanos now = monotonic_now();
  if (watched_.load() >= 0) look(now);
  if (now < due_) return std::nullopt;
  const engine::Activity activity = engine_.program().activity(now);
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

observe::ProcessRecord WorkerReports::timeline(bool last) {
  return observe::for_timeline(engine_.program().recorder(), told_, last);
}

observe::ProcessRecord WorkerReports::record() {
  const Nanos now = monotonic_now();
  const engine::Activity activity = engine_.program().activity(now);
  observe::ProcessRecord record;
  record.where = activity.where;
  record.age = std::max<Nanos>(now - activity.since, 0);
  const ProgramStack stack = latest_program_stack();
  if (stack.taken != 0 && now - stack.taken < kFresh) record.stack = stack.text;
  record.entries = engine_.program().recorder().latest(observe::kMostRecorded);
  record.groups = engine_.program().groups().news(now);
  return record;
}

void WorkerReports::dropped() { engine_.program().groups().tell_again(); }

// Returns since when no thread of the program can go on before a result comes, and nothing has
// moved here.
observe::Still WorkerReports::stands_still(Nanos now, const engine::Activity& activity,
                                           const worker::Engine::Counters& counters) {
  const bool waits = !activity.where.empty() && now - activity.since > kLongWait;
  if (waits) ask_program_stack();  // for the next report
  const ProgramStack stack = latest_program_stack();
  if (!waits || stack.held == 0 || !counters.stands_still) {
    done_.reset();
    return {};
  }
  uint64_t bytes = counters.workers.bytes_sent + counters.workers.bytes_received;
  for (const auto& server : counters.servers) bytes += server.bytes_sent + server.bytes_received;
  const Done done{stack.held, activity.rounds, activity.calls, activity.in_flight,
                  bytes - counters.notice_bytes};
  if (done_ != done) {
    done_ = done;
    still_since_ = now;
  }
  return {still_since_, stack.taken};
}

observe::Report WorkerReports::make(Nanos now, const engine::Activity& activity) {
  observe::Report report;
  report.where = activity.where;
  report.age = std::max<Nanos>(now - activity.since, 0);
  report.rounds = activity.rounds;
  report.calls = activity.calls;
  report.in_flight = activity.in_flight;
  const ProgramStack stack = latest_program_stack();
  const bool fresh = stack.taken != 0 && now - stack.taken < kFresh;
  if (asked_ != 0 && now - asked_ < kFresh && (fresh || stack.overdue(now))) {
    report.stack = stack.say(now);
    if (fresh) report.cause = stack.cause;
  }
  engine_.program().recorder().each_ended(
      sampled_, [this](const Entry& ended) { sampler_.add(ended); });
  report.samples = sampler_.take();
  std::vector<Nanos> works;
  for (const observe::RoundSample& sample : report.samples) {
    if (sample.before != 0) works.push_back(sample.ready - sample.before);
  }
  if (!works.empty()) work_ = observe::median(std::move(works));
  const Nanos usual = watched_.load();
  if (usual >= 0 && report.age < kStalled) {
    // What it does just now matters less than what it does in most steps.
    const observe::Looks::Reason reason = looks_.reason(now, work_, usual);
    if (!reason.cause.empty()) {
      report.cause = reason.cause;
      report.stack = reason.stack;
    }
  }
  report.stride = sampler_.stride();
  report.groups = engine_.program().groups().news(now);
  report.operations = engine_.program().recorder().operations();
  report.resources = observe::own_resources();
  const worker::Engine::Counters counters = engine_.counters();
  report.still = stands_still(now, activity, counters);
  report.bytes_sent = counters.workers.bytes_sent;
  report.bytes_received = counters.workers.bytes_received;
  for (const transport::FlowCounters& server : counters.servers) {
    report.bytes_sent += server.bytes_sent;
    report.bytes_received += server.bytes_received;
  }
  report.retransmits = counters.retransmits;
  report.credit = counters.credit_bytes;
  report.kept = counters.kept_bytes;
  for (uint32_t server = 0; server < counters.paths.size(); ++server) {
    const transport::PathInfo& path = counters.paths[server];
    report.paths.push_back({server, path.rtt, path.min_rtt, path.retransmits});
  }
  return report;
}

}  // namespace herring::job
