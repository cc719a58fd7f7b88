#include "control/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/settings.h"
#include "control/channel.h"
#include "control/gathering.h"
#include "control/messages.h"
#include "control/peer.h"
#include "control/running_job.h"
#include "control/status_service.h"
#include "control/watch.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/transport.h"

namespace herring::control {
namespace {

using transport::tcp::Acceptor;
using transport::tcp::Socket;
using transport::Address;
using wire::FrameType;

// Fits a registration (64 settings of 2 x 4 kB) and nothing much larger.
constexpr uint32_t kMaxFromMember = 1 << 20;
// How long stop() waits for members that have not said goodbye, and then for connections to close.
constexpr Nanos kLinger = kSecond;
constexpr Nanos kClosing = 300 * kMillisecond;
// How long stop() waits for a flight record that is being collected.
constexpr Nanos kRecording = 300 * kMillisecond;

}  // namespace

// Accepts connections, listens for heartbeats on all of them, and passes what members say to the
// gathering or, once that is complete, to the running job. Owns the thread and the connections.
// Everything below runs on that thread, except tell_all(), stop(), and start(), which runs before.
class Rendezvous::Impl final : public Channel::Owner {
 public:
  Impl(GuardedFd listener, RendezvousOptions options)
      : options_(std::move(options)),
        acceptor_(
            loop_, std::move(listener), options_.credentials,
            // Accepts every client that proves itself: the answer to its registration says more.
            // Who knows an incarnation looks for a server or a worker that listened here before.
            [](const wire::Hello& hello) {
              return hello.incarnation == 0 ? wire::Verdict::kAccepted : wire::Verdict::kOtherStart;
            },
            [this](Socket socket, const wire::Hello& hello, const Address& peer) {
              admit(std::move(socket), hello, peer);
            }),
        address_(acceptor_.address()),
        silence_(loop_.now()),
        gathering_(loop_, peers_, options_, address_,
                   {[this] { begin_job(); },
                    [this] { set(all_told_); },
                    [this](Peer& peer) { job_->offer(peer); }}) {
    acceptor_.on_refused([this](const Address& peer, const std::string& why) {
      gathering_.on_refused(peer.host, why);
    });
  }

  ~Impl() override { loop_.join(); }

  void start() {
    // If this process runs out of resources, the whole job loses its rendezvous, so all are told.
    loop_.on_exhausted([this](const Status& why) {
      log(LogLevel::kError, "the rendezvous ends the job: ", why.message());
      const std::string text = concat("rank 0, which hosts the rendezvous: ", why.message());
      for (const auto& peer : peers_) {
        peer->channel->send(FrameType::kAbort, encode(Status(why.code(), text)));
      }
    });
    beat();
    check_silence();
    gathering_.start();
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
      if (slice <= 0 || flag_set_.wait_for(lock, std::chrono::nanoseconds(slice), told)) {
        return;
      }
    }
  }

  void stop() {
    if (!loop_.here()) return;
    const Status asked = without_exceptions([this] {
      loop_.post([this] { begin_stop(); });
      return Status();
    });
    if (asked.ok()) {
      std::unique_lock lock(mutex_);
      // The loop keeps its own deadlines; this deadline is for a loop that hangs.
      flag_set_.wait_for(lock, std::chrono::nanoseconds(kLinger + kClosing + kSecond),
                         [this] { return stopped_; });
    }
    loop_.join();
  }

  bool here() const { return loop_.here(); }

  Status begin_timeline(const std::string& path) {
    return ask([&] { return watch_->begin_timeline(path); });
  }
  Status end_timeline() {
    struct Answer {
      std::mutex mutex;
      std::condition_variable came;
      bool ended = false;
      std::shared_ptr<observe::FileWriter> file;
    };
    const auto answer = std::make_shared<Answer>();
    HERRING_RETURN_IF_ERROR(ask([&] {
      watch_->end_timeline([answer](std::shared_ptr<observe::FileWriter> file) {
        std::lock_guard lock(answer->mutex);
        answer->ended = true;
        answer->file = std::move(file);
        answer->came.notify_all();
      });
      return Status();
    }));
    // The loop keeps its own deadline; this one is for a loop that ends.
    std::unique_lock lock(answer->mutex);
    answer->came.wait_for(lock, std::chrono::nanoseconds(2 * kSecond),
                          [&answer] { return answer->ended; });
    if (answer->file && !answer->file->finish()) {
      log(LogLevel::kWarning, "the timeline ", answer->file->path(),
          " is not complete yet: the disk has not taken it in time");
    }
    return {};
  }
  Result<std::string> write_record(const std::string& why) {
    std::string path;
    const Status status = ask([&] { return watch_->write_record(why).move_to(path); });
    if (!status.ok()) return status;
    return path;
  }

