#include "control/rendezvous.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "base/interrupt.h"
#include "base/log.h"
#include "control/assembly.h"
#include "control/channel.h"
#include "control/loss_notices.h"
#include "control/messages.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/transport.h"

namespace herring::control {
namespace {

using transport::tcp::Acceptor;
using transport::Address;
using wire::FrameType;

// A registration fits (64 settings of 2 x 4 kB), and nothing much larger.
constexpr uint32_t kMaxFromMember = 1 << 20;
// After a contradiction the others get this long to register too: then the message lists everybody,
// and everybody gets it.
constexpr Nanos kGrace = kSecond;
// How long stop() waits for members that have not said goodbye yet, and then for connections.
constexpr Nanos kLinger = kSecond;
constexpr Nanos kClosing = 300 * kMillisecond;

}  // namespace

// Everything below runs on the thread, but start() before it and stop().
class Rendezvous::Impl final : public Channel::Owner {
 public:
  Impl(GuardedFd listener, RendezvousOptions options)
      : options_(std::move(options)),
        acceptor_(
            loop_, std::move(listener), options_.credentials,
            // Whoever proves itself gets in: the answer to its registration says more.
            [](const wire::Hello&) { return wire::Verdict::kAccepted; },
            [this](GuardedFd fd, const wire::Hello& hello, const Address& peer) {
              admit(std::move(fd), hello, peer);
            }),
        address_(acceptor_.address()),
        started_(loop_.now()),
        deadline_(started_ + options_.connect_timeout),
        silence_(started_) {
    acceptor_.on_refused([this](const Address& peer, const std::string& why) {
      refusals_.add(peer.host, why);
    });
  }

  ~Impl() override { loop_.join(); }

  void start() {
    beat();
    check_silence();
    arm_deadline();
    loop_.call_after(options_.warn_after, [this] { warn(); });
    loop_.start("herring-meet");
  }

  const Address& address() const { return address_; }

  void tell_all(Nanos most) {
    if (!loop_.here()) return;
    const Nanos deadline = loop_.now() + most;
    while (!interrupted()) {
      std::unique_lock lock(mutex_);
      const Nanos slice = std::min(deadline - loop_.now(), kInterruptInterval);
      const auto told = [this] { return all_told_; };
      if (slice <= 0 || stopped_changed_.wait_for(lock, std::chrono::nanoseconds(slice), told)) {
        return;
      }
    }
  }

  void stop() {
    if (!loop_.here()) return;
    loop_.post([this] { begin_stop(); });
    {
      std::unique_lock lock(mutex_);
      // The loop keeps its own deadlines; this one is for a loop that hangs.
      stopped_changed_.wait_for(lock, std::chrono::nanoseconds(kLinger + kClosing + kSecond),
                                [this] { return stopped_; });
    }
    loop_.join();
  }

  bool here() const { return loop_.here(); }

 private:
  enum class State { kGathering, kStartingServers, kRunning, kFailed };
  enum class Kind { kUnknown, kWorker, kServer };

  struct Peer {
    std::unique_ptr<Channel> channel;
    std::string host;   // its address without port
    Nanos accepted = 0;
    Kind kind = Kind::kUnknown;  // of what registered and was accepted
    bool gone = false;           // left, lost or refused: nothing counts any more
    int64_t pid = 0;
    WorkerRegistration worker;
    ServerRegistration server;
    uint32_t index = ~0u;  // rank, or the server's index once that is known
  };

  // ---- connections ----

  void admit(GuardedFd fd, const wire::Hello& hello, const Address& address) {
    auto peer = std::make_unique<Peer>();
    peer->index = hello.rank;
    peer->host = address.host;
    peer->accepted = loop_.now();
    const auto connection = transport::tcp::make_connection(std::move(fd), address.to_string());
    peer->channel = std::make_unique<Channel>(loop_, *connection, kMaxFromMember, *this);
    peer->channel->user = peer.get();
    peer->channel->send(FrameType::kHeartbeat, rhythm());
    peers_.push_back(std::move(peer));
  }

  static Peer& peer_of(const Channel& channel) { return *static_cast<Peer*>(channel.user); }

