#include "control/running_job.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/assembly.h"
#include "control/messages.h"

namespace herring::control {
namespace {

using wire::FrameType;

// A worker's connection to a dead server may end before the server's own connection, which says
// better why.
constexpr Nanos kBetterReason = 50 * kMillisecond;
// Ranks that wait for the same one miss their deadlines at about the same time, and each says best
// what it waited for. So the end of one's part is told to the others a little later.
constexpr Nanos kOwnDeadlines = kSecond;

}  // namespace

RunningJob::RunningJob(transport::EventLoop& loop, const Peers& peers, Cluster& cluster,
                       Options options, Rendezvous rendezvous)
    : loop_(loop),
      peers_(peers),
      cluster_(cluster),
      options_(options),
      rendezvous_(std::move(rendezvous)),
      workers_(cluster.size),
      set_{cluster.epoch, std::vector<bool>(cluster.servers.size(), true)},
      numbers_(cluster.servers.size()),
      losses_(loop, [this](std::vector<Loss> losses) { tell(std::move(losses)); }),
      replacements_(loop, peers, cluster, options.connect_timeout,
                    {[this](uint32_t server) { return !set_.has(server); },
                     [this](Peer& newcomer) { describe_to(newcomer); },
                     [this](const Peer& newcomer, const Replacement& news) {
                       begin_to_serve(newcomer, news);
                     },
                     [](Peer& peer, const Status& why) {
                       peer.gone = true;
                       peer.channel->send(FrameType::kAbort, encode(why));
                     }}) {}

void RunningJob::tell(std::vector<Loss> losses) {
  set_.epoch += static_cast<uint32_t>(losses.size());
  broadcast(peers_, FrameType::kPeerLost, encode(LossNotice{set_.epoch, std::move(losses)}));
}

std::string RunningJob::describe(const Peer& peer) const {
  return peer.kind == Peer::Kind::kWorker ? cluster_.describe_rank(peer.index)
                                          : cluster_.describe_server(peer.index);
}

bool RunningJob::serves(const Peer& peer) const {
  return peer.kind == Peer::Kind::kServer && set_.has(peer.index) && !comes(peer);
}

bool RunningJob::can_spare(const Peer& peer) const {
  const bool dedicated = peer.kind == Peer::Kind::kServer && peer.server.dedicated;
  if (!options_.failover || !dedicated) return false;
  if (comes(peer)) return true;
  return !ended_ && serves(peer) && std::count(set_.serving.begin(), set_.serving.end(), true) > 1;
}

std::string RunningJob::stand_ins() const {
  std::vector<uint32_t> servers;
  for (uint32_t i = 0; i < set_.serving.size(); ++i) {
    if (set_.serving[i]) servers.push_back(i);
  }
  return concat(servers.size() == 1 ? "server " : "servers ", list_numbers(servers),
                servers.size() == 1 ? " stands" : " stand", " in for it");
}

void RunningJob::add(const Peer& peer, Loss loss) {
  if (loss.is_server) {
    set_.serving[loss.index] = false;
  } else {
    workers_gone_.push_back({false, loss.left, loss.index, {}, 0, {}});
  }
  losses_.add(std::move(loss), peers_.size());
  note_end(peer);
  if (ended_) return;
  if (peer.kind == Peer::Kind::kWorker) replacements_.worker_gone(peer.index);
  if (peer.kind == Peer::Kind::kServer && !fails_) replacements_.fill();
}

std::string RunningJob::part_ended(const Peer& peer) const {
  const auto found = parts_ended_.find(peer.index);
  const bool ended = peer.kind == Peer::Kind::kWorker && found != parts_ended_.end();
  return ended ? concat("its part of the job has ended: ", found->second) : "";
}

void RunningJob::lose(const Peer& peer, const std::string& how) {
  if (comes(peer)) return replacements_.lose(peer, how);
  const bool spared = can_spare(peer);
  fails_ |= !spared;
  const std::string part = part_ended(peer);
  const std::string end = part.empty() ? how : concat(part, "; ", how);
  Loss loss{peer.kind == Peer::Kind::kServer, false, peer.index,
            concat(describe(peer), " is lost: ", end), 0, {}};
  if (spared) {
    set_.serving[peer.index] = false;
    loss.serving = set_.serving;
    log(LogLevel::kWarning, loss.text, "; ", stand_ins());
  } else {
    log(LogLevel::kInfo, loss.text);
  }
  add(peer, std::move(loss));
}

void RunningJob::leave(const Peer& peer) {
  peer.channel->send(FrameType::kGoodbye);
  if (comes(peer)) return replacements_.lose(peer, "it has left the job");
  const bool early = !part_ended(peer).empty();
  if (early || (!fails_ && can_spare(peer))) return lose(peer, "it has left the job");
  log(LogLevel::kInfo, describe(peer), " left the job");
  add(peer, {peer.kind == Peer::Kind::kServer, true, peer.index, {}, 0, {}});
}

void RunningJob::abort(Peer& author, const Status& why) {
  if (can_spare(author)) {
    return rendezvous_.give_up(author, why, concat("it cannot go on: ", why.message()));
  }
  fails_ = true;
  const std::string text = concat(describe(author), ": ", why.message());
  log(LogLevel::kInfo, "the job is aborted by ", text);
  broadcast(peers_, FrameType::kAbort, encode(Status(why.code(), text)), &author);
}

void RunningJob::end_part(const Peer& worker, const Status& why) {
  if (!parts_ended_.emplace(worker.index, why.message()).second) return;
  log(LogLevel::kInfo, describe(worker), ": ", part_ended(worker));
  loop_.call_after(kOwnDeadlines, [this, rank = worker.index, why] {
    if (fails_ || ended_) return;
    for (const auto& peer : peers_) {
      const bool stays = peer->is_member() && peer->kind == Peer::Kind::kWorker;
      if (!stays || peer->index != rank) continue;
      return rendezvous_.give_up(*peer, why, "its process is still there");
    }
  });
}

void RunningJob::deadlocked(const std::string& who) {
  if (ended_ || fails_) return;
  fails_ = true;
  const std::string text = concat(kDeadlock, who);
  log(LogLevel::kInfo, "the job ends: ", text);
  broadcast(peers_, FrameType::kAbort, encode(Status(Code::kTimeout, text)));
}

void RunningJob::offer(Peer& peer) {
  if (!ended_ && !fails_) return replacements_.offer(peer);
  // It waits for the next job of the same processes. Servers of a job that fails come back at once.
  peer.gone = true;
  peer.channel->send(FrameType::kAbort, encode(Status(Code::kPeerLost, "the job is about to end")),
                     kFlagAgain);
}

Status RunningJob::on_server_report(const Peer& from, std::string_view payload) {
  HERRING_ASSIGN_OR_RETURN(auto& report, decode_server_report(payload));
  if (report.server >= cluster_.servers.size()) return nonsense("a report about no server");
  if (replacements_.report(from, report)) return {};
  // What comes late may be about an earlier server.
  const auto current = [this, server = report.server, number = report.number]() -> Peer* {
    if (!set_.has(server) || numbers_[server] != number) return nullptr;
    for (const auto& peer : peers_) {
      if (peer->is_member() && peer->index == server && can_spare(*peer)) return peer.get();
    }
    return nullptr;
  };
  if (report.reachable || from.kind != Peer::Kind::kWorker || current() == nullptr) return {};
  const std::string how =
      concat(cluster_.describe_rank(from.index), " cannot reach it: ", report.text);
  loop_.call_after(kBetterReason, [this, current, how] {
    Peer* const peer = current();
    if (peer == nullptr) return;
    rendezvous_.give_up(*peer, {Code::kPeerLost, concat(kGivenUp, how)}, how);
  });
  return {};
}

void RunningJob::describe_to(Peer& newcomer) {
  losses_.flush();  // so that the epoch counts all that are gone
  Cluster cluster = cluster_;
  cluster.epoch = set_.epoch;
  cluster.servers[newcomer.index].address =
      transport::Address{newcomer.server.host, newcomer.server.port}.to_string();
  std::vector<Loss> gone = workers_gone_;
  for (uint32_t i = 0; i < set_.serving.size(); ++i) {
    if (!set_.serving[i]) gone.push_back({true, false, i, {}, 0, {}});
  }
  newcomer.channel->send(FrameType::kReady, encode_own(false, newcomer.index, cluster, {}, gone) +
                                                encode_common(cluster));
}

void RunningJob::begin_to_serve(const Peer& newcomer, const Replacement& news) {
  losses_.flush();
  log(LogLevel::kWarning, "server ", news.server, " (", cluster_.servers[news.server].address,
      ") is replaced by the server at ", news.address, " (pid ", newcomer.pid, ")");
  cluster_.servers[news.server].address = news.address;
  numbers_[news.server] = news.number;
  set_.serving[news.server] = true;
  ++set_.epoch;
  Replacement told = news;
  told.epoch = set_.epoch;
  told.serving = set_.serving;
  broadcast(peers_, FrameType::kServerNews, encode(told));
  rendezvous_.serves(newcomer);
}

// Servers end when no worker is left.
void RunningJob::note_end(const Peer& gone) {
  if (gone.kind == Peer::Kind::kWorker) --workers_;
  if (ended_ || workers_ > 0) return;
  ended_ = true;
  losses_.flush();
  replacements_.end();
  for (const auto& peer : peers_) {
    if (peer->is_member() && peer->kind == Peer::Kind::kServer) {
      peer->channel->send(FrameType::kGoodbye, {}, kFlagEnd);
    }
  }
}

}  // namespace herring::control