 private:
  template <typename Call>
  Status ask(const Call& call) {
    const auto asked = [&]() -> Status {
      if (watch_) return call();
      return {Code::kConfiguration, "the job is not observed (HERRING_OBSERVE)"};
    };
    return loop_.ask(asked).value_or(Status(Code::kShutdown, "herring was shut down"));
  }

  // ---- connections ----

  void admit(Socket socket, const wire::Hello& hello, const Address& address) {
    auto peer = std::make_unique<Peer>();
    peer->index = hello.rank;
    peer->host = address.host;
    peer->accepted = loop_.now();
    const auto connection = transport::tcp::make_connection(std::move(socket), address.to_string());
    peer->channel = std::make_unique<Channel>(loop_, *connection, kMaxFromMember, *this);
    peer->channel->user = peer.get();
    peer->channel->send(FrameType::kHeartbeat, rhythm(*peer));
    peers_.push_back(std::move(peer));
  }

  static Peer& peer_of(const Channel& channel) { return *static_cast<Peer*>(channel.user); }

  Status on_message(Channel& channel, FrameType type, uint8_t flags,
                    std::string_view payload) override {
    Peer& peer = peer_of(channel);
    if (type == FrameType::kHeartbeat) {
      const auto beat = decode_beat(payload);
      if (!beat.ok()) return nonsense("a malformed heartbeat");
      const bool first = std::exchange(peer.beat_sent, beat->sent) == 0;
      peer.beat_received = loop_.now();
      // Its clock is compared at once, because a job may be over before the next beat.
      if (first) peer.channel->send(FrameType::kHeartbeat, rhythm(peer));
      return {};
    }
    if (peer.gone) {  // the peer may not know yet that it is gone
      if (type == FrameType::kGoodbye) channel.send(FrameType::kGoodbye);
      return {};
    }
    if (type == FrameType::kRegister) return gathering_.on_register(peer, payload);
    if (type == FrameType::kAbort) return on_abort(peer, flags, payload);
    if (peer.kind == Peer::Kind::kUnknown) return nonsense("a message before its registration");
    if (type == FrameType::kGoodbye) {
      on_goodbye(peer);
      return {};
    }
    if (type == FrameType::kReport) return on_report(peer, payload);
    if (type == FrameType::kServerNews && job_) return job_->on_server_report(peer, payload);
    if (type == FrameType::kRecord && watch_) {
      Status status = watch_->record(peer, flags == kFlagFailed, payload);
      check_stopped();
      return status;
    }
    if (type == FrameType::kTimeline && watch_) {
      return watch_->timeline(peer, flags == kFlagLast, payload);
    }
    return nonsense(concat("a message of type ", wire::name_of(type)));
  }

  Status on_abort(Peer& peer, uint8_t flags, std::string_view payload) {
    Status why;
    if (!decode_abort(payload, why).ok()) return nonsense("a malformed abort");
    if (peer.kind == Peer::Kind::kUnknown) {
      gathering_.on_declined(peer, why);
    } else if (peer.kind == Peer::Kind::kSpare) {
      peer.gone = true;
    } else if (job_ && flags == kFlagPart && peer.kind == Peer::Kind::kWorker) {
      job_->end_part(peer, why);
    } else if (job_) {
      if (watch_ && !job_->can_spare(peer)) watch_->expect_failures();
      job_->abort(peer, why);
    } else {
      gathering_.abort(peer, why);
    }
    return {};
  }

  Status on_report(const Peer& peer, std::string_view payload) {
    if (!job_) return nonsense("a report before the job began");
    return watch_ ? watch_->report(peer, payload) : Status();
  }

  void begin_job() {
    const RunningJob::Options options{options_.failover, options_.connect_timeout};
    job_.emplace(loop_, peers_, gathering_.cluster(), options,
                 RunningJob::Rendezvous{
                     [this](Peer& peer, const Status& why, const std::string& how) {
                       give_up(peer, why, how);
                     },
                     [this](const Peer& peer) {
                       if (watch_) watch_->serves(peer);
                     }});
    if (!options_.observe) return;
    Watch::Options watching;
    watching.job = options_.job;
    watching.label = options_.label;
    watching.failover = options_.failover;
    watching.report_every = options_.report_every;
    watching.heartbeat_interval = options_.heartbeat_interval;
    watching.flight_folder = options_.flight_folder;
    watching.timeline = options_.timeline;
    watching.on_signal = options_.status != "off";
    watching.deadlocked = [this](const std::string& who) { job_->deadlocked(who); };
    watch_.emplace(loop_, peers_, gathering_.cluster(), std::move(watching));
    serve_status();
  }

