#include "server/server.h"

#include <algorithm>

#include "base/log.h"

namespace herring::server {
namespace {

constexpr Nanos kWatchInterval = 50 * kMillisecond;
constexpr Nanos kMoment = kMillisecond;
// A server that ends waits for the workers to receive what it has sent: as long as they do, and
// while nobody does.
constexpr Nanos kLongestFarewell = 60 * kSecond, kStandstill = 500 * kMillisecond;

}  // namespace

Result<std::unique_ptr<Server>> Server::start(ServerOptions options,
                                              transport::Transport& transport) {
  std::unique_ptr<Server> server(new Server(transport));
  server->proxies_.push_back(std::make_unique<Proxy>(0, transport));
  Proxy& first = *server->proxies_[0];
  first.loop().on_exhausted([self = server.get()](const Status& why) {
    if (self->attached_) return self->end_job(why);
    log(LogLevel::kError, "a server that waits for its job: ", why.message());
  });
  auto listener = transport.listen(
      first.loop(), {options.host, options.port}, std::move(options.credentials),
      [](const wire::Hello& hello) {
        return hello.role == wire::Role::kWorker ? wire::Verdict::kAccepted
                                                 : wire::Verdict::kUnexpected;
      },
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
  groups_ = std::make_unique<GroupTable>(cluster_, options.credit_segments(options.credit));
  credit_max_ = options.credit_segments(std::max(options.credit, options.credit_max));
  max_frame_segments_ = static_cast<uint32_t>(
      std::clamp<size_t>(options.frame_max / options.segment_bytes, 1,
                         transport::Destinations::kMaxPieces));
  flows_ = options.flows;
  // Beside the payload: name, shape and, for alltoall and groups, a number per rank.
  max_announce_payload_ = options.small_bytes + 8 * kNumDTypes * size_t{cluster.size} + 65536;
  recipients_.resize(cluster_.size);
  // An operation stays while anybody has segments of it on the way; every stream may have one more.
  const size_t most_open = kMostStreams + size_t{cluster_.size} * flows_ * credit_max_;
  aggregator_ = std::make_unique<Aggregator>(cluster_, *groups_, options.segment_bytes, most_open,
                                             [this](Slot& slot) { deliver(slot); },
                                             [loop = &proxies_[0]->loop()] { return loop->now(); });
  coordinator_ = std::make_unique<Coordinator>(cluster_, *groups_, index);
  series_ = std::make_unique<SeriesTable>(cluster_, *groups_, index);
  const uint32_t proxies = std::clamp<uint32_t>(options.proxies, 1, std::max(1u, cluster_.nodes));
  while (proxies_.size() < proxies) {
    proxies_.push_back(
        std::make_unique<Proxy>(static_cast<uint32_t>(proxies_.size()), transport_));
    proxies_.back()->loop().on_exhausted([this](const Status& why) { end_job(why); });
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
    proxy->loop().post([this, p = proxy.get()] { watch(*p); });
    if (proxy->index() != 0) proxy->start();
  }
  proxies_[0]->loop().post([this] {
    attached_ = true;
    admit_waiting();
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
  // std::function wants copyable captures.
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
                 " is here already");
    }
    auto peer = std::make_unique<Peer>(*this, proxy, rank, flow);
    peer->start(make(proxy.loop(), *peer));
    proxy.peers_.push_back(std::move(peer));
    if (flow != 0) return;
    std::lock_guard lock(changes_);
    recipients_[rank].peer = proxy.peers_.back().get();
    send_waiting(rank);
  });
}

Status Server::open(const Key& key, wire::Open open, uint32_t rank) {
  Status status = aggregator_->open(key, std::move(open), rank);
  if (status.code() != Code::kMismatch) return status;
  end_job(status, rank);  // a planned operation that differs: the job cannot go on
  return {};
}

void Server::end_job(const Status& why, uint32_t rank) {
  const bool gone = groups_->is_gone(rank);
  log(gone ? LogLevel::kDebug : LogLevel::kError, why.message());
  if (gone) return;
  std::lock_guard lock(changes_);
  if (ends_) return;
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
    answers.push_back(error_answer(rank, 0, why));
  }
  answer(std::move(answers), kNobody);
}

Status Server::control(const wire::FrameHeader& header, uint32_t rank, std::string text) {
  return change([&](Nanos now, std::vector<Answer>& out) {
    if (groups_->is_gone(rank)) return Status();  // nobody waits for what it says
    switch (header.type) {
      case wire::FrameType::kAnnounce:
        return coordinator_->announce(rank, header.group, std::move(text), now, out);
      case wire::FrameType::kGroup: return define_group(header.group, rank, text, out);
      case wire::FrameType::kLeaveGroup: return leave_group(header, rank, text, out);
      case wire::FrameType::kEnlist: return series_->enlist(rank, header.group, text, now, out);
      case wire::FrameType::kJoin: return series_->join(rank, text, now, out);
      case wire::FrameType::kWhereabouts:
        coordinator_->set_whereabouts(rank, std::move(text));
        return Status();
      case wire::FrameType::kReleased:
        recipients_[rank].released = true;
        return Status();
      default: return series_->received(rank, text, now, out);
    }
  }, rank);
}

