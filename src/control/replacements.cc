#include "control/replacements.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/lists.h"

namespace herring::control {

using transport::Address;
using wire::FrameType;

Replacements::Replacements(transport::EventLoop& loop, const Peers& peers, const Cluster& cluster,
                           Nanos patience, Job job)
    : loop_(loop), peers_(peers), cluster_(cluster), patience_(patience), job_(std::move(job)) {}

void Replacements::offer(Peer& peer) {
  peer.kind = Peer::Kind::kSpare;
  fill();
  if (peer.kind != Peer::Kind::kSpare) return;
  log(LogLevel::kInfo, "a server (", peer.host, ", pid ", peer.pid, ") waits as a spare");
  peer.channel->send(FrameType::kServerNews, encode(Replacement{}));
}

// A spare takes the number that it asks for if that is free. The others take their turns in the
// order in which they have come.
void Replacements::fill() {
  for (const bool wanted : {true, false}) {
    for (const ServerInfo& server : cluster_.servers) {
      const bool free = !coming_.contains(server.index) && job_.is_free(server.index);
      if (!server.dedicated || !free) continue;
      const auto spare = std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) {
        return peer->kind == Peer::Kind::kSpare && !peer->gone && !peer->channel->closed() &&
               (!wanted || peer->server.wanted == server.index);
      });
      if (spare != peers_.end()) begin(server.index, **spare);
    }
  }
}

void Replacements::begin(uint32_t server, Peer& peer) {
  peer.index = server;
  const std::string address = Address{peer.server.host, peer.server.port}.to_string();
  Coming coming{&peer, {Replacement::Stage::kComing, server, ++count_, address, 0, {}}, {kItself},
                0};
  for (const auto& one : peers_) {
    if (one->is_member() && one->kind == Peer::Kind::kWorker) coming.awaited.insert(one->index);
  }
  coming.timer = loop_.call_after(patience_, [this, server, number = count_] {
    const auto found = coming_.find(server);
    if (found == coming_.end() || found->second.news.number != number) return;
    std::vector<uint32_t> ranks(found->second.awaited.begin(), found->second.awaited.end());
    std::erase(ranks, kItself);
    drop(server, concat(ranks.empty() ? std::string("it was not ready")
                                      : concat(list_ranks(ranks), " did not connect to it"),
                        " within ", in_seconds(patience_), " (HERRING_CONNECT_TIMEOUT)"),
         true);
  });
  log(LogLevel::kInfo, "a server at ", address, " (pid ", peer.pid, ") comes as server ", server);
  job_.describe(peer);
  peer.kind = Peer::Kind::kServer;  // from now on it hears what all members hear
  tell_workers(coming.news);
  coming_.emplace(server, std::move(coming));
}

void Replacements::tell_workers(const Replacement& news) {
  for (const auto& peer : peers_) {
    if (peer->is_member() && peer->kind == Peer::Kind::kWorker) {
      peer->channel->send(FrameType::kServerNews, encode(news));
    }
  }
}

bool Replacements::comes(const Peer& peer) const {
  return std::any_of(coming_.begin(), coming_.end(),
                     [&peer](const auto& one) { return one.second.peer == &peer; });
}

bool Replacements::report(const Peer& from, const ServerReport& report) {
  const auto found = coming_.find(report.server);
  if (found == coming_.end()) return false;
  Coming& coming = found->second;
  const bool itself = coming.peer == &from;
  if (!itself && (from.kind != Peer::Kind::kWorker || coming.news.number != report.number)) {
    return false;
  }
  if (!report.reachable) {
    drop(report.server, concat(cluster_.describe_rank(from.index), ": ", report.text), true);
  } else {
    coming.awaited.erase(itself ? kItself : from.index);
    advance(report.server);
  }
  return true;
}

void Replacements::worker_gone(uint32_t rank) {
  std::vector<uint32_t> servers;
  for (auto& [server, coming] : coming_) {
    if (coming.awaited.erase(rank) > 0) servers.push_back(server);
  }
  for (const uint32_t server : servers) advance(server);
}

void Replacements::advance(uint32_t server) {
  const auto found = coming_.find(server);
  if (!found->second.awaited.empty()) return;
  Coming coming = std::move(found->second);
  coming_.erase(found);
  loop_.cancel(coming.timer);
  coming.news.stage = Replacement::Stage::kServes;
  job_.serves(*coming.peer, coming.news);
}

void Replacements::lose(const Peer& peer, const std::string& how) {
  const auto found = std::find_if(coming_.begin(), coming_.end(), [&peer](const auto& one) {
    return one.second.peer == &peer;
  });
  if (found != coming_.end()) drop(found->first, how, false);
}

void Replacements::drop(uint32_t server, const std::string& why, bool lives) {
  Coming coming = std::move(coming_.extract(server).mapped());
  loop_.cancel(coming.timer);
  const std::string text =
      concat("the server at ", coming.news.address, " cannot replace server ", server, ": ", why);
  log(LogLevel::kWarning, text, "; the job goes on without it");
  coming.news.stage = Replacement::Stage::kDropped;
  tell_workers(coming.news);
  if (lives) job_.refuse(*coming.peer, {Code::kPeerLost, text});
  fill();
}

void Replacements::end() {
  for (const auto& [server, coming] : coming_) loop_.cancel(coming.timer);
  coming_.clear();
  for (const auto& peer : peers_) {
    if (peer->kind != Peer::Kind::kSpare || peer->gone) continue;
    peer->gone = true;
    peer->channel->send(FrameType::kGoodbye, {}, kFlagEnd);
  }
}

}  // namespace herring::control