  Status on_message(Channel& channel, FrameType type, uint8_t, std::string_view payload) override {
    Peer& peer = peer_of(channel);
    if (type == FrameType::kHeartbeat) {
      return payload.empty() ? Status() : nonsense("a heartbeat with a payload");
    }
    if (peer.gone) return {};  // it cannot know yet
    if (type == FrameType::kRegister) return on_register(peer, payload);
    if (peer.kind == Kind::kUnknown) {
      if (type == FrameType::kAbort) return on_declined(peer, payload);
      return nonsense("a message before its registration");
    }
    if (type == FrameType::kGoodbye) {
      on_goodbye(peer);
      return {};
    }
    if (type == FrameType::kAbort) return on_abort(peer, payload);
    return nonsense(concat("a message of type ", wire::name_of(type)));
  }

  static Status nonsense(const std::string& what) {
    return {Code::kInternal, concat("it sent ", what)};
  }

  void on_dropped(Channel& channel, const Status& why) override {
    Peer& peer = peer_of(channel);
    const Nanos silent = loop_.now() - channel.heard_at();
    if (why.code() == Code::kPeerLost) {
      lose(peer, concat("its connection ended without a goodbye, ", to_seconds(silent),
                        " s after it was last heard"));
    } else {
      lose(peer, concat("it was dropped because of what it sent (", why.message(), ")"));
    }
    if (!std::exchange(reaping_, true)) loop_.post([this] { reap(); });
  }

  void reap() {
    reaping_ = false;
    std::erase_if(peers_, [](const auto& peer) { return peer->channel->closed(); });
    check_stopped();
  }

  // ---- registration ----