Status Server::define_group(uint32_t group, uint32_t rank, std::string_view text,
                            std::vector<Answer>& out) {
  auto message = wire::decode_group(text);
  if (!message.ok()) return message.status();
  const Status defined = groups_->define(group, std::move(message->name),
                                         std::move(message->ranks), rank, message->id);
  if (defined.code() == Code::kInvalidArgument) {
    out.push_back(error_answer(rank, message->id, defined));
    return {};
  }
  HERRING_RETURN_IF_ERROR(defined);
  answer_defined(out);
  return {};
}

// Members hear at once that a group is there, or that it cannot be: one that has heard may use the
// group and leave before the others have heard.
void Server::answer_defined(std::vector<Answer>& out) {
  for (const GroupTable::Defined& one : groups_->take_defined()) {
    if (!one.status.ok()) {
      out.push_back(error_answer(one.rank, one.call, one.status));
      continue;
    }
    wire::FrameHeader header;
    header.type = wire::FrameType::kReply;
    header.group = one.group;
    out.push_back({one.rank, header, encode(wire::Go{one.call, {}})});
  }
}

// Who has found that a member is gone says so, lest others wait for what it will not do.
Status Server::leave_group(const wire::FrameHeader& header, uint32_t rank, const std::string& why,
                           std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup> group = groups_->find(header.group);
  const bool called_off = header.flags & wire::kFlagCalledOff;
  if (!group) return {};  // it could not be formed, or its members are gone
  if (!group->members.has(rank) || (group->members.is_world() && !called_off)) {
    return breach("rank ", rank, " leaves group ", header.group, ", in which it is not");
  }
  if (called_off && !std::exchange(group->told, true)) {
    // Who waits for others, not for a server, would not hear of it.
    for (const uint32_t one : group->members.ranks()) {
      if (one != rank) out.push_back({one, header, why.substr(0, wire::kMaxRefusal)});
    }
    aggregator_->break_group(*group);
  }
  coordinator_->rank_gone(*group, rank,
                          called_off
                              ? concat("has called it off: ", why.substr(0, wire::kMaxRefusal))
                              : std::string("has destroyed the group"),
                          out);
  // Who gives up what needs all members goes on with partial all-reduces of the group.
  if (!called_off) groups_->leave(header.group, rank);
  answer_defined(out);
  return {};
}

// The one way to answer workers, but for the end of the job. `from`: who asked for the change.
Status Server::change(const Change& change, uint32_t from) {
  std::lock_guard lock(changes_);
  if (ends_ || half_changed_) return {};
  return or_tell([this](const Status&) { half_changed_ = true; }, [&] {
    std::vector<Answer> answers;
    Status status = change(proxies_[0]->loop().now(), answers);
    answer(std::move(answers), from);
    set_timers();
    return status;
  });
}

// Where many workers share few cores, those who compute would wake up between those who wait for a
// round: they are told a moment later, or when they ask for something themselves.
void Server::answer(std::vector<Answer> answers, uint32_t from) {
  if (from != kNobody) send_waiting(from);
  for (Answer& one : answers) {
    const uint32_t rank = one.rank;
    const bool can_wait = one.can_wait;
    recipients_[rank].waiting.push_back(std::move(one));
    if (!can_wait) {
      send_waiting(rank);
    } else if (!std::exchange(some_wait_, true)) {
      proxies_[0]->loop().post([this] {
        proxies_[0]->loop().call_after(kMoment, [this] {
          std::lock_guard lock(changes_);
          some_wait_ = false;
          for (uint32_t r = 0; r < recipients_.size(); ++r) send_waiting(r);
        });
      });
    }
  }
}

// Nothing takes a short cut past a loop's queue where there are several loops: it would overtake.
void Server::send_waiting(uint32_t rank) {
  Recipient& to = recipients_[rank];
  if (to.waiting.empty() || (to.peer == nullptr && !to.gone)) return;
  std::vector<Answer> answers = std::exchange(to.waiting, {});
  if (to.gone) return;
  auto send = [peer = to.peer, answers = std::move(answers)]() mutable {
    for (Answer& one : answers) peer->send(one.header, std::move(one.payload));
  };
  proxies_.size() == 1 ? send() : static_cast<void>(to.peer->proxy().loop().post(std::move(send)));
}

void Server::set_timers() {
  const Nanos wake = series_->wake_at();
  if (wake == 0 || (series_wake_ != 0 && wake >= series_wake_)) return;
  series_wake_ = wake;
  proxies_[0]->loop().post([this, wake] {
    proxies_[0]->loop().call_at(wake, [this] {
      static_cast<void>(change([this](Nanos now, std::vector<Answer>& out) {
        series_wake_ = 0;
        series_->tick(now, out);
        return Status();
      }));
    });
  });
}

