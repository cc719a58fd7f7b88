#include "server/server.h"

#include <algorithm>
#include <future>

#include "base/log.h"
#include "transport/tcp/flow.h"

namespace herring::server {
namespace {

constexpr Nanos kWatchInterval = 50 * kMillisecond;
constexpr Nanos kMoment = kMillisecond;
thread_local Proxy* t_proxy = nullptr;  // whose thread this is

}  // namespace

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  auto listener = transport::tcp::listen_on({options.host, options.port}, 1024);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Server> server(new Server);
  server->proxies_.push_back(std::make_unique<Proxy>(0));
  Proxy& first = *server->proxies_[0];
  server->acceptor_ = std::make_unique<transport::tcp::Acceptor>(
      first.loop(), std::move(*listener), std::move(options.credentials),
      [](const wire::Hello& hello) {
        return hello.role == wire::Role::kWorker ? wire::Verdict::kAccepted
                                                 : wire::Verdict::kUnexpected;
      },
      [self = server.get()](GuardedFd fd, const wire::Hello& hello,
                            const transport::tcp::Address& from) {
        self->waiting_.push_back({std::move(fd), hello, from});
        self->admit_waiting();
      });
  server->address_ = server->acceptor_->address();
  first.loop().post([&first] { t_proxy = &first; });
  first.start();
  return server;
}

Server::~Server() { stop(); }

void Server::attach(const control::Cluster& cluster, uint32_t index,
                    const DataPlaneOptions& options) {
  cluster_ = cluster;
  index_ = index;
  credit_ = options.credit_segments(options.credit);
  credit_max_ = options.credit_segments(std::max(options.credit, options.credit_max));
  max_frame_segments_ = static_cast<uint32_t>(
      std::clamp<size_t>(options.frame_max / options.segment_bytes, 1,
                         transport::Destinations::kMaxPieces));
  max_outstanding_segments_ = 2 * credit_max_;
  // Beside the payload: name, shape and, for alltoall, a split per rank.
  max_announce_payload_ = options.small_bytes + 16 * size_t{cluster.size} + 65536;
  first_peer_.assign(cluster_.size, nullptr);
  waits_.resize(cluster_.size);
  aggregator_ = std::make_unique<Aggregator>(cluster_, options.segment_bytes,
                                             [this](Slot& slot) { deliver(slot); });
  coordinator_ = std::make_unique<Coordinator>(cluster_, index);
  series_ = std::make_unique<SeriesTable>(cluster_, index);
  const uint32_t proxies = std::clamp<uint32_t>(options.proxies, 1, std::max(1u, cluster_.nodes));
  while (proxies_.size() < proxies) {
    proxies_.push_back(std::make_unique<Proxy>(static_cast<uint32_t>(proxies_.size())));
  }
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
    proxy->loop().post([this, p = proxy.get()] {
      t_proxy = p;
      watch(*p);
    });
    if (proxy->index() != 0) proxy->start();
  }
  proxies_[0]->loop().post([this] {
    attached_ = true;
    admit_waiting();
  });
}

Proxy& Server::proxy_of(uint32_t rank) {
  const uint64_t node = cluster_.workers[rank].node;
  return *proxies_[node * proxies_.size() / cluster_.nodes];
}

void Server::admit_waiting() {
  if (!attached_) return;
  for (Waiting& one : std::exchange(waiting_, {})) {
    if (one.hello.rank >= cluster_.size || one.hello.epoch != cluster_.epoch) {
      log(LogLevel::kWarning, "dropped a connection from ", one.from.to_string(), ": rank ",
          one.hello.rank, " of epoch ", one.hello.epoch, " is not part of this job");
      continue;
    }
    accept(std::move(one.fd), one.hello, one.from);
  }
}

void Server::accept(GuardedFd fd, const wire::Hello& hello, const transport::tcp::Address& from) {
  Proxy& proxy = proxy_of(hello.rank);
  // std::function wants copyable captures.
  auto shared = std::make_shared<GuardedFd>(std::move(fd));
  proxy.loop().post([this, &proxy, shared, hello, name = from.to_string()] {
    auto peer = std::make_unique<Peer>(*this, proxy, hello.rank);
    peer->start(std::make_unique<transport::tcp::TcpFlow>(proxy.loop(), std::move(*shared), *peer,
                                                          name));
    if (hello.flow == 0) {
      std::lock_guard lock(peers_mutex_);
      first_peer_[hello.rank] = peer.get();
    }
    proxy.peers_.push_back(std::move(peer));
  });
}

