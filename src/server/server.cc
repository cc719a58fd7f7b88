#include "server/server.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace herring::server {
namespace {

constexpr Nanos kWatchInterval = 50 * kMillisecond;
constexpr Nanos kStoodStill = 500 * kMillisecond;
constexpr Nanos kMostPatience = kSecond;
// A server that ends waits until the workers have received what it sent. These are the limits in
// all and without any progress.
constexpr Nanos kLongestFarewell = 60 * kSecond, kStandstill = 500 * kMillisecond;

}  // namespace

Result<std::unique_ptr<Server>> Server::start(ServerOptions options,
                                              transport::Transport& transport) {
  std::unique_ptr<Server> server(new Server(transport));
  server->proxies_.push_back(std::make_unique<Proxy>(0, transport));
  Proxy& first = *server->proxies_[0];
  first.loop().on_exhausted([self = server.get()](const Status& why) {
    if (self->attached_) return self->changes_->end_job(why);
    log(LogLevel::kError, "a server waiting for its job: ", why.message());
    self->early_failure_ = why;
  });
  auto listener = transport.listen(
      first.loop(), {options.host, options.port}, std::move(options.credentials),
      [self = server.get()](const wire::Hello& hello) { return self->expects(hello); },
      [self = server.get()](std::unique_ptr<transport::Connection> connection,
                            const wire::Hello& hello, const transport::Address& from) {
        self->waiting_.push_back({std::move(connection), hello, from});
        self->admit_waiting();
      });
  if (!listener.ok()) return listener.status();
  server->listener_ = std::move(*listener);
  server->address_ = server->listener_->address();
  first.start();
  return server;
}

Server::~Server() { stop(); }

void Server::attach(const control::Cluster& cluster, uint32_t index,
                    const DataPlaneOptions& options) {
  cluster_ = cluster;
  index_ = index;
  recorder_ =
      std::make_unique<observe::Recorder>(options.observe ? observe::Recorder::kEntries : 0);
  groups_ = std::make_unique<GroupTable>(cluster_, options.credit_segments(options.credit));
  credit_max_ = options.credit_segments(std::max(options.credit, options.credit_max));
  max_frame_segments_ = static_cast<uint32_t>(
      std::clamp<size_t>(options.frame_max / options.segment_bytes, 1,
                         transport::Destinations::kMaxPieces));
  flows_ = options.flows;
  // A payload is accompanied by a name, shapes and, for alltoall and groups, a number per rank.
  max_announce_payload_ = options.small_bytes + 8 * kNumDTypes * size_t{cluster.size} + 65536;
  // An operation stays while any rank has segments of it on the way, and each stream may have one
  // more.
  const size_t most_open = kMostStreams + size_t{cluster_.size} * flows_ * credit_max_;
  aggregator_ = std::make_unique<Aggregator>(cluster_, *groups_, options.segment_bytes, most_open,
                                             [this](Slot& slot, std::span<const uint32_t> to) {
                                               deliver(slot, to);
                                             },
                                             [loop = &proxies_[0]->loop()] { return loop->now(); },
                                             *recorder_);
  const uint32_t proxies = std::clamp<uint32_t>(options.proxies, 1, std::max(1u, cluster_.nodes));
  while (proxies_.size() < proxies) {
    proxies_.push_back(
        std::make_unique<Proxy>(static_cast<uint32_t>(proxies_.size()), transport_));
    proxies_.back()->loop().on_exhausted([this](const Status& why) {
      changes_->end_job(why);
    });
  }
  changes_ = std::make_unique<Changes>(cluster_, *groups_, *aggregator_, index, states_,
                                       proxies_[0]->loop(), proxies_.size() > 1);
  for (auto& proxy : proxies_) {
    proxy->outbox_.resize(proxies_.size());
    proxy->outbox_task_ = [this, p = proxy.get()] {
      p->outbox_scheduled_ = false;
      for (size_t i = 0; i < p->outbox_.size(); ++i) {
        if (p->outbox_[i].empty()) continue;
        proxies_[i]->loop().post([items = std::move(p->outbox_[i])] {
          for (const Proxy::Handover& item : items) {
            item.peer->queue_result(*item.slot, item.with_payload);
          }
        });
        p->outbox_[i].clear();
      }
    };
    if (proxy->index() == 0) continue;
    proxy->loop().post([this, p = proxy.get()] { watch(*p); });
    proxy->start();
  }
  proxies_[0]->loop().post([this] {
    attached_ = true;
    // What was lost then may be a connection, whose rank nobody else would miss.
    if (!early_failure_.ok()) changes_->end_job(early_failure_);
    admit_waiting();
    watch(*proxies_[0]);
  });
}

