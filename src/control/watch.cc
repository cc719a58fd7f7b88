#include "control/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/version.h"
#include "control/messages.h"
#include "transport/address.h"

namespace herring::control {
namespace {

using wire::FrameType;

observe::Roster roster_of(const Cluster& cluster, const Peers& peers, std::string job) {
  observe::Roster roster;
  roster.job = std::move(job);
  roster.version = version();
  if (const char* const id = std::getenv("SLURM_JOB_ID")) roster.slurm_job_id = id;
  roster.nodes = cluster.nodes;
  for (const WorkerInfo& worker : cluster.workers) {
    roster.ranks.push_back({worker.host, worker.node, worker.pid});
  }
  for (const ServerInfo& server : cluster.servers) {
    const auto address = transport::parse_address(server.address, "a server's address");
    roster.servers.push_back({address.ok() ? address->host : server.address, server.dedicated,
                              server.node, 0, server.weight});
  }
  for (const auto& peer : peers) {
    if (peer->kind == Peer::Kind::kServer && peer->index < roster.servers.size()) {
      roster.servers[peer->index].pid = peer->pid;
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
      monitor_(roster_of(cluster, peers, options.job),
               {.report_every = options.report_every,
                .silent_after = std::max(kSecond, 4 * options.heartbeat_interval),
                .unix_zero = unix_zero(loop.now())},
               loop.now()),
      unix_zero_(unix_zero(loop.now())) {
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
  for (const auto& peer : peers_) {
    if (!peer->is_member()) continue;
    peer->channel->send(FrameType::kRecord, concat(host, ":", path), kFlagPlace);
  }
}

Status Watch::record(const Peer& from, bool failed, std::string_view payload) {
  auto record = observe::decode_process_record(payload);
  if (!record.ok()) return record.status();
  if (!recording_) return {};
  if (failed) {
    recording_->begin(concat(monitor_.roster().name(process_of(from)), ": ", record->failure));
  }
  recording_->add(from, std::move(*record));
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

Status Watch::timeline(const Peer& from, std::string_view payload) {
  auto entries = observe::decode_process_record(payload);
  if (!entries.ok()) return entries.status();
  if (timeline_ && !trace_->write(timeline_->add(process_of(from), *entries))) ++dropped_;
  return {};
}

Status Watch::begin_timeline(const std::string& path) {
  if (timeline_) {
    return {Code::kInvalidArgument, concat("a timeline is being written to ", trace_->path(),
                                           "; end it first")};
  }
  HERRING_RETURN_IF_ERROR(observe::FileWriter::open(path, [](const Status& why) {
    log(LogLevel::kWarning, "the timeline ends, and the job goes on: ", why.message());
  }).move_to(trace_));
  timeline_ = std::make_unique<observe::Timeline>(monitor_.roster(), loop_.now());
  dropped_ = 0;
  trace_->write(timeline_->begin());
  want_entries(kFlagWanted);
  return {};
}

void Watch::end_timeline() {
  if (!timeline_) return;
  want_entries(0);
  trace_->write(observe::Timeline::end());
  if (dropped_ > 0) {
    log(LogLevel::kWarning, "the timeline ", trace_->path(), " lacks ",
        counted(dropped_, "message"), " of entries, because the disk was too slow");
  }
  timeline_.reset();
  trace_->flush();
  trace_.reset();
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
  end_timeline();
}

Status Watch::report(const Peer& from, std::string_view payload) {
  auto report = observe::decode_report(payload);
  if (!report.ok()) return report.status();
  monitor_.report(process_of(from), std::move(*report), loop_.now());
  return {};
}

void Watch::gone(const Peer& peer, bool left) {
  if (left) end();
  monitor_.gone(process_of(peer), left);
  if (!left && recording_) {
    recording_->begin(concat(monitor_.roster().name(process_of(peer)), " is lost"));
  }
}

// The first rank that leaves ends the time in which all ranks can be compared.
void Watch::end() {
  if (std::exchange(ended_, true)) return;
  hear();
  for (const std::string& line : monitor_.last_lines(loop_.now())) {
    log(LogLevel::kWarning, "at the end of the job: ", line);
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

void Watch::tick() {
  const Nanos now = loop_.now();
  hear();
  if (now >= tell_at_) {
    tell_at_ = now + kTelling;
    const observe::RankTexts texts = monitor_.rank_texts(now);
    if (!texts.empty() || told_) broadcast(peers_, FrameType::kRankTexts, observe::encode(texts));
    told_ = !texts.empty();
  }
  if (!ended_) {
    for (const std::string& line : monitor_.due_lines(now)) log(LogLevel::kWarning, line);
  }
  loop_.call_after(kTick, [this] { tick(); });
}

}  // namespace herring::control