Status Server::open(const Key& key, wire::Open open, uint32_t rank) {
  Status status = aggregator_->open(key, std::move(open), rank);
  if (status.code() == Code::kMismatch) {
    // A planned operation that differs: the job cannot go on, and everybody should know why.
    wire::FrameHeader header;
    header.type = wire::FrameType::kOpError;
    for (uint32_t r = 0; r < cluster_.size; ++r) {
      tell(r, header, encode(wire::OpError{0, status.code(), status.message()}));
    }
    return {};
  }
  return status;
}

Status Server::announce(uint32_t rank, std::string text) {
  auto answers = coordinator_->announce(rank, std::move(text), monotonic_now());
  if (!answers.ok()) return answers.status();
  dispatch(std::move(*answers));
  return {};
}

void Server::tell_what_waits(uint32_t rank) {
  for (Answer& answer : std::exchange(waits_[rank], {})) tell_in_order(std::move(answer));
}

// Rounds must reach every worker in order, whichever proxy closes them: so nothing takes a short
// cut past a loop's queue where there are several loops.
void Server::tell_in_order(Answer answer) {
  if (proxies_.size() == 1) return tell(answer.rank, answer.header, std::move(answer.payload));
  Peer* peer;
  {
    std::lock_guard lock(peers_mutex_);
    peer = first_peer_[answer.rank];
  }
  if (peer == nullptr) return;
  peer->proxy().loop().post([peer, one = std::move(answer)] {
    peer->send(one.header, one.payload);
  });
}

// A change of the series that `from` has asked for, and what is to be said about it. Where many
// workers share few cores, those who compute would wake up between those who wait for a round: they
// are told a moment later, or when they ask for something themselves.
Status Server::change_series(
    const std::function<Status(Nanos, std::vector<Answer>&)>& change,  // no template: it recurs
    uint32_t from) {
  std::lock_guard lock(series_mutex_);
  std::vector<Answer> answers;
  Status status = change(monotonic_now(), answers);
  if (from < waits_.size()) tell_what_waits(from);
  bool some_wait = false;
  for (Answer& answer : answers) {
    if (answer.can_wait) {
      some_wait = true;
      waits_[answer.rank].push_back(std::move(answer));
    } else {
      tell_what_waits(answer.rank);
      tell_in_order(std::move(answer));
    }
  }
  if (some_wait && !std::exchange(some_wait_, true)) {
    proxies_[0]->loop().post([this] {
      proxies_[0]->loop().call_after(kMoment, [this] {
        std::lock_guard timer_lock(series_mutex_);
        some_wait_ = false;
        for (uint32_t rank = 0; rank < waits_.size(); ++rank) tell_what_waits(rank);
      });
    });
  }
  const Nanos wake = series_->wake_at();
  if (wake != 0 && (series_wake_ == 0 || wake < series_wake_)) {
    series_wake_ = wake;
    proxies_[0]->loop().post([this, wake] {
      proxies_[0]->loop().call_at(wake, [this] {
        static_cast<void>(change_series([this](Nanos now, std::vector<Answer>& out) {
          series_wake_ = 0;
          series_->tick(now, out);
          return Status();
        }));
      });
    });
  }
  return status;
}

Status Server::series(wire::FrameType type, uint32_t rank, std::string_view text) {
  return change_series([&](Nanos now, std::vector<Answer>& out) {
    switch (type) {
      case wire::FrameType::kEnlist: return series_->enlist(rank, text, now, out);
      case wire::FrameType::kJoin: return series_->join(rank, text, now, out);
      default: return series_->received(rank, text, now, out);
    }
  }, rank);
}

void Server::dispatch(std::vector<Answer> answers) {
  for (Answer& answer : answers) {
    {
      std::lock_guard lock(series_mutex_);
      if (series_) tell_what_waits(answer.rank);
    }
    tell(answer.rank, answer.header, std::move(answer.payload));
  }
}

void Server::tell(uint32_t rank, const wire::FrameHeader& header, std::string payload) {
  Peer* peer;
  {
    std::lock_guard lock(peers_mutex_);
    peer = first_peer_[rank];
  }
  if (peer == nullptr) return;
  if (&peer->proxy() == t_proxy) {
    peer->send(header, std::move(payload));
  } else {
    peer->proxy().loop().post([peer, header, payload = std::move(payload)] {
      peer->send(header, payload);
    });
  }
}