Proxy& Server::current() {
  size_t i = proxies_.size() - 1;
  while (i > 0 && !proxies_[i]->loop().in_loop_thread()) --i;
  return *proxies_[i];
}

Proxy& Server::proxy_of(uint32_t rank) {
  const uint64_t node = cluster_.workers[rank].node;
  return *proxies_[node * proxies_.size() / cluster_.nodes];
}

// Before attach(), the server does not know its own incarnation. But who connects to a server knows
// one; who does not looks for a rendezvous that listened here before.
wire::Verdict Server::expects(const wire::Hello& hello) const {
  if (hello.incarnation == 0 || (attached_ && hello.incarnation != cluster_.incarnation)) {
    return wire::Verdict::kOtherStart;
  }
  if (hello.role != wire::Role::kWorker ||
      (attached_ && (hello.rank >= cluster_.size || hello.flow >= flows_))) {
    return wire::Verdict::kUnexpected;
  }
  return wire::Verdict::kAccepted;
}

void Server::admit_waiting() {
  if (!attached_) return;
  for (Waiting& one : std::exchange(waiting_, {})) {
    if (one.hello.rank >= cluster_.size || one.hello.incarnation != cluster_.incarnation ||
        one.hello.flow >= flows_) {
      log(LogLevel::kWarning, "dropped a connection from ", one.from.to_string(), ": flow ",
          one.hello.flow, " of rank ", one.hello.rank, " of incarnation ", one.hello.incarnation,
          " is not part of this job");
      continue;
    }
    accept(std::move(one.connection), one.hello);
  }
}

void Server::accept(std::unique_ptr<transport::Connection> connection, const wire::Hello& hello) {
  // std::function needs copyable captures.
  const std::shared_ptr<transport::Connection> shared = std::move(connection);
  connect(hello.rank, hello.flow,
          [shared](transport::EventLoop& loop, transport::FlowHandler& handler) {
            return shared->open(loop, handler, transport::Traffic::kCredit);
          });
}

void Server::connect(uint32_t rank, uint32_t flow, MakeFlow make) {
  Proxy& proxy = proxy_of(rank);
  proxy.loop().post([this, &proxy, rank, flow, make = std::move(make)] {
    const bool known = std::any_of(proxy.peers_.begin(), proxy.peers_.end(),
                                   [&](const std::unique_ptr<Peer>& peer) {
                                     return peer->rank() == rank && peer->number() == flow;
                                   });
    if (known) {
      return log(LogLevel::kWarning, "dropped a connection: flow ", flow, " of rank ", rank,
                 " is already connected");
    }
    auto peer = std::make_unique<Peer>(*this, proxy, rank, flow);
    peer->start(make(proxy.loop(), *peer));
    proxy.peers_.push_back(std::move(peer));
    const auto flows = std::count_if(proxy.peers_.begin(), proxy.peers_.end(),
                                     [rank](const auto& one) { return one->rank() == rank; });
    changes_->connected(*proxy.peers_.back(), static_cast<uint32_t>(flows) == flows_);
  });
}