void Server::deliver(Slot& slot) {
  Proxy& here = current();
  for (const Contribution& contribution : slot.contributions) {
    if (contribution.state == Contribution::kLost) continue;
    Peer& peer = *contribution.from;
    if (&peer.proxy() == &here) {
      peer.queue_result(slot, contribution.wants_result);
      continue;
    }
    here.outbox_[peer.proxy().index()].push_back({&peer, &slot, contribution.wants_result});
    if (!std::exchange(here.outbox_scheduled_, true)) {
      here.loop().at_iteration_end(&here.outbox_task_);
    }
  }
}

void Server::set_credit(JobGroup& group, uint16_t segments) {
  group.credit.store(std::clamp<uint16_t>(segments, 1, credit_max_), std::memory_order_relaxed);
}

// Every proxy reports losses on its flows; the first also looks for what is overdue.
void Server::watch(Proxy& proxy) {
  for (const auto& peer : proxy.peers_) {
    if (const uint32_t losses = peer->poll_losses()) add_signals(losses);
  }
  if (proxy.index() == 0) {
    static_cast<void>(change([this](Nanos now, std::vector<Answer>& out) {
      coordinator_->overdue(now, out);
      series_->overdue(now, out);
      report_overdue(now, out);
      return Status();
    }));
  }
  proxy.loop().call_after(kWatchInterval, [this, &proxy] { watch(proxy); });
}

void Server::report_overdue(Nanos now, std::vector<Answer>& out) {
  for (const Aggregator::Overdue& item : aggregator_->overdue(now)) {
    const std::shared_ptr<JobGroup> group = groups_->find(item.key.group);
    std::vector<uint32_t> others;
    if (group) {
      std::ranges::copy_if(group->members.ranks(), std::back_inserter(others), [&](uint32_t one) {
        return std::ranges::find(item.ranks, one) == item.ranks.end();
      });
    }
    const std::string text = item.text + coordinator_->where(others);
    for (const uint32_t rank : item.ranks) {
      out.push_back(item.fatal ? error_answer(rank, 0, {Code::kTimeout, text})
                               : warning_answer(rank, text));
      if (!item.fatal) break;  // one rank's log is enough
    }
  }
}

void Server::rank_left(uint32_t rank) {
  proxies_[0]->loop().post([this, rank] {
    if (!attached_) return;
    rank_gone(rank, kLeftJob);
    if (series_->any()) end_flows(rank, true);
  });
}

void Server::rank_lost(uint32_t rank) {
  proxies_[0]->loop().post([this, rank] {
    if (!attached_) return;
    // At once: who leaves because of it is gone after it, for those who still wait too.
    rank_gone(rank, "is gone");
    end_flows(rank, false);
  });
}

void Server::rank_gone(uint32_t rank, const std::string& how) {
  static_cast<void>(change([&](Nanos, std::vector<Answer>& out) {
    coordinator_->rank_gone(rank, how, out);
    answer_defined(out);
    return Status();
  }));
}

// First its flows end, so that nothing more of it is read into lanes, then its data is missed.
void Server::end_flows(uint32_t rank, bool left) {
  proxy_of(rank).loop().post([this, rank, left, &proxy = proxy_of(rank)] {
    for (const auto& peer : proxy.peers_) {
      if (peer->rank() == rank) peer->drop();
    }
    aggregator_->rank_gone(rank, left);
    static_cast<void>(change([this, rank](Nanos now, std::vector<Answer>& out) {
      series_->lost(rank, now, out);
      return Status();
    }));
  });
}

// On the peer's thread, never inside a change.
void Server::peer_closed(Peer& peer, const Status& why) {
  // Membership decides whether this is a death or an end; here it only ends the flow.
  log(LogLevel::kDebug, "server ", index_, ": flow of rank ", peer.rank(), " ended: ",
      why.message());
  {
    std::lock_guard lock(changes_);
    Recipient& recipient = recipients_[peer.rank()];
    if (recipient.peer == &peer) {
      recipient.peer = nullptr;
      recipient.gone = true;
    }
  }
  if (why.is_fault()) {
    log(LogLevel::kError, "server ", index_, " dropped rank ", peer.rank(), ": ", why.message());
  }
}

bool Server::idle() {
  bool idle = true;
  {
    std::lock_guard lock(changes_);
    idle = !some_wait_ && (!coordinator_ || coordinator_->idle());
  }
  for (auto& proxy : proxies_) {
    idle &= proxy->loop().ask([&] {
      return std::all_of(proxy->peers_.begin(), proxy->peers_.end(),
                         [](const auto& peer) { return peer->quiet(); });
    }).value_or(true);
  }
  return idle && (!aggregator_ || aggregator_->idle());
}

bool Server::released() {
  std::lock_guard lock(changes_);
  return std::ranges::all_of(recipients_, [](const Recipient& one) {
    return one.peer == nullptr || one.released;
  });
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
  listener_.reset();  // before the loop that it is in
  for (auto& proxy : proxies_) proxy->peers_.clear();
}

// To close a connection with unread input, or one that gets more, would take along what has not
// been read at its other end.
void Server::say_farewell() {
  {
    // Of what has changed either all hear or nobody.
    std::lock_guard lock(changes_);
    ends_ = true;
  }
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
