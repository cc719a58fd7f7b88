#include "control/watch.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "control/messages.h"
#include "transport/address.h"

namespace herring::control {
namespace {

using wire::FrameType;

observe::Process process_of(const Peer& peer) {
  return {peer.kind == Peer::Kind::kServer, peer.index};
}

observe::Roster roster_of(const Cluster& cluster, const Peers& peers, std::string job) {
  observe::Roster roster;
  roster.job = std::move(job);
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

observe::Monitor::Options monitor_options(const Watch::Options& options, Nanos now) {
  observe::Monitor::Options result;
  result.report_every = options.report_every;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  result.unix_zero = std::chrono::duration<double>(since_1970).count() - to_seconds(now);
  return result;
}

}  // namespace

Watch::Watch(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster,
             Options options)
    : loop_(loop),
      peers_(peers),
      monitor_(roster_of(cluster, peers, std::move(options.job)),
               monitor_options(options, loop.now()), loop.now()) {
  loop_.call_after(kTick, [this] { tick(); });
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