  Status on_register(Peer& peer, std::string_view payload) {
    if (peer.kind != Kind::kUnknown) return nonsense("a second registration");
    auto decoded = decode_registration(payload);
    if (!decoded.ok()) return nonsense(concat("a ", decoded.status().message()));
    peer.pid = decoded->pid;
    auto* worker = std::get_if<WorkerRegistration>(&decoded->what);
    if (state_ == State::kFailed) {
      // Who has heard it comes for the next job.
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
                      concat("rank ", peer.index, " comes too late: this job runs already, with ",
                             cluster_.describe_rank(peer.index), "; start another job with another "
                             "HERRING_RENDEZVOUS, or end the one that runs")},
               !is_here(peer.index));
        return {};
      }
      peer.kind = Kind::kWorker;
      ++registered_;
      roster_.add(peer.worker);
    } else {
      peer.server = std::move(std::get<ServerRegistration>(decoded->what));
      if (peer.server.host.empty()) peer.server.host = peer.host;
      const Status status = peer.server.dedicated ? place_for_dedicated() : place_for(peer.server);
      if (!status.ok()) {
        const bool next = peer.server.dedicated && dedicated_here() < options_.dedicated_servers;
        refuse(peer, status, next);
        return {};
      }
      peer.kind = Kind::kServer;
      if (peer.server.dedicated) {
        peer.index = dedicated_++;
      } else {
        peer.index = options_.dedicated_servers + peer.server.node;
        missing_nodes_.erase(peer.server.node);
      }
    }
    shorten_deadline(decoded->patience);
    advance();
    return {};
  }

  Status place_for_dedicated() const {
    if (state_ == State::kGathering && dedicated_ < options_.dedicated_servers) return {};
    return {Code::kConfiguration,
            concat("this job expects ", options_.dedicated_servers, " dedicated servers "
                   "(HERRING_SERVERS) and has them all; another one is not needed")};
  }

  Status place_for(const ServerRegistration& server) const {
    if (state_ == State::kStartingServers && missing_nodes_.count(server.node) != 0) return {};
    return {Code::kConfiguration,
            concat("a colocated server of node ", server.node, " is not expected here")};
  }

  // `again`: it comes for the next job of the same processes, when this one has ended.
  void refuse(Peer& peer, const Status& why, bool again = false) {
    peer.gone = true;
    peer.channel->send(FrameType::kAbort, encode(why), again ? kFlagAgain : 0);
    // The member closes the connection when it has read this.
    if (state_ == State::kFailed) check_told();
  }

  bool is_here(uint32_t rank) const {
    return std::any_of(peers_.begin(), peers_.end(), [rank](const auto& peer) {
      return peer->kind == Kind::kWorker && !peer->gone && peer->index == rank;
    });
  }

  uint32_t dedicated_here() const {
    return static_cast<uint32_t>(std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer->kind == Kind::kServer && !peer->gone && peer->server.dedicated;
    }));
  }

  // A process of the job that found out by itself that it cannot take part.
  Status on_declined(Peer& peer, std::string_view payload) {
    Status why;
    if (!decode_abort(payload, why).ok()) return nonsense("a malformed abort");
    peer.gone = true;
    if (peer.index < options_.size) told_.insert(peer.index);
    if (state_ == State::kFailed) check_told();
    if (state_ == State::kGathering) {
      const std::string text = concat("a process on ", peer.host, " cannot join: ", why.message());
      fail({why.code(), text});
    }
    return {};
  }

  void check_told() {
    if (told_.size() < options_.size || told_servers_ < options_.dedicated_servers) return;
    std::lock_guard lock(mutex_);
    all_told_ = true;
    stopped_changed_.notify_all();
  }

  // A member waits for the others only so long; the message that lists who is missing must come
  // before it gives up by itself.
  void shorten_deadline(Nanos patience) {
    const Nanos margin = std::min(patience / 10, 250 * kMillisecond);
    const Nanos deadline = loop_.now() + patience - margin;
    if (deadline >= deadline_) return;
    deadline_ = deadline;
    arm_deadline();
  }

  void arm_deadline() {
    loop_.cancel(deadline_timer_);
    deadline_timer_ = loop_.call_at(deadline_, [this] { on_deadline(); });
  }

  std::vector<RegisteredWorker> workers() const {
    std::vector<RegisteredWorker> all;
    for (const auto& peer : peers_) {
      if (peer->kind == Kind::kWorker && !peer->gone) {
        all.push_back({peer->worker, peer->host, peer->pid});
      }
    }
    return all;
  }

  // Somebody has registered: what follows?
  void advance() {
    if (state_ == State::kStartingServers) {
      if (missing_nodes_.empty()) complete();
      return;
    }
    if (!roster_.sound()) {
      const std::vector<RegisteredWorker> all = workers();
      const Status contradiction =
          find_contradiction(all, options_.size, options_.dedicated_servers);
      if (!contradiction.ok()) {
        if (all.size() >= options_.size) return fail(contradiction);
        if (contradiction_.ok()) wait_for_others(contradiction);
        return;
      }
    }
    if (registered_ < options_.size || dedicated_ < options_.dedicated_servers) return;
    begin_servers(workers());
  }

  void wait_for_others(const Status& contradiction) {
    contradiction_ = contradiction;
    loop_.call_after(kGrace, [this] {
      if (state_ == State::kGathering) {
        fail(find_contradiction(workers(), options_.size, options_.dedicated_servers));
      }
    });
  }

  void begin_servers(const std::vector<RegisteredWorker>& all) {
    auto assembled = assemble(all);
    if (!assembled.ok()) return fail(assembled.status());
    cluster_ = std::move(*assembled);
    // Nothing of an earlier job of the same processes, with the same secret, is taken for this one.
    cluster_.epoch = std::random_device()() | 1;
    number_servers();
    auto weights = choose_weights(cluster_.settings, cluster_.nodes, options_.dedicated_servers);
    if (!weights.ok()) return fail(weights.status());
    weights_ = std::move(*weights);
    state_ = State::kStartingServers;
    const auto nodes = colocated_nodes(cluster_.nodes, options_.dedicated_servers);
    missing_nodes_ = {nodes.begin(), nodes.end()};
    if (missing_nodes_.empty()) return complete();
    // The others have nothing to do before all servers are there.
    send_cluster(FrameType::kCluster, [this](const Peer& peer) {
      return peer.kind == Kind::kWorker && cluster_.workers[peer.index].local_rank == 0;
    });
  }

  template <typename Gets>
  void send_cluster(FrameType type, Gets gets) {
    std::vector<std::vector<uint32_t>> ranks(cluster_.nodes);
    for (const WorkerInfo& worker : cluster_.workers) ranks[worker.node].push_back(worker.rank);
    const auto common = std::make_shared<const std::string>(encode_common(cluster_));
    for (const auto& peer : peers_) {
      if (peer->kind == Kind::kUnknown || peer->gone || !gets(*peer)) continue;
      const std::vector<uint32_t> nobody;
      const bool worker = peer->kind == Kind::kWorker;
      const auto& near = worker ? ranks[cluster_.workers[peer->index].node] : nobody;
      const bool start = type == FrameType::kCluster;
      peer->channel->send(type, encode_own(start, peer->index, cluster_, near), common);
    }
  }

  void number_servers() {
    std::vector<Peer*> found;
    std::vector<std::string> addresses;
    for (const auto& peer : peers_) {
      if (peer->kind != Kind::kServer || peer->gone || !peer->server.dedicated) continue;
      found.push_back(peer.get());
      addresses.push_back(Address{peer->server.host, peer->server.port}.to_string());
    }
    const std::vector<uint32_t> numbers = number_by_address(addresses);
    for (size_t i = 0; i < found.size(); ++i) found[i]->index = numbers[i];
  }

  void complete() {
    cluster_.servers.resize(weights_.size());
    for (const auto& peer : peers_) {
      if (peer->kind != Kind::kServer || peer->gone) continue;
      cluster_.servers[peer->index] = {
          peer->index, peer->server.dedicated, peer->server.dedicated ? ~0u : peer->server.node,
          Address{peer->server.host, peer->server.port}.to_string(), weights_[peer->index]};
    }
    state_ = State::kRunning;
    loop_.cancel(deadline_timer_);
    send_cluster(FrameType::kReady, [](const Peer&) { return true; });
  }

  std::string describe_missing() const {
    if (state_ == State::kGathering) {
      return list_missing(workers(), options_.size, dedicated_, options_.dedicated_servers);
    }
    return concat("the colocated servers of nodes ",
                  list_numbers({missing_nodes_.begin(), missing_nodes_.end()}));
  }

  void warn() {
    if (state_ != State::kGathering && state_ != State::kStartingServers) return;
    broadcast(FrameType::kWarning,
              concat("has waited ", to_seconds(options_.warn_after), " s at the rendezvous ",
                     address_.to_string(), " for ", describe_missing()));
  }

  void on_deadline() {
    if (state_ != State::kGathering && state_ != State::kStartingServers) return;
    fail({Code::kTimeout,
          concat("not everybody has registered at the rendezvous ", address_.to_string(),
                 " within ", to_seconds(loop_.now() - started_), " s: missing ",
                 describe_missing(), refusals_.text(), "; look at the output of the missing "
                 "processes, or raise HERRING_CONNECT_TIMEOUT")});
  }

  void fail(const Status& why) {
    state_ = State::kFailed;
    failure_ = why;
    for (const auto& peer : peers_) {
      if (peer->kind == Kind::kUnknown || peer->gone) continue;
      if (peer->kind == Kind::kWorker) told_.insert(peer->index);
      if (peer->kind == Kind::kServer && peer->server.dedicated) ++told_servers_;
      refuse(*peer, why);
    }
    check_told();
  }

  // ---- the running job ----

  std::string describe_peer(const Peer& peer) const {
    const std::string where = concat(" (", peer.host, ", pid ", peer.pid, ")");
    if (peer.kind == Kind::kWorker) return concat("rank ", peer.index, where);
    if (state_ == State::kRunning) return concat(cluster_.describe_server(peer.index));
    return concat(peer.server.dedicated ? "a dedicated server"
                                        : concat("the server of node ", peer.server.node),
                  where);
  }

  void broadcast(FrameType type, const std::string& payload, const Peer* except = nullptr) {
    for (const auto& peer : peers_) {
      if (peer.get() != except && peer->kind != Kind::kUnknown && !peer->gone) {
        peer->channel->send(type, payload);
      }
    }
  }

  void lose(Peer& peer, const std::string& how) {
    if (peer.gone || peer.kind == Kind::kUnknown) return;
    peer.gone = true;
    const std::string text = concat(describe_peer(peer), " is lost: ", how);
    if (state_ == State::kRunning) {
      losses_.add({peer.kind == Kind::kServer, false, peer.index, text}, peers_.size());
      note_end(peer);
    } else if (state_ != State::kFailed) {
      fail(contradiction_.ok() ? Status(Code::kPeerLost,
                                        concat(text, ", before everybody had registered"))
                               : contradiction_);
    }
  }

  void on_goodbye(Peer& peer) {
    if (state_ == State::kRunning) {
      peer.gone = true;
      losses_.add({peer.kind == Kind::kServer, true, peer.index, {}}, peers_.size());
      peer.channel->send(FrameType::kGoodbye);
      note_end(peer);
    } else {
      peer.channel->send(FrameType::kGoodbye);
      lose(peer, "it left");
    }
  }

  Status on_abort(Peer& peer, std::string_view payload) {
    Status why;
    if (!decode_abort(payload, why).ok()) return nonsense("a malformed abort");
    const std::string text = concat(describe_peer(peer), ": ", why.message());
    if (state_ == State::kRunning) {
      broadcast(FrameType::kAbort, encode(Status(why.code(), text)), &peer);
    } else if (state_ != State::kFailed) {
      peer.gone = true;
      fail({why.code(), text});
    }
    return {};
  }

  // Servers end when no worker is left. `gone`: it has left the running job, or is lost.
  void note_end(const Peer& gone) {
    if (gone.kind == Kind::kWorker) --registered_;
    if (ended_ || registered_ > 0) return;
    ended_ = true;
    losses_.flush();
    for (const auto& peer : peers_) {
      if (peer->kind == Kind::kServer && !peer->gone) {
        peer->channel->send(FrameType::kGoodbye, {}, kFlagEnd);
      }
    }
  }

  // ---- heartbeats ----

  std::string rhythm() const {
    return encode(Rhythm{options_.heartbeat_interval, options_.heartbeat_timeout});
  }

  void beat() {
    for (const auto& peer : peers_) peer->channel->send(FrameType::kHeartbeat, rhythm());
    loop_.call_after(options_.heartbeat_interval, [this] { beat(); });
  }

  void check_silence() {
    const Nanos now = loop_.now();
    const Nanos period = std::min(options_.heartbeat_interval, options_.heartbeat_timeout / 8);
    const Nanos late = silence_.tick(now, period);
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = *peers_[i];
      peer.channel->check_acknowledged(late, now);
      const Nanos silent = peer.channel->silent(now);
      const bool mute = peer.kind == Kind::kUnknown && !peer.gone &&
                        now - peer.accepted > options_.connect_timeout;
      if ((silent <= options_.heartbeat_timeout && !mute) || peer.channel->closed()) continue;
      if (!peer.gone && peer.kind != Kind::kUnknown) {
        const std::string held_up =
            concat("this machine was not heard for ", to_seconds(silent), " s, more than the ",
                   to_seconds(options_.heartbeat_timeout),
                   " s of HERRING_HEARTBEAT_TIMEOUT; the others have given it up");
        peer.channel->send(FrameType::kAbort, encode(Status(Code::kPeerLost, held_up)));
        lose(peer, concat("nothing was heard from it or its system for ", to_seconds(silent),
                          " s (time-out ", to_seconds(options_.heartbeat_timeout), " s)"));
        peer.channel->check_acknowledged(silent, now);  // a moment to read why, should it come back
      } else {
        peer.channel->close();
      }
    }
    std::erase_if(peers_, [](const auto& peer) { return peer->channel->closed(); });
    check_stopped();
    loop_.call_after(period, [this] { check_silence(); });
  }

  // ---- the end ----

  bool somebody_stays() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer->kind != Kind::kUnknown && !peer->channel->closed();
    });
  }

  void begin_stop() {
    stopping_ = true;
    // Who comes now comes for the next job: there may be one, at the same address.
    acceptor_.close();
    const Status over(Code::kPeerLost,
                      concat("the rendezvous ", address_.to_string(), " has ended"));
    for (const auto& peer : peers_) {
      if (peer->kind == Kind::kUnknown && !peer->gone) refuse(*peer, over, true);
    }
    if (state_ == State::kGathering || state_ == State::kStartingServers) {
      fail({Code::kPeerLost, concat("the rendezvous ", address_.to_string(),
                                    " has ended before everybody had registered")});
    }
    loop_.call_after(kLinger, [this] {
      for (const auto& peer : peers_) peer->channel->send(FrameType::kGoodbye, {}, kFlagStop);
      loop_.call_after(kClosing, [this] { finish_stop(); });
    });
    check_stopped();
  }

  void check_stopped() {
    if (stopping_ && !somebody_stays()) finish_stop();
  }

  void finish_stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    stopped_changed_.notify_all();
  }

  const RendezvousOptions options_;
  transport::EpollLoop loop_;
  Acceptor acceptor_;
  const Address address_;
  const Nanos started_;
  Nanos deadline_;
  transport::EventLoop::TimerId deadline_timer_ = 0;
  Silence silence_;

  State state_ = State::kGathering;
  std::vector<std::unique_ptr<Peer>> peers_;
  uint32_t registered_ = 0;  // workers; of a running job those that are left
  uint32_t dedicated_ = 0;   // registered dedicated servers
  Roster roster_{options_.size, options_.dedicated_servers};
  LossNotices losses_{loop_, [this](const std::vector<Loss>& losses) {
                        broadcast(FrameType::kPeerLost, encode(losses));
                      }};
  bool reaping_ = false;
  std::set<uint32_t> told_;    // ranks that know failure_
  uint32_t told_servers_ = 0;  // dedicated ones that do
  Status contradiction_;    // seen, but not yet told
  Status failure_;
  Cluster cluster_;
  std::vector<double> weights_;
  std::set<uint32_t> missing_nodes_;  // whose colocated servers are awaited
  bool ended_ = false;                // servers were told
  Refusals refusals_;
  bool stopping_ = false;

  std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;   // guarded by mutex_
  bool all_told_ = false;  // guarded by mutex_
};

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rendezvous::~Rendezvous() {
  if (!impl_->here()) {
    impl_.release();  // NOLINT: in a forked child; its threads and locks are the parent's
    return;
  }
  stop();
}

