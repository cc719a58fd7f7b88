#include "control/member.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "control/announcements.h"
#include "control/channel.h"
#include "control/messages.h"
#include "control/reaching.h"
#include "control/teller.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/transport.h"

namespace herring::control {
namespace {

using wire::FrameType;

constexpr Nanos kGoodbyeTimeout = kSecond;
// The rendezvous gives others a second before it tells that a worker's part has ended.
constexpr Nanos kPartTold = 3 * kSecond / 2;
constexpr Nanos kDrainTimeout = 200 * kMillisecond;
// The rendezvous tells who is missing before this member's patience ends. This is extra time in
// case it does not.
constexpr Nanos kLastWord = 500 * kMillisecond;

// Returns what this system calls itself; empty if it does not tell.
std::string host_name() {
  char name[kMaxHostNameBytes + 1] = {};
  return gethostname(name, kMaxHostNameBytes) == 0 ? name : "";
}

}  // namespace

// The member's thread owns everything that mutex_ does not guard. cluster_ does not change after
// join() has returned.
class Member::Impl final : public Channel::Owner {
 public:
  Impl(const Options& options, transport::tcp::Socket fd)
      : options_(options),
        rhythm_{options.heartbeat_interval, options.heartbeat_timeout},
        silence_(loop_.now()) {
    if (auto address = transport::tcp::local_address(fd.get()); address.ok()) {
      local_address_ = address->host;
    }
    const auto connection =
        transport::tcp::make_connection(std::move(fd), options.rendezvous.to_string());
    channel_ = std::make_unique<Channel>(loop_, *connection, wire::kMaxControlPayload, *this);
    teller_.emplace(loop_, *channel_);
    loop_.on_exhausted([this](const Status& why) {
      if (!silent_) channel_->send(FrameType::kAbort, encode(why));
      phase() == Phase::kReady ? announce_abort(why) : fail(why);
    });
  }

  ~Impl() override { loop_.join(); }

  bool here() const { return loop_.here(); }

  // Returns whether the registration met the end of an earlier job, so it should be tried again.
  bool again() {
    std::lock_guard lock(mutex_);
    return again_;
  }

  void decline(const Status& why) {
    channel_->send(FrameType::kAbort, encode(why));
    loop_.start("herring-control");
    drain();
  }

  // Registers and waits; see Member::join.
  Status join(Registration registration, const StartServer& start_server) {
    registration.host_name = host_name();
    is_server_ = std::holds_alternative<ServerRegistration>(registration.what);
    channel_->send(FrameType::kRegister, encode(registration));
    beat();
    check_silence();
    loop_.start("herring-control");
    const Nanos deadline = loop_.now() + registration.patience + kLastWord;
    Phase phase = wait_for_news(Phase::kRegistered, deadline);
    if (phase == Phase::kSpare) phase = wait_for_news(Phase::kSpare, kEndless);
    if (phase == Phase::kAssembled) {
      bool start = false;
      uint32_t rank = 0;
      Cluster so_far;
      {
        std::lock_guard lock(mutex_);
        start = start_server_;
        rank = index_;
        so_far = cluster_;
      }
      if (start && start_server) {
        const uint32_t node = so_far.workers[rank].node;
        const Status started = without_exceptions([&] { return start_server(so_far, node); });
        if (!started.ok()) {
          send_abort({started.code(), concat("the colocated server of node ", node,
                                             " could not start: ", started.message())});
          drain();
          return started;
        }
      }
      phase = wait_for_news(Phase::kAssembled, deadline);
    }
    std::lock_guard lock(mutex_);
    if (phase == Phase::kReady) return {};
    if (phase == Phase::kFailed) return failure_;
    return {Code::kTimeout, concat("the rendezvous ", options_.rendezvous.to_string(),
                                   " has not completed the registration within ",
                                   in_seconds(registration.patience))};
  }

  const Cluster& cluster() const { return cluster_; }
  const std::vector<Loss>& gone() const { return gone_; }
  uint32_t index() const { return index_; }
  const std::string& local_address() const { return local_address_; }
  uint32_t epoch() const { return epoch_; }
  Nanos read_until() const { return read_until_; }

  void watch(Announcements::Watcher watcher) {
    if (!here()) return;
    loop_.post([this, watcher = std::move(watcher)]() mutable {
      announcements_.watch(std::move(watcher));
    });
  }

