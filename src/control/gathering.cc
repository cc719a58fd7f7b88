#include "control/gathering.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/process_age.h"
#include "control/messages.h"

namespace herring::control {
namespace {

using transport::Address;
using wire::FrameType;

// After a contradiction, the other processes have this time to register too. The message then lists
// all processes, and all of them get it.
constexpr Nanos kGrace = kSecond;

}  // namespace

Gathering::Gathering(transport::EventLoop& loop, const Peers& peers,
                     const RendezvousOptions& options, const Address& address, Outcome outcome)
    : loop_(loop),
      peers_(peers),
      options_(options),
      address_(address),
      outcome_(std::move(outcome)),
      started_(loop.now()),
      deadline_(started_ + options.connect_timeout),
      reminders_(started_, first_reminder(options.warn_after), started_),
      usual_start_(usual_start(process_age(), options.warn_after)),
      roster_(options.size, options.dedicated_servers) {}

void Gathering::start() {
  arm_deadline();
  loop_.call_at(reminders_.next(), [this] { warn(); });
}

// ---- registration ----

Status Gathering::on_register(Peer& peer, std::string_view payload) {
  if (peer.kind != Peer::Kind::kUnknown) return nonsense("a second registration");
  HERRING_ASSIGN_OR_RETURN(auto& decoded, decode_registration(payload));
  peer.pid = decoded.pid;
  peer.host_name = std::move(decoded.host_name);
  auto* worker = std::get_if<WorkerRegistration>(&decoded.what);
  if (state_ == State::kFailed) {
    // A process that already knows of the failure comes for the next job.
    const bool knows = worker != nullptr ? !told_.insert(worker->rank).second
                                         : told_servers_++ >= options_.dedicated_servers;
    refuse(peer, failure_, knows || stopping_);
    return {};
  }
  if (worker != nullptr) {
    peer.worker = std::move(*worker);
    peer.index = peer.worker.rank;
    if (state_ != State::kGathering) {
      refuse(peer, {Code::kConfiguration,
                    concat("rank ", peer.index, " comes too late: this job is running, with ",
                           cluster_.describe_rank(peer.index), "; start another job with another "
                           "HERRING_RENDEZVOUS, or end the running one")},
             comes_again(peer));
      return {};
    }
    peer.kind = Peer::Kind::kWorker;
    ++registered_;
    roster_.add(peer.worker);
  } else {
    peer.server = std::move(std::get<ServerRegistration>(decoded.what));
    if (peer.server.host.empty()) peer.server.host = peer.host;
    if (options_.failover && peer.server.dedicated && state_ == State::kComplete && !stopping_) {
      outcome_.offer(peer);
      return {};
    }
    const Status status = find_place(peer.server);
    if (!status.ok()) {
      // With failover, one too many becomes a spare as soon as the job has begun.
      const bool next = peer.server.dedicated &&
                        (options_.failover || dedicated_here() < options_.dedicated_servers);
      refuse(peer, status, next);
      return {};
    }
    peer.kind = Peer::Kind::kServer;
    if (peer.server.dedicated) {
      peer.index = dedicated_++;
    } else {
      peer.index = options_.dedicated_servers + peer.server.node;
      missing_nodes_.erase(peer.server.node);
    }
  }
  log(LogLevel::kInfo, describe(peer), " joined");
  shorten_deadline(decoded.patience);
  advance();
  return {};
}

Status Gathering::find_place(const ServerRegistration& server) const {
  if (server.dedicated) {
    if (state_ == State::kGathering && dedicated_ < options_.dedicated_servers) return {};
    return {Code::kConfiguration,
            concat("this job expects ", counted(options_.dedicated_servers, "dedicated server"),
                   " (HERRING_SERVERS), which it has",
                   options_.failover ? "" : "; another one is not needed, and a job takes one in "
                                            "place of a lost one only with HERRING_FAILOVER=true")};
  }
  if (state_ == State::kStartingServers && missing_nodes_.count(server.node) != 0) return {};
  return {Code::kConfiguration,
          concat("a colocated server of node ", server.node, " is not expected here")};
}

// `again`: the process comes for the next job of the same processes, once this job has ended.
void Gathering::refuse(Peer& peer, const Status& why, bool again) {
  peer.gone = true;
  peer.channel->send(FrameType::kAbort, encode(why), again ? kFlagAgain : 0);
  // The member closes the connection when it has read this message.
  if (state_ == State::kFailed) check_told();
}

// Returns whether a worker comes for the next job. The process of a member that comes anew has
// left, even if that has not been seen here yet.
bool Gathering::comes_again(const Peer& worker) const {
  return std::none_of(peers_.begin(), peers_.end(), [&worker](const auto& peer) {
    return peer->is_member() && peer->kind == Peer::Kind::kWorker && peer->index == worker.index &&
           (peer->pid != worker.pid || peer->worker.host_id != worker.worker.host_id);
  });
}

uint32_t Gathering::dedicated_here() const {
  return static_cast<uint32_t>(std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->is_member() && peer->kind == Peer::Kind::kServer && peer->server.dedicated;
  }));
}

