#include "control/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/process_texts.h"
#include "base/signal_handlers.h"
#include "control/messages.h"
#include "transport/address.h"

namespace herring::control {
namespace {

using wire::FrameType;

observe::Roster roster_of(const Cluster& cluster, const Peers& peers,
                          const Watch::Options& options) {
  observe::Roster roster;
  roster.job = options.label.empty() ? options.job : options.label;
  roster.id = options.job;
  roster.version = version();
  if (const char* const id = std::getenv("SLURM_JOB_ID")) roster.slurm_job_id = id;
  roster.nodes = cluster.nodes;
  roster.failover = options.failover;
  for (const WorkerInfo& worker : cluster.workers) {
    roster.ranks.push_back({worker.host, worker.node, worker.pid, worker.host});
  }
  for (const ServerInfo& server : cluster.servers) {
    const auto address = transport::parse_address(server.address, "a server's address");
    const std::string host = address.ok() ? address->host : server.address;
    roster.servers.push_back({host, server.dedicated, server.node, 0, server.weight, host});
  }
  for (const auto& peer : peers) {
    if (peer->kind == Peer::Kind::kServer && peer->index < roster.servers.size()) {
      roster.servers[peer->index].pid = peer->pid;
      if (!peer->host_name.empty()) roster.servers[peer->index].host = peer->host_name;
    }
    if (peer->kind == Peer::Kind::kWorker && peer->index < roster.ranks.size()) {
      if (!peer->host_name.empty()) roster.ranks[peer->index].host = peer->host_name;
    }
  }
  return roster;
}

double unix_zero(Nanos now) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count() - to_seconds(now);
}

}  // namespace

Watch::Watch(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster,
             Options options)
    : loop_(loop),
      peers_(peers),
      unix_zero_(unix_zero(loop.now())),
      monitor_(roster_of(cluster, peers, options),
               {.report_every = options.report_every,
                .silent_after = std::max(kSecond, 4 * options.heartbeat_interval),
                .unix_zero = unix_zero_},
               loop.now()),
      began_(loop.now()),
      deadlocked_(std::move(options.deadlocked)),
      on_signal_(options.on_signal),
      signals_(status_signals()) {
  loop_.call_after(kTick, [this] { tick(); });
  prepare_record(options);
  if (options.timeline.empty()) return;
  if (const Status begun = begin_timeline(options.timeline); !begun.ok()) {
    log(LogLevel::kWarning, "there is no timeline (HERRING_TIMELINE), and the job goes on: ",
        begun.message());
  }
}

void Watch::prepare_record(const Options& options) {
  if (options.flight_folder == "off") return;
  auto folder = record_folder(options.flight_folder);
  if (!folder.ok()) {
    return log(LogLevel::kWarning, "there will be no flight record, and the job goes on: ",
               folder.status().message());
  }
  const std::string path = concat(*folder, "/", options.job, "-", getpid(), ".flight.json");
  recording_.emplace(loop_, peers_, path, unix_zero_, [this] { return picture(); });
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  place_ = concat(host, ":", path);
  for (const auto& peer : peers_) {
    if (!peer->is_member()) continue;
    peer->channel->send(FrameType::kRecord, place_, kFlagPlace);
  }
}

Status Watch::record(const Peer& from, bool failed, std::string_view payload) {
  HERRING_ASSIGN_OR_RETURN(auto& record, observe::decode_process_record(payload));
  monitor_.groups(process_of(from), record.groups, loop_.now());
  if (!recording_) return {};
  if (failed && !expects_failures_) {
    recording_->begin(concat(monitor_.roster().name(process_of(from)), ": ", record.failure));
  }
  recording_->add(from, std::move(record));
  return {};
}

Result<std::string> Watch::write_record(const std::string& why) {
  if (!recording_) {
    return Status(Code::kConfiguration,
                  "this job writes no flight records (HERRING_FLIGHT_FOLDER)");
  }
  recording_->begin(why);
  return recording_->path();
}

Status Watch::timeline(const Peer& from, bool last, std::string_view payload) {
  HERRING_ASSIGN_OR_RETURN(auto& entries, observe::decode_process_record(payload));
  if (!timeline_) return {};
  const observe::Process process = process_of(from);
  if (!trace_->write(timeline_->add(process, entries, loop_.now()))) {
    dropped_ += entries.entries.size();
  }
  if (last) last_came(process);
  return {};
}

Status Watch::begin_timeline(const std::string& path) {
  if (trace_ && trace_->broken()) {  // nobody has ended it, because its disk is full
    timeline_.reset();
    trace_.reset();
  }
  if (timeline_) {
    return {Code::kInvalidArgument, concat("a timeline is being written to ", trace_->path(),
                                           "; end it first")};
  }
  std::error_code error;
  const auto full = std::filesystem::absolute(path, error);
  auto opened = observe::FileWriter::open(error ? path : full.string(), [](const Status& why) {
    log(LogLevel::kWarning, "the timeline ends, and the job goes on: ", why.message());
  });
  if (!opened.ok()) return opened.status();
  trace_ = std::move(*opened);
  timeline_ = std::make_unique<observe::Timeline>(monitor_.roster(), loop_.now());
  ++timelines_;
  dropped_ = 0;
  trace_->write(timeline_->begin());
  log(LogLevel::kInfo, "writes a timeline to ", trace_->path());
  want_entries(kFlagWanted);
  return {};
}