void Server::deliver(Slot& slot) {
  for (const Contribution& contribution : slot.contributions) {
    if (contribution.state == Contribution::kLost) continue;
    Peer& peer = *contribution.from;
    if (&peer.proxy() == t_proxy) {
      peer.queue_result(slot, contribution.wants_result);
      continue;
    }
    t_proxy->outbox_[peer.proxy().index()].push_back({&peer, &slot, contribution.wants_result});
    if (!std::exchange(t_proxy->outbox_scheduled_, true)) {
      t_proxy->loop().at_iteration_end(&t_proxy->outbox_task_);
    }
  }
}

void Server::set_credit(uint16_t segments) {
  credit_.store(std::clamp<uint16_t>(segments, 1, credit_max_), std::memory_order_relaxed);
}

// Every proxy reports losses on its flows; the first also looks for what is overdue.
void Server::watch(Proxy& proxy) {
  for (const auto& peer : proxy.peers_) {
    if (const uint32_t losses = peer->poll_losses()) add_signals(losses);
  }
  if (proxy.index() == 0) {
    const Nanos now = monotonic_now();
    dispatch(coordinator_->overdue(now));
    static_cast<void>(change_series([this](Nanos when, std::vector<Answer>& out) {
      series_->overdue(when, out);
      return Status();
    }));
    for (const Aggregator::Overdue& item : aggregator_->overdue(now)) {
      wire::FrameHeader header;
      header.type = item.fatal ? wire::FrameType::kOpError : wire::FrameType::kWarning;
      for (uint32_t rank : item.ranks) {
        tell(rank, header,
             item.fatal ? encode(wire::OpError{0, Code::kTimeout, item.text}) : item.text);
        if (!item.fatal) break;  // one rank's log is enough
      }
    }
  }
  proxy.loop().call_after(kWatchInterval, [this, &proxy] { watch(proxy); });
}

void Server::rank_left(uint32_t rank) {
  proxies_[0]->loop().post([this, rank] {
    if (!attached_) return;
    dispatch(coordinator_->rank_left(rank));
    if (outlives_workers()) rank_lost(rank);
  });
}

void Server::rank_lost(uint32_t rank) {
  // First its flows end, so that nothing more of it is read into lanes, then it is missed.
  proxies_[0]->loop().post([this, rank] {
    if (!attached_) return;
    proxy_of(rank).loop().post([this, rank, &proxy = proxy_of(rank)] {
      for (const auto& peer : proxy.peers_) {
        if (peer->rank() == rank) peer->drop();
      }
      aggregator_->rank_lost(rank);
      dispatch(coordinator_->rank_left(rank));
      static_cast<void>(change_series([this, rank](Nanos now, std::vector<Answer>& out) {
        series_->lost(rank, now, out);
        return Status();
      }));
    });
  });
}

void Server::peer_closed(Peer& peer, const Status& why) {
  // Membership decides whether this is a death or an end; here it only ends the flow.
  log(LogLevel::kDebug, "server ", index_, ": flow of rank ", peer.rank(), " ended: ",
      why.message());
  {
    std::lock_guard lock(peers_mutex_);
    if (first_peer_[peer.rank()] == &peer) first_peer_[peer.rank()] = nullptr;
  }
  if (why.code() == Code::kInternal) {
    log(LogLevel::kError, "server ", index_, " dropped rank ", peer.rank(), ": ", why.message());
  }
}

bool Server::idle() {
  bool idle;
  {
    std::lock_guard lock(series_mutex_);
    idle = !some_wait_;
  }
  for (auto& proxy : proxies_) {
    std::promise<bool> answer;
    auto result = answer.get_future();
    proxy->loop().post([&] {
      bool quiet = true;
      for (const auto& peer : proxy->peers_) quiet &= peer->quiet();
      answer.set_value(quiet);
    });
    idle &= result.get();
  }
  return idle && (!aggregator_ || aggregator_->idle()) && (!coordinator_ || coordinator_->idle());
}

void Server::stop() {
  for (auto& proxy : proxies_) proxy->join();
  if (acceptor_) acceptor_->close();
  for (auto& proxy : proxies_) proxy->peers_.clear();
}

}  // namespace herring::server