  void send_abort(const Status& why, uint8_t flags = 0) {
    if (!here()) return;
    loop_.post([this, why, flags] {
      if (!silent_) channel_->send(FrameType::kAbort, encode(why), flags);
    });
  }

  void end_part(const Status& why) {
    send_abort(why, kFlagPart);
    part_ended_ = true;
  }

  void await_part_told() {
    if (here() && part_ended_) wait_for(kPartTold, &Impl::part_told_);
  }

  void report_server(const ServerReport& report) {
    if (!here()) return;
    loop_.post([this, text = encode(report)] {
      if (!silent_) channel_->send(FrameType::kServerNews, text);
    });
  }

  // Runs `call` with the teller on the member's thread.
  template <typename Call>
  void tell(Call call) {
    if (!here()) return;
    loop_.post([this, call = std::move(call)]() mutable { call(*teller_); });
  }

  void settle() noexcept {
    static_cast<void>(without_exceptions([this] {
      loop_.ask([] { return true; });
      return Status();
    }));
  }

  void goodbye() {
    if (!here()) return;
    loop_.post([this] {
      silent_ = true;
      teller_->silence();
      ended_ = true;
      announcements_.clear();
      if (channel_->closed()) return note(&Impl::goodbye_done_);
      channel_->send(FrameType::kGoodbye);
    });
    if (!loop_.in_loop_thread()) wait_for(kGoodbyeTimeout, &Impl::goodbye_done_);
  }

  // Waits until what is queued (an abort) has been sent.
  void drain() noexcept {
    if (!here()) return;
    const Status asked = without_exceptions([this] {
      loop_.post([this] { poll_drained(loop_.now() + kDrainTimeout); });
      return Status();
    });
    if (asked.ok()) wait_for(kDrainTimeout + kSecond, &Impl::drained_);
  }

 private:
  enum class Phase { kRegistered, kAssembled, kSpare, kReady, kFailed };

  Phase wait_for_news(Phase seen, Nanos deadline) {
    while (!interrupted()) {
      std::unique_lock lock(mutex_);
      const Nanos left = std::min(deadline - loop_.now(), kInterruptInterval);
      if (left > 0) {
        changed_.wait_for(lock, std::chrono::nanoseconds(left), [&] { return phase_ != seen; });
      }
      if (left <= 0 || phase_ != seen) return phase_;
    }
    return seen;
  }

  void set_phase(Phase phase) {  // requires mutex_
    phase_ = phase;
    changed_.notify_all();
  }

  Phase phase() {
    std::lock_guard lock(mutex_);
    return phase_;
  }

  void fail(const Status& why, bool again = false) {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kReady || phase_ == Phase::kFailed) return;
    failure_ = why;
    again_ = again;
    set_phase(Phase::kFailed);
  }

  Status on_message(Channel&, FrameType type, uint8_t flags, std::string_view payload) override {
    greeted_ = true;
    switch (type) {
      case FrameType::kHeartbeat: {
        HERRING_RETURN_IF_ERROR(decode_rhythm(payload).move_to(rhythm_));
        read_until_ = rhythm_.echo;
        teller_->heartbeat(rhythm_);
        return {};
      }
      case FrameType::kCluster:
      case FrameType::kReady: return on_cluster(type, payload);
      case FrameType::kAbort: {
        Status why;
        HERRING_RETURN_IF_ERROR(decode_abort(payload, why));
        phase() == Phase::kReady ? announce_abort(why) : fail(why, flags == kFlagAgain);
        note(&Impl::part_told_);
        return {};
      }
      case FrameType::kWarning:
        log(LogLevel::kWarning, payload);
        return {};
      case FrameType::kRankTexts:
      case FrameType::kRecord:
      case FrameType::kTimeline: return teller_->on_message(type, flags, payload);
      case FrameType::kPeerLost: {
        HERRING_ASSIGN_OR_RETURN(auto& notice, decode_losses(payload));
        return on_losses(std::move(notice));
      }
      case FrameType::kServerNews: {
        HERRING_ASSIGN_OR_RETURN(auto& news, decode_replacement(payload));
        return on_replacement(std::move(news));
      }
      case FrameType::kGoodbye:
        if (flags == 0) {
          note(&Impl::goodbye_done_);
          channel_->close();
        } else if (flags == kFlagEnd) {
          report_end(End::kAllLeft);
        } else if (flags == kFlagStop) {
          rendezvous_ended("has left the job (shutdown)", true);
          channel_->close();
        }
        return {};
      default:
        return breach("unexpected ", wire::name_of(type), " message");
    }
  }