void Gathering::on_declined(Peer& peer, const Status& why) {
  peer.gone = true;
  if (peer.index < options_.size) told_.insert(peer.index);
  if (state_ == State::kFailed) check_told();
  if (state_ == State::kGathering) {
    const std::string text = concat("a process on ", peer.host, " cannot join: ", why.message());
    fail({why.code(), text});
  }
}

// ---- deadlines and reminders ----

// A member waits for the others only for a limited time. The message that lists who is missing must
// come before the member gives up by itself.
void Gathering::shorten_deadline(Nanos patience) {
  const Nanos margin = std::min(patience / 10, 250 * kMillisecond);
  const Nanos deadline = loop_.now() + patience - margin;
  if (deadline >= deadline_) return;
  deadline_ = deadline;
  arm_deadline();
}

void Gathering::arm_deadline() {
  loop_.cancel(deadline_timer_);
  deadline_timer_ = loop_.call_at(deadline_, [this] { on_deadline(); });
}

void Gathering::on_deadline() {
  if (!is_waiting()) return;
  fail({Code::kTimeout,
        concat("not everybody has registered at the rendezvous ", address_.to_string(),
               " within ", in_seconds(options_.connect_timeout), ": missing ",
               describe_missing(), refusals_.text(), "; look at the output of the missing "
               "processes, or raise HERRING_CONNECT_TIMEOUT")});
}

void Gathering::warn() {
  if (!is_waiting()) return;
  const Nanos now = loop_.now();
  if (reminders_.due(now)) {
    const std::string text = concat("has waited ", in_seconds(now - started_),
                                    " at the rendezvous ", address_.to_string(), " for ",
                                    describe_missing(), refusals_.text());
    if (now - started_ < usual_start_ && refusals_.text().empty()) {
      log(LogLevel::kInfo, text);
    } else {
      broadcast(peers_, FrameType::kWarning, text);
    }
  }
  loop_.call_at(reminders_.next(), [this] { warn(); });
}

std::string Gathering::describe_missing() const {
  if (state_ == State::kGathering) {
    return list_missing(workers(), options_.size, dedicated_, options_.dedicated_servers);
  }
  return concat("the colocated servers of nodes ",
                list_numbers({missing_nodes_.begin(), missing_nodes_.end()}));
}

// ---- assembling the job ----

std::vector<RegisteredWorker> Gathering::workers() const {
  std::vector<RegisteredWorker> all;
  for (const auto& peer : peers_) {
    if (peer->is_member() && peer->kind == Peer::Kind::kWorker) {
      all.push_back({peer->worker, peer->host, peer->pid});
    }
  }
  return all;
}

// Called when a process has registered.
void Gathering::advance() {
  if (state_ == State::kStartingServers) {
    if (missing_nodes_.empty()) complete();
    return;
  }
  if (!roster_.sound()) {
    const std::vector<RegisteredWorker> all = workers();
    const Status contradiction = find_contradiction(all, options_.size, options_.dedicated_servers);
    if (!contradiction.ok()) {
      if (all.size() >= options_.size) return fail(contradiction);
      if (contradiction_.ok()) wait_for_others(contradiction);
      return;
    }
  }
  if (registered_ < options_.size || dedicated_ < options_.dedicated_servers) return;
  begin_servers(workers());
}

void Gathering::wait_for_others(const Status& contradiction) {
  contradiction_ = contradiction;
  loop_.call_after(kGrace, [this] {
    if (state_ == State::kGathering) {
      fail(find_contradiction(workers(), options_.size, options_.dedicated_servers));
    }
  });
}

void Gathering::begin_servers(const std::vector<RegisteredWorker>& all) {
  auto assembled = assemble(all);
  if (!assembled.ok()) return fail(assembled.status());
  cluster_ = std::move(*assembled);
  // The incarnation keeps connections of an earlier job of the same processes, with the same
  // secret, out of this job.
  cluster_.incarnation = std::random_device()() | 1;
  number_servers();
  auto weights = choose_weights(cluster_.settings, cluster_.nodes, options_.dedicated_servers);
  if (!weights.ok()) return fail(weights.status());
  weights_ = std::move(*weights);
  state_ = State::kStartingServers;
  const auto nodes = colocated_nodes(cluster_.nodes, options_.dedicated_servers);
  missing_nodes_ = {nodes.begin(), nodes.end()};
  if (missing_nodes_.empty()) return complete();
  // The other processes have nothing to do before all servers are there.
  send_cluster(FrameType::kCluster, [this](const Peer& peer) {
    return peer.kind == Peer::Kind::kWorker && cluster_.workers[peer.index].local_rank == 0;
  });
}