  // The job goes on if nobody can ask for its state.
  void serve_status() {
    if (options_.status == "off") return;
    const auto answer = [this](StatusService::Question question) {
      const observe::Picture picture = watch_->picture();
      switch (question) {
        case StatusService::Question::kText: return observe::as_text(picture, false);
        case StatusService::Question::kAll: return observe::as_text(picture, true);
        case StatusService::Question::kJson: return observe::as_json(picture);
        case StatusService::Question::kMetrics: return observe::as_metrics(picture);
        case StatusService::Question::kRecord: {
          const auto written = watch_->write_record("herring status --record");
          return written.ok() ? *written + "\n"
                              : concat("error: ", written.status().message(), "\n");
        }
      }
      return std::string();
    };
    // Whoever is logged in on this machine finds the job by the socket, whatever else is served.
    serve_status("", StatusService::listen_locally(loop_, options_.job, answer));
    if (options_.status == "local") return;
    const auto address = transport::parse_address(options_.status, "HERRING_STATUS");
    serve_status(concat(" at ", options_.status),
                 address.ok() ? StatusService::listen_at(loop_, *address,
                                                         options_.credentials.secret, answer)
                              : address.status());
  }

  void serve_status(const std::string& where, Result<std::unique_ptr<StatusService>> service) {
    if (!service.ok()) {
      return log(LogLevel::kWarning, "herring status cannot ask this job", where,
                 ", which goes on: ", service.status().message());
    }
    log(LogLevel::kInfo, "answers herring status at ", (*service)->place());
    statuses_.push_back(std::move(*service));
  }

  void on_goodbye(Peer& peer) {
    peer.gone = true;
    if (peer.kind == Peer::Kind::kSpare) return;
    note_gone(peer, true);
    if (job_) {
      job_->leave(peer);
    } else {
      gathering_.leave(peer);
    }
  }

  // To be called before the job is told.
  void note_gone(const Peer& peer, bool left) {
    if (!watch_ || job_->comes(peer)) return;
    job_->can_spare(peer) ? watch_->spared(peer) : watch_->gone(peer, left);
  }

  // Ends a member that may still be there, and tells it why.
  void give_up(Peer& peer, const Status& why, const std::string& how) {
    peer.channel->send(FrameType::kAbort, encode(why));
    lose(peer, how);
  }

  void lose(Peer& peer, const std::string& how) {
    if (!peer.is_member()) return;
    peer.gone = true;
    if (dismissed_) return;
    note_gone(peer, false);
    if (job_) {
      job_->lose(peer, how);
    } else {
      gathering_.lose(peer, how);
    }
  }