  Status on_cluster(FrameType type, std::string_view payload) {
    HERRING_ASSIGN_OR_RETURN(auto& message, decode_cluster(payload));
    const size_t limit = is_server_ ? message.cluster.servers.size() : message.cluster.size;
    std::lock_guard lock(mutex_);
    const bool in_order = type == FrameType::kReady
                              ? phase_ != Phase::kReady && phase_ != Phase::kFailed
                              : phase_ == Phase::kRegistered && !is_server_;
    const uint32_t epoch = message.cluster.epoch;
    // A server may come later, as a replacement.
    const bool first = epoch == (type == FrameType::kReady ? kFirstEpoch : 0);
    if (!in_order || message.index >= limit ||
        (first ? !message.gone.empty() : !is_server_ || epoch <= kFirstEpoch)) {
      return breach("an unexpected description of the cluster");
    }
    gone_ = std::move(message.gone);
    for (const Loss& loss : gone_) known_losses_.emplace(loss.is_server, loss.index);
    index_ = message.index;
    start_server_ = message.start_server;
    cluster_ = std::move(message.cluster);
    epoch_ = epoch;
    set_phase(type == FrameType::kReady ? Phase::kReady : Phase::kAssembled);
    return {};
  }

  Status on_losses(LossNotice notice) {
    HERRING_RETURN_IF_ERROR(check_next(notice, epoch_));
    for (Loss& loss : notice.losses) {
      // A member hears of losses only after it knows the cluster, and no process is lost twice.
      const size_t limit = loss.is_server ? cluster_.servers.size() : cluster_.workers.size();
      if (loss.index >= limit || phase() != Phase::kReady || is_lost(loss.is_server, loss.index)) {
        return breach("a loss notice for an unknown or already lost process");
      }
      if (!loss.serving.empty() && !fits(loss.serving)) {
        return breach("a malformed set of servers");
      }
      if (loss.text.empty()) {
        loss.text = concat(loss.is_server ? cluster_.describe_server(loss.index)
                                          : cluster_.describe_rank(loss.index),
                           " has left the job (shutdown)");
      }
      report_loss(std::move(loss));
    }
    return {};
  }

  bool fits(const std::vector<bool>& serving) const {
    return serving.size() == cluster_.servers.size();
  }

  Status on_replacement(Replacement news) {
    using Stage = Replacement::Stage;
    if (news.stage == Stage::kSpare) {
      std::lock_guard lock(mutex_);
      if (phase_ != Phase::kRegistered || !is_server_) return breach("unexpected news of a spare");
      log(LogLevel::kWarning, "waits as a spare: all dedicated servers of the job serve, and this "
          "one takes the place of the next that is lost");
      set_phase(Phase::kSpare);
      return {};
    }
    const bool serves = news.stage == Stage::kServes;
    // A place is free if its server is lost.
    if (phase() != Phase::kReady || news.server >= cluster_.servers.size() ||
        !cluster_.servers[news.server].dedicated || !is_lost(true, news.server) ||
        (serves && (news.epoch != epoch_ + 1 || !fits(news.serving)))) {
      return breach("unexpected news of server ", news.server);
    }
    if (serves) {
      known_losses_.erase({true, news.server});
      epoch_ = news.epoch;
    }
    announce([news = std::move(news)](const auto& watcher) {
      if (watcher.replaced) watcher.replaced(news);
    });
    return {};
  }

  void on_dropped(Channel& channel, const Status& why) override {
    const Nanos silent = loop_.now() - channel.heard_at();
    rendezvous_ended(concat("is lost: its connection ended without a goodbye, ", in_seconds(silent),
                            " after it was last heard from (", why.message(), ")"),
                     false);
  }

  // The process that hosts the rendezvous is gone, and with it all news of the others.
  void rendezvous_ended(const std::string& how, bool left) {
    for (bool Impl::*const over : {&Impl::goodbye_done_, &Impl::part_told_}) note(over);
    const std::string rendezvous = options_.rendezvous.to_string();
    if (phase() == Phase::kSpare) {
      return fail({left ? Code::kShutdown : Code::kPeerLost,
                   concat("rank 0, which hosts the rendezvous ", rendezvous, ", ", how,
                          ", while this server waited as a spare")});
    }
    if (phase() != Phase::kReady) {
      fail({Code::kPeerLost, concat("rank 0, which hosts the rendezvous ", rendezvous, ", ", how,
                                    ", before everybody had registered")},
           !greeted_);
      return;
    }
    // Nobody else counts this loss.
    const bool known = is_lost(false, 0);
    if (!known) {
      report_loss({false, left, 0,
                   concat(cluster_.describe_rank(0), ", which hosts the rendezvous ", rendezvous,
                          ", ", how),
                   epoch_ + 1, {}});
    }
    if ((left || known) && is_server_) report_end(End::kNoNews);
  }