Result<std::unique_ptr<Rendezvous>> Rendezvous::start(GuardedFd listener,
                                                      RendezvousOptions options) {
  if (!listener.valid()) return Status(Code::kInternal, "the rendezvous has no listening socket");
  if (options.size == 0 || options.size > kMaxWorkers) {
    return Status(Code::kConfiguration,
                  concat("HERRING_SIZE is ", options.size, "; it must be from 1 to ", kMaxWorkers));
  }
  if (options.dedicated_servers > kMaxWorkers) {
    return Status(Code::kConfiguration, concat("HERRING_SERVERS is ", options.dedicated_servers,
                                               "; it must be from 0 to ", kMaxWorkers));
  }
  if (options.credentials.secret.empty()) {
    return Status(Code::kConfiguration,
                  "the job has no secret; set HERRING_SECRET_FILE to the same file everywhere");
  }
  // Every process has a connection, two where it hosts a server: each might.
  const size_t least = size_t{options.size} + options.dedicated_servers;
  HERRING_RETURN_IF_ERROR(transport::tcp::want_descriptors(least + options.size, least));
  Status rhythm = check_rhythm({options.heartbeat_interval, options.heartbeat_timeout});
  if (!rhythm.ok()) return rhythm;
  auto impl = std::make_unique<Impl>(std::move(listener), std::move(options));
  impl->start();
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
}

const transport::Address& Rendezvous::address() const { return impl_->address(); }

void Rendezvous::tell_all(Nanos most) { impl_->tell_all(most); }
void Rendezvous::stop() { impl_->stop(); }

}  // namespace herring::control