Status Server::open(const Key& key, wire::Open open, uint32_t rank) {
  Status status = aggregator_->open(key, std::move(open), rank);
  if (status.code() != Code::kMismatch) return status;
  changes_->end_job(status, rank);  // a planned operation differs, so the job cannot go on
  return {};
}

void Server::deliver(Slot& slot, std::span<const uint32_t> contributors) {
  Proxy& here = current();
  const auto deliver_to = [&](const Contribution& contribution) {
    if (contribution.state == Contribution::kLost) return;
    Peer& peer = *contribution.from;
    if (&peer.proxy() == &here) {
      return peer.queue_result(slot, contribution.wants_result);
    }
    here.outbox_[peer.proxy().index()].push_back({&peer, &slot, contribution.wants_result});
    if (!std::exchange(here.outbox_scheduled_, true)) {
      here.loop().at_iteration_end(&here.outbox_task_);
    }
  };
  if (contributors.empty()) {
    for (const Contribution& contribution : slot.contributions) deliver_to(contribution);
  } else {
    for (const uint32_t c : contributors) deliver_to(slot.contributions[c]);
  }
}

void Server::serve(const control::ServerSet& set) {
  proxies_[0]->loop().post([this, set] {
    if (attached_) aggregator_->serve(set, size_t{flows_} * credit_max_);
  });
}

void Server::hears_nothing(Nanos patience) {
  await_until_.store(proxies_[0]->loop().now() + patience);
}

void Server::set_credit(JobGroup& group, uint16_t segments) {
  group.credit.store(std::clamp<uint16_t>(segments, 1, credit_max_), std::memory_order_relaxed);
}

// Every proxy reports the losses on its flows, and what view() tells of them. The first also checks
// for overdue operations.
void Server::watch(Proxy& proxy) {
  std::vector<Proxy::Seen> seen;
  seen.reserve(proxy.peers_.size());
  for (const auto& peer : proxy.peers_) {
    const transport::PathInfo path = peer->path_info();
    if (const uint32_t losses = peer->poll_losses(path)) add_signals(losses);
    const uint64_t needed = path.retransmits - std::min(path.spurious, path.retransmits);
    seen.push_back({peer->counters().bytes_received, peer->counters().bytes_sent,
                    {peer->rank(), path.rtt, path.rtt, needed}, peer->undelivered(path)});
  }
  {
    std::lock_guard lock(proxy.seen_mutex_);
    proxy.seen_.swap(seen);
    proxy.seen_at_ = proxy.loop().now();
  }
  if (proxy.index() == 0) {
    if (const Nanos until = await_until_.load(); until != 0) {
      const bool late = proxy.loop().now() > until;
      for (const uint32_t rank : changes_->disconnected_ranks(late)) rank_left(rank);
    }
    check_overdue();
  }
  proxy.loop().call_after(kWatchInterval, [this, &proxy] { watch(proxy); });
}

// A server whose process stood still first reads what has come meanwhile. Otherwise it would accuse
// ranks that have long sent everything.
void Server::check_overdue() {
  const Nanos now = proxies_[0]->loop().now();
  const Nanos gap = now - std::exchange(watched_, now);
  if (gap > kStoodStill) patient_until_ = now + std::min(gap, kMostPatience);
  if (now >= patient_until_) changes_->check_overdue(unheard());
}

void Server::job_failed(const std::string& why) {
  proxies_[0]->loop().post([this, why] {
    if (failure_.empty()) failure_ = why;
  });
}

void Server::rank_left(uint32_t rank) {
  proxies_[0]->loop().post([this, rank] {
    if (!attached_ || groups_->is_gone(rank)) return;
    changes_->rank_gone(
        rank, failure_.empty() ? kLeftJob : concat(kLeftJob, ", which failed: ", failure_));
    if (changes_->any_series()) end_flows(rank, true);
  });
}