  bool is_lost(bool is_server, uint32_t index) const {
    return known_losses_.count({is_server, index}) != 0;
  }

  void report_loss(Loss loss) {
    known_losses_.emplace(loss.is_server, loss.index);
    epoch_ = loss.epoch;
    announce([loss = std::move(loss)](const auto& watcher) {
      if (watcher.lost) watcher.lost(loss);
    });
  }

  void report_end(End end) {
    if (phase() == Phase::kSpare) {
      return fail({Code::kShutdown, "the job has ended while this server waited as a spare"});
    }
    if (std::exchange(ended_, true)) return;
    announce([end](const auto& watcher) {
      if (watcher.ended) watcher.ended(end);
    });
  }

  void announce_abort(const Status& why) {
    announce([why](const auto& watcher) {
      if (watcher.aborted) watcher.aborted(why);
    });
  }

  void announce(Announcements::Announcement announcement) {
    if (!silent_) announcements_.add(std::move(announcement));
  }

  void beat() {
    channel_->send(FrameType::kHeartbeat, encode(Beat{loop_.now()}));
    loop_.call_after(rhythm_.interval, [this] { beat(); });
  }

  void check_silence() {
    const Nanos now = loop_.now();
    const Nanos late = silence_.tick(now, check_period_);
    channel_->check_acknowledged(late, now);
    const Nanos silent = channel_->silent(now);
    if (!channel_->closed() && silent > rhythm_.timeout) {
      channel_->close();
      rendezvous_ended(concat("is lost: nothing was heard from it or its system for ",
                              in_seconds(silent), " (timeout ",
                              in_seconds(rhythm_.timeout), ")"),
                       false);
    }
    check_period_ = std::min(rhythm_.interval, rhythm_.timeout / 8);
    loop_.call_after(check_period_, [this] { check_silence(); });
  }

  // Notes that something is over, and waits for that on another thread.
  void note(bool Impl::*over) {
    std::lock_guard lock(mutex_);
    this->*over = true;
    changed_.notify_all();
  }
  void wait_for(Nanos most, bool Impl::*over) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(most), [&] { return this->*over; });
  }

  void poll_drained(Nanos deadline) {
    if (channel_->backlog() == 0 || loop_.now() >= deadline) return note(&Impl::drained_);
    loop_.call_after(kMillisecond, [this, deadline] { poll_drained(deadline); });
  }

  const Options options_;
  transport::EpollLoop loop_;
  std::unique_ptr<Channel> channel_;
  std::optional<Teller> teller_;
  std::string local_address_;
  bool is_server_ = false;

  Rhythm rhythm_;
  WatcherDelay silence_;
  Nanos check_period_ = 0;
  Announcements announcements_;
  bool silent_ = false;  // set by goodbye()
  bool greeted_ = false;  // the rendezvous has sent something
  bool ended_ = false;
  std::set<std::pair<bool, uint32_t>> known_losses_;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<Nanos> read_until_{0};
  std::atomic<bool> part_ended_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_; index_ and cluster_ until the phase is kReady.
  Phase phase_ = Phase::kRegistered;
  Status failure_;
  bool again_ = false;
  bool start_server_ = false;
  uint32_t index_ = 0;
  Cluster cluster_;
  std::vector<Loss> gone_;
  bool goodbye_done_ = false, drained_ = false, part_told_ = false;
};