void Gathering::number_servers() {
  std::vector<Peer*> found;
  std::vector<NamedServer> servers;
  for (const auto& peer : peers_) {
    const bool server = peer->is_member() && peer->kind == Peer::Kind::kServer;
    if (!server || !peer->server.dedicated) continue;
    found.push_back(peer.get());
    servers.push_back({peer->server.wanted,
                       Address{peer->server.host, peer->server.port}.to_string()});
  }
  const std::vector<uint32_t> numbers = control::number_servers(servers);
  for (size_t i = 0; i < found.size(); ++i) found[i]->index = numbers[i];
}

void Gathering::complete() {
  cluster_.servers.resize(weights_.size());
  for (const auto& peer : peers_) {
    if (!peer->is_member() || peer->kind != Peer::Kind::kServer) continue;
    cluster_.servers[peer->index] = {
        peer->index, peer->server.dedicated, peer->server.dedicated ? ~0u : peer->server.node,
        Address{peer->server.host, peer->server.port}.to_string(), weights_[peer->index]};
  }
  cluster_.epoch = kFirstEpoch;
  state_ = State::kComplete;
  loop_.cancel(deadline_timer_);
  log(LogLevel::kInfo, "the job begins: ", counted(cluster_.size, "worker"), " on ",
      counted(cluster_.nodes, "node"), ", ",
      counted(options_.dedicated_servers, "dedicated server"), "; all were here after ",
      in_seconds(loop_.now() - started_));
  outcome_.complete();
  send_cluster(FrameType::kReady, [](const Peer&) { return true; });
}

template <typename Gets>
void Gathering::send_cluster(FrameType type, Gets gets) {
  std::vector<std::vector<uint32_t>> ranks(cluster_.nodes);
  for (const WorkerInfo& worker : cluster_.workers) ranks[worker.node].push_back(worker.rank);
  const auto common = std::make_shared<const std::string>(encode_common(cluster_));
  for (const auto& peer : peers_) {
    if (!peer->is_member() || !gets(*peer)) continue;
    const std::vector<uint32_t> nobody;
    const bool worker = peer->kind == Peer::Kind::kWorker;
    const auto& near = worker ? ranks[cluster_.workers[peer->index].node] : nobody;
    const bool start = type == FrameType::kCluster;
    peer->channel->send(type, encode_own(start, peer->index, cluster_, near), common);
  }
}

// ---- failures ----

std::string Gathering::describe(const Peer& peer) const {
  const std::string who =
      peer.kind == Peer::Kind::kWorker ? concat("rank ", peer.index)
      : peer.server.dedicated          ? std::string("a dedicated server")
                                       : concat("the server of node ", peer.server.node);
  return concat(who, " (", peer.host, ", pid ", peer.pid, ")");
}

void Gathering::lose(const Peer& peer, const std::string& how) {
  if (state_ == State::kFailed) return;
  fail(contradiction_.ok() ? Status(Code::kPeerLost,
                                    concat(describe(peer), " is lost: ", how,
                                           ", before everybody had registered"))
                           : contradiction_);
}

void Gathering::leave(const Peer& peer) {
  peer.channel->send(FrameType::kGoodbye);
  lose(peer, "it left");
}

void Gathering::abort(Peer& author, const Status& why) {
  if (state_ == State::kFailed) return;
  author.gone = true;
  fail({why.code(), concat(describe(author), ": ", why.message())});
}

void Gathering::stop() {
  stopping_ = true;
  const Status over(Code::kPeerLost,
                    concat("the rendezvous ", address_.to_string(), " has ended"));
  for (const auto& peer : peers_) {
    if (peer->kind == Peer::Kind::kUnknown && !peer->gone) refuse(*peer, over, true);
  }
  if (is_waiting()) {
    fail({Code::kPeerLost, concat("the rendezvous ", address_.to_string(),
                                  " has ended before everybody had registered")});
  }
}

void Gathering::fail(const Status& why) {
  state_ = State::kFailed;
  failure_ = why;
  for (const auto& peer : peers_) {
    if (!peer->is_member()) continue;
    if (peer->kind == Peer::Kind::kWorker) told_.insert(peer->index);
    if (peer->kind == Peer::Kind::kServer && peer->server.dedicated) ++told_servers_;
    refuse(*peer, why);
  }
  check_told();
}

void Gathering::check_told() {
  if (told_.size() < options_.size || told_servers_ < options_.dedicated_servers) return;
  outcome_.told_all();
}

}  // namespace herring::control