  void on_dropped(Channel& channel, const Status& why) override {
    Peer& peer = peer_of(channel);
    const Nanos silent = loop_.now() - channel.heard_at();
    if (why.code() == Code::kPeerLost) {
      lose(peer, concat("its connection ended without a goodbye, ", in_seconds(silent),
                        " after it was last heard from"));
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

  // ---- heartbeats ----

  std::string rhythm(const Peer& peer) const {
    return encode(Rhythm{options_.heartbeat_interval, options_.heartbeat_timeout, peer.beat_sent,
                         peer.beat_received, loop_.now()});
  }

  void beat() {
    for (const auto& peer : peers_) peer->channel->send(FrameType::kHeartbeat, rhythm(*peer));
    loop_.call_after(options_.heartbeat_interval, [this] { beat(); });
  }

  void check_silence() {
    const Nanos now = loop_.now();
    const Nanos period = std::min(options_.heartbeat_interval, options_.heartbeat_timeout / 8);
    const Nanos late = silence_.tick(now, period);
    for (const auto& one : peers_) {
      Peer& peer = *one;
      peer.channel->check_acknowledged(late, now);
      // It costs little to lose a process for which another one can stand in, and nothing to lose
      // one that is gone.
      const bool spare = job_ && job_->can_spare(peer);
      const Nanos silent = spare || peer.gone ? now - peer.channel->heard_at()
                                              : peer.channel->silent(now);
      const bool mute = peer.kind == Peer::Kind::kUnknown && !peer.gone &&
                        now - peer.accepted > options_.connect_timeout;
      if ((silent <= options_.heartbeat_timeout && !mute) || peer.channel->closed()) continue;
      if (peer.is_member()) {
        const std::string held_up =
            concat(spare ? kGivenUp : "", "this ", spare ? "process" : "machine",
                   " was not heard from for ", in_seconds(silent), ", more than the ",
                   in_seconds(options_.heartbeat_timeout), " of HERRING_HEARTBEAT_TIMEOUT",
                   spare ? "" : "; the others have given up on it");
        give_up(peer, {Code::kPeerLost, held_up},
                concat("nothing was heard from it", spare ? "" : " or its system", " for ",
                       in_seconds(silent), " (timeout ", in_seconds(options_.heartbeat_timeout),
                       ")"));
        peer.channel->check_acknowledged(silent, now);  // time to read why, if it comes back
      } else {
        peer.channel->close();
      }
    }
    std::erase_if(peers_, [](const auto& peer) { return peer->channel->closed(); });
    check_stopped();
    loop_.call_after(period, [this] { check_silence(); });
  }

  // ---- stopping ----

  bool somebody_stays() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer->kind != Peer::Kind::kUnknown && !peer->channel->closed();
    });
  }

  void begin_stop() {
    stopping_ = true;
    statuses_.clear();
    if (watch_ && watch_->collects()) {
      // Members that fail for the same reason are about to tell what they did.
      records_until_ = loop_.now() + kRecording;
      loop_.call_after(kRecording, [this] { check_stopped(); });
    }
    // Processes that come now belong to the next job, which may use the same address.
    acceptor_.close();
    gathering_.stop();
    loop_.call_after(kLinger, [this] {
      dismissed_ = true;
      for (const auto& peer : peers_) peer->channel->send(FrameType::kGoodbye, {}, kFlagStop);
      loop_.call_after(kClosing, [this] {
        if (watch_) watch_->finish();
        set(stopped_);
      });
    });
    check_stopped();
  }

  void check_stopped() {
    const bool records = watch_ && watch_->collects() && loop_.now() < records_until_;
    if (!stopping_ || records || somebody_stays()) return;
    if (watch_) watch_->finish();
    set(stopped_);
  }

  void set(bool& flag) {
    std::lock_guard lock(mutex_);
    flag = true;
    flag_set_.notify_all();
  }

  const RendezvousOptions options_;
  transport::EpollLoop loop_;
  Acceptor acceptor_;
  const Address address_;
  WatcherDelay silence_;
  Peers peers_;
  bool reaping_ = false;
  bool stopping_ = false;
  bool dismissed_ = false;   // members that remain were told that the rendezvous ends
  Nanos records_until_ = 0;  // stop() waits until then for a flight record
  Gathering gathering_;
  std::optional<RunningJob> job_;  // set once the gathering is complete
  std::optional<Watch> watch_;     // as job_, unless the job is not observed
  std::vector<std::unique_ptr<StatusService>> statuses_;

  std::mutex mutex_;
  std::condition_variable flag_set_;
  bool stopped_ = false;   // guarded by mutex_
  bool all_told_ = false;  // guarded by mutex_
};

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rendezvous::~Rendezvous() {
  if (!impl_->here()) {
    impl_.release();  // in a forked child: threads and locks belong to the parent
    return;
  }
  stop();
}

Result<std::unique_ptr<Rendezvous>> Rendezvous::start(GuardedFd listener,
                                                      RendezvousOptions options) {
  if (!listener.valid()) return defect("the rendezvous has no listening socket");
  for (const auto& [name, value] :
       {std::pair{"size", options.size}, {"servers", options.dedicated_servers}}) {
    auto read = parse_setting(*find_setting(name), std::to_string(value),
                              concat(environment_name(name), "=", value));
    if (!read.ok()) return read.status();
  }
  if (options.credentials.secret.empty()) {
    return Status(Code::kConfiguration,
                  "the job has no secret; set HERRING_SECRET_FILE to the same file everywhere");
  }
  // Every process may have a connection, and two if it hosts a server.
  const size_t least = size_t{options.size} + options.dedicated_servers;
  HERRING_RETURN_IF_ERROR(transport::tcp::want_descriptors(least + options.size, least));
  Status rhythm = check_rhythm({options.heartbeat_interval, options.heartbeat_timeout});
  if (!rhythm.ok()) return rhythm;
  auto impl = std::make_unique<Impl>(std::move(listener), std::move(options));
  impl->start();
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(impl)));
}

const transport::Address& Rendezvous::address() const { return impl_->address(); }

Status Rendezvous::begin_timeline(const std::string& path) { return impl_->begin_timeline(path); }
Status Rendezvous::end_timeline() { return impl_->end_timeline(); }
Result<std::string> Rendezvous::write_record(const std::string& why) {
  return impl_->write_record(why);
}

void Rendezvous::tell_all(Nanos most) { impl_->tell_all(most); }
void Rendezvous::stop() { impl_->stop(); }

}  // namespace herring::control