// A server in a worker's process dies with it. The worker's own end may be told only when other
// workers have heard, failed and left.
void Server::lost(const control::Loss& loss) {
  if (!loss.serving.empty()) {
    serve({loss.epoch, loss.serving, {}});
  } else if (loss.is_server) {
    proxies_[0]->loop().post([this, server = loss.index] {
      if (attached_) changes_->server_gone(server);
    });
  }
  const auto rank = loss.is_server ? cluster_.rank_with(cluster_.servers[loss.index])
                                   : std::optional(loss.index);
  if (loss.left) {
    if (!loss.is_server) rank_left(*rank);
  } else if (rank) {
    const std::string who = concat(cluster_.describe_rank(*rank), " ");
    rank_lost(*rank, loss.text.starts_with(who) ? loss.text.substr(who.size()) : "is gone");
  }
}

void Server::rank_lost(uint32_t rank, const std::string& how) {
  proxies_[0]->loop().post([this, rank, how] {
    if (!attached_ || groups_->is_gone(rank)) return;
    // Reported at once: ranks that still wait must see this rank's end before others leave because
    // of it.
    changes_->rank_gone(rank, how);
    end_flows(rank, false);
  });
}

// Ends the rank's flows first, so that no more data is read into lanes. Then treats the data as
// missing.
void Server::end_flows(uint32_t rank, bool left) {
  proxy_of(rank).loop().post([this, rank, left, &proxy = proxy_of(rank)] {
    for (const auto& peer : proxy.peers_) {
      if (peer->rank() == rank) peer->drop();
    }
    aggregator_->rank_gone(rank, left);
    changes_->data_missing(rank);
  });
}

// Runs on the peer's thread, never inside a change.
void Server::peer_closed(Peer& peer, const Status& why) {
  // Membership decides whether this is a death or a normal end; here it only ends the flow.
  log(LogLevel::kDebug, "server ", index_, ": flow of rank ", peer.rank(), " ended: ",
      why.message());
  changes_->disconnected(peer);
  if (why.is_fault()) {
    log(LogLevel::kError, "server ", index_, " dropped rank ", peer.rank(), ": ", why.message());
  }
}

bool Server::idle() {
  bool idle = !changes_ || changes_->idle();
  for (auto& proxy : proxies_) {
    idle &= proxy->loop().ask([&] {
      return std::all_of(proxy->peers_.begin(), proxy->peers_.end(),
                         [](const auto& peer) { return peer->quiet(); });
    }).value_or(true);
  }
  return idle && (!aggregator_ || aggregator_->idle());
}

uint64_t Server::traffic() {
  uint64_t bytes = 0;
  for (auto& proxy : proxies_) {
    bytes += proxy->loop().ask([&] {
      uint64_t sum = 0;
      for (const auto& peer : proxy->peers_) {
        sum += peer->counters().bytes_sent + peer->counters().bytes_received;
      }
      return sum;
    }).value_or(0);
  }
  return bytes;
}

void Server::stop() {
  static_cast<void>(without_exceptions([this] {
    say_farewell();
    return Status();
  }));
  for (auto& proxy : proxies_) proxy->join();
  listener_.reset();  // must go before the loop that it uses
  for (auto& proxy : proxies_) proxy->peers_.clear();
}

// Lets the workers receive what was sent. Data that a worker has not read would be lost with a
// connection that is closed with unread input, or that receives more input afterwards.
void Server::say_farewell() {
  if (changes_) changes_->end();
  for (auto& proxy : proxies_) {
    proxy->loop().post([p = proxy.get()] {
      for (const auto& peer : p->peers_) peer->finish();
    });
  }
  for (auto& proxy : proxies_) {
    transport::await_delivery(proxy->loop(), [p = proxy.get()] {
      size_t left = 0;
      for (const auto& peer : p->peers_) left += peer->undelivered();
      return left;
    }, kStandstill, kLongestFarewell);
    proxy->loop().post([p = proxy.get()] {
      for (const auto& peer : p->peers_) {
        if (peer->undelivered() > 0) peer->abandon();
      }
    });
  }
}

}  // namespace herring::server