void Watch::end_timeline(Ended ended) {
  if (!timeline_) return ended(nullptr);
  ends_.push_back(std::move(ended));
  if (ends_.size() > 1) return;
  for (const auto& peer : peers_) {
    if (peer->is_member() && peer->index != ~0u) unfinished_.insert(process_of(*peer));
  }
  if (unfinished_.empty() || trace_->broken()) return close_timeline();
  want_entries(0);
  loop_.call_after(kLastEntries, [this, number = timelines_] {
    if (number == timelines_) close_timeline();
  });
}

void Watch::last_came(const observe::Process& process) {
  if (unfinished_.erase(process) > 0 && unfinished_.empty()) close_timeline();
}

void Watch::close_timeline() {
  if (!timeline_) return;
  trace_->write(timeline_->end());
  const uint64_t lost = timeline_->lost() + dropped_;
  if (lost > 0 && !trace_->broken()) {
    log(LogLevel::kWarning, "the timeline ", trace_->path(), " lacks ", lost, " entries: ",
        dropped_ > 0 ? "the disk was too slow" : "more ended than could be sent");
  }
  timeline_.reset();
  unfinished_.clear();
  const std::shared_ptr<observe::FileWriter> trace = std::exchange(trace_, nullptr);
  for (const Ended& ended : std::exchange(ends_, {})) ended(trace);
}

void Watch::want_entries(uint8_t flags) {
  for (const auto& peer : peers_) {
    if (peer->is_member()) peer->channel->send(FrameType::kTimeline, {}, flags);
  }
}

void Watch::finish() {
  if (recording_) {
    recording_->finish();
    recording_->flush();
  }
  if (!timeline_) return;
  // Everybody has left, with their last entries.
  const std::shared_ptr<observe::FileWriter> trace = trace_;
  close_timeline();
  if (!trace->finish()) {
    log(LogLevel::kWarning, "the timeline ", trace->path(),
        " may be cut: the disk has not taken it in time");
  }
}

Status Watch::report(const Peer& from, std::string_view payload) {
  HERRING_ASSIGN_OR_RETURN(auto& report, observe::decode_report(payload));
  monitor_.report(process_of(from), std::move(report), loop_.now());
  return {};
}

void Watch::gone(const Peer& peer, bool left) {
  if (left) {
    end();
    expect_failures();
  }
  monitor_.gone(process_of(peer), left);
  last_came(process_of(peer));
  if (recording_) recording_->gone(peer);
  if (!left && recording_) {
    recording_->begin(concat(monitor_.roster().name(process_of(peer)), " is lost"));
  }
}

// No flight record is begun, since nothing fails.
void Watch::spared(const Peer& peer) {
  monitor_.server_lost(peer.index, loop_.now());
  last_came(process_of(peer));
  if (recording_) recording_->gone(peer);
}

void Watch::serves(const Peer& peer) {
  const std::string& address = peer.server.host;
  monitor_.server_replaced(peer.index, peer.host_name.empty() ? address : peer.host_name, address,
                           peer.pid, loop_.now());
  if (recording_ && !place_.empty()) {
    peer.channel->send(FrameType::kRecord, place_, kFlagPlace);
  }
  if (timeline_ && ends_.empty()) peer.channel->send(FrameType::kTimeline, {}, kFlagWanted);
}

void Watch::expect_failures() {
  if (std::exchange(expects_failures_, true) || !recording_ || recording_->ever()) return;
  place_.clear();
  // Errors must not name a file that will not be there. Members read this before the reason.
  for (const auto& peer : peers_) {
    if (peer->is_member()) peer->channel->send(FrameType::kRecord, {}, kFlagPlace);
  }
}

// The first rank that leaves ends the time in which all ranks can be compared.
void Watch::end() {
  if (std::exchange(ended_, true)) return;
  hear();
  // Whoever runs a job for some seconds does not want to hear how it could be faster.
  const bool short_job = loop_.now() - began_ < kShortJob;
  for (const std::string& line : monitor_.last_lines(loop_.now())) {
    log(short_job ? LogLevel::kInfo : LogLevel::kWarning, "at the end of the job: ", line);
  }
}

void Watch::hear() {
  for (const auto& peer : peers_) {
    if (!peer->is_member() || peer->index == ~0u) continue;
    monitor_.heard(process_of(*peer), peer->channel->heard_at(),
                   peer->channel->system_heard_at());
  }
  monitor_.tick(loop_.now());
}

observe::Picture Watch::picture() {
  hear();
  return monitor_.picture(loop_.now());
}

void Watch::log_status() {
  const std::string all = observe::as_text(picture(), false);
  std::string_view text = all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    log(LogLevel::kWarning, "status (SIGUSR1): ", text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

void Watch::tick() {
  const Nanos now = loop_.now();
  hear();
  if (const uint64_t signals = status_signals(); on_signal_ && signals != signals_) {
    signals_ = signals;
    log_status();
  }
  if (now >= tell_at_) {
    tell_at_ = now + kTelling;
    const observe::RankTexts texts = monitor_.rank_texts(now);
    if (!texts.empty() || told_) broadcast(peers_, FrameType::kRankTexts, observe::encode(texts));
    told_ = !texts.empty();
  }
  if (!ended_ && deadlocked_) {
    if (const auto who = monitor_.deadlock(now)) std::exchange(deadlocked_, nullptr)(*who);
  }
  if (!ended_) {
    for (const std::string& line : monitor_.due_lines(now)) log(LogLevel::kWarning, line);
  }
  loop_.call_after(kTick, [this] { tick(); });
}

}  // namespace herring::control