Member::Member(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Member::~Member() {
  if (!impl_->here()) {
    impl_.release();  // in a forked child: threads and locks belong to the parent
    return;
  }
  impl_->drain();
}

namespace {

constexpr Nanos kPause = 20 * kMillisecond, kLongestPause = 500 * kMillisecond;
constexpr Nanos kDeclining = 10 * kSecond;  // rank 0 may still be about to start

}  // namespace

// Tries again, until the deadline, if an earlier job of the same processes has not ended yet.
template <typename Register>
Result<std::unique_ptr<Member>> Member::meet(const Options& options, wire::Role role, uint32_t rank,
                                             Register&& register_) {
  const Nanos deadline = monotonic_now() + options.connect_timeout;
  Reminders reminders = reminders_of(options);
  for (Nanos pause = kPause;; pause = std::min(pause * 2, kLongestPause)) {
    HERRING_ASSIGN_OR_RETURN(auto& fd, connect(options, role, rank, deadline, reminders));
    auto impl = std::make_unique<Impl>(options, std::move(fd));
    const Status status = register_(*impl, std::max<Nanos>(deadline - monotonic_now(), 0));
    if (status.ok()) return std::unique_ptr<Member>(new Member(std::move(impl)));
    if (!impl->again() || monotonic_now() + pause >= deadline || interrupted()) return status;
    impl.reset();
    poll_until(nullptr, 0, monotonic_now() + pause);
  }
}

Result<std::unique_ptr<Member>> Member::join(const Options& options,
                                             const WorkerRegistration& registration,
                                             const StartServer& start_server) {
  HERRING_RETURN_IF_ERROR(check_limits(registration));
  return meet(options, wire::Role::kWorker, registration.rank, [&](Impl& impl, Nanos patience) {
    return impl.join({registration, getpid(), patience}, start_server);
  });
}

Result<std::unique_ptr<Member>> Member::join(const Options& options,
                                             const ServerRegistration& registration) {
  return meet(options, wire::Role::kServer, ~0u, [&](Impl& impl, Nanos patience) {
    ServerRegistration complete = registration;
    if (complete.host.empty()) complete.host = impl.local_address();
    // A server may have been waiting long before the workers came.
    if (registration.dedicated) patience = options.connect_timeout;
    return impl.join({complete, getpid(), patience}, nullptr);
  });
}

void Member::decline(Options options, wire::Role role, uint32_t rank, const Status& why) {
  options.connect_timeout = std::min(options.connect_timeout, kDeclining);
  Reminders reminders = reminders_of(options);
  auto fd = connect(options, role, rank, monotonic_now() + options.connect_timeout, reminders);
  if (!fd.ok()) return;  // those who wait will report this process as missing
  Impl(options, std::move(*fd)).decline(why);
}

Result<std::string> Member::find_own_address(const Options& options) {
  Reminders reminders = reminders_of(options);
  auto probe = reach(options, monotonic_now() + options.connect_timeout, reminders, false,
                     [&](Nanos until) {
                       return transport::tcp::connect_to(options.rendezvous, "", until);
                     });
  if (!probe.ok()) return cannot_join(options, probe.status());
  HERRING_ASSIGN_OR_RETURN(auto& local, transport::tcp::local_address(probe->get()));
  return local.host;
}

const Cluster& Member::cluster() const { return impl_->cluster(); }
const std::vector<Loss>& Member::gone() const { return impl_->gone(); }
uint32_t Member::server_index() const { return impl_->index(); }
std::string Member::local_address() const { return impl_->local_address(); }
uint32_t Member::epoch() const { return impl_->epoch(); }
Nanos Member::read_until() const { return impl_->read_until(); }

void Member::watch(OnLoss on_loss, OnAbort on_abort, OnEnd on_end, OnReplacement on_replacement) {
  impl_->watch({std::move(on_loss), std::move(on_abort), std::move(on_end),
                std::move(on_replacement)});
}

void Member::report_server(uint32_t server, uint32_t number, bool reachable,
                           const std::string& why) {
  impl_->report_server({server, number, reachable, why});
}

void Member::observe(Observer observer) {
  impl_->tell([observer = std::move(observer)](Teller& teller) { teller.observe(observer); });
}

void Member::report(observe::Report report) {
  impl_->tell([report = std::move(report)](Teller& teller) { teller.report(report); });
}

void Member::timeline(observe::ProcessRecord entries, bool last) {
  impl_->tell([entries = std::move(entries), last](Teller& teller) {
    teller.timeline(entries, last);
  });
}

void Member::failed(const std::string& why) {
  impl_->tell([why](Teller& teller) { teller.failed(why); });
}

void Member::settle() { impl_->settle(); }

void Member::abort(const std::string& reason) { abort(Status(Code::kShutdown, reason)); }
void Member::abort(const Status& why) { impl_->send_abort(why); }

void Member::end_part(const Status& why) { impl_->end_part(why); }

void Member::await_part_told() { impl_->await_part_told(); }

void Member::goodbye() { impl_->goodbye(); }

}  // namespace herring::control
