#include "transport/tcp/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace herring::transport::tcp {
namespace {

constexpr Nanos kNoDescriptor = 100 * kMillisecond;
constexpr Nanos kStarved = kSecond;

}  // namespace

// A connection that has not proved itself yet.
class Acceptor::Pending : public DescriptorHandler {
 public:
  Pending(Acceptor& owner, GuardedFd fd, Address peer)
      : owner_(owner), fd_(std::move(fd)), peer_(std::move(peer)) {
    number_ = fd_.get();
    owner_.loop_.add(number_, kForReading, this);
    timer_ = owner_.loop_.call_after(owner_.limits_.patience, [this] {
      timer_ = 0;
      owner_.forget(number_);
    });
  }

  ~Pending() override {
    if (fd_.valid()) owner_.loop_.remove(number_);
    if (timer_ != 0) owner_.loop_.cancel(timer_);
    proved_ ? owner_.suspects_.proved(peer_.host)
            : owner_.suspects_.failed(peer_.host, monotonic_now());
  }

  // Returns until when the connection keeps its place although others want one.
  Nanos kept_until() const {
    const Nanos least = proving_ ? owner_.limits_.fair : owner_.limits_.silent;
    const bool hurried = owner_.suspects_.suspect(peer_.host, since_);
    return since_ + (hurried ? std::min(owner_.limits_.hurried, least) : least);
  }

  void on_ready(uint32_t) override {
    char* into = proving_ ? reinterpret_cast<char*>(&proof_) : reinterpret_cast<char*>(&client_);
    const size_t want = proving_ ? sizeof(proof_) : sizeof(client_);
    const ssize_t n = ::recv(fd_.get(), into + have_, want - have_, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      return owner_.forget(number_);
    }
    have_ += n;
    // A stranger who does not even know the magic gets no answer and no more time.
    if (!proving_ && !wire::may_begin_hello(&client_, have_)) return owner_.forget(number_);
    if (have_ < want) return;
    have_ = 0;
    proving_ ? on_proof() : on_hello();
  }

 private:
  void on_hello() {
    const wire::Verdict verdict = wire::check_client_hello(client_, owner_.credentials_.job);
    server_ = wire::make_server_hello(verdict);
    const bool answered = say(&server_, sizeof(server_));
    if (verdict != wire::Verdict::kAccepted) {
      owner_.refused(peer_, wire::describe_refusal(verdict, client_));
    }
    proving_ = true;
    if (verdict != wire::Verdict::kAccepted || !answered) owner_.forget(number_);
  }

  void on_proof() {
    const wire::Hello hello = wire::hello_of(client_);
    wire::Verdict verdict = wire::Verdict::kWrongSecret;
    if (wire::check_client_proof(client_, server_, proof_, owner_.credentials_.secret)) {
      proved_ = true;
      verdict = owner_.admit_(hello);
    }
    if (verdict != wire::Verdict::kAccepted) owner_.refused(peer_, wire::describe(verdict));
    const wire::VerdictMessage message =
        wire::make_verdict(client_, server_, verdict, owner_.credentials_.secret);
    if (!say(&message, sizeof(message)) || verdict != wire::Verdict::kAccepted) {
      return owner_.forget(number_);
    }
    owner_.loop_.remove(number_);
    GuardedFd fd = std::move(fd_);
    const Address peer = peer_;
    Acceptor& owner = owner_;
    owner.forget(number_);  // destroys this
    owner.accepted_(std::move(fd), hello, peer);
  }

  // A fresh socket takes these few bytes at once.
  bool say(const void* data, size_t bytes) {
    return ::send(fd_.get(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }

  Acceptor& owner_;
  GuardedFd fd_;
  int number_ = -1;
  Address peer_;
  const Nanos since_ = monotonic_now();
  EventLoop::TimerId timer_ = 0;
  bool proving_ = false, proved_ = false;
  size_t have_ = 0;
  wire::ClientHello client_{};
  wire::ServerHello server_{};
  wire::ClientProof proof_{};
};

Acceptor::Acceptor(DescriptorLoop& loop, GuardedFd listener, Credentials credentials, Admit admit,
                   Accepted accepted, Limits limits)
    : loop_(loop),
      listener_(std::move(listener)),
      credentials_(std::move(credentials)),
      limits_(limits),
      admit_(std::move(admit)),
      accepted_(std::move(accepted)),
      suspects_(limits_.failures) {
  if (auto address = local_address(listener_.get()); address.ok()) address_ = *address;
  loop_.add(listener_.get(), kForReading, this);
}

Acceptor::~Acceptor() { close(); }

void Acceptor::close() {
  pending_.clear();
  loop_.cancel(pause_);
  if (!listener_.valid()) return;
  if (pause_ == 0) loop_.remove(listener_.get());
  listener_.reset();
}

void Acceptor::on_ready(uint32_t) {
  for (int i = 0; i < 64; ++i) {
    if (!make_room()) return;
    GuardedFd fd = GuardedFd::open([&] {
      return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (!fd.valid()) {
      const int error = errno;
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        const Nanos wait = drop_one();  // frees a descriptor for the next one
        if (wait == 0) continue;
        starve(error, std::min(wait, kNoDescriptor));
      }
      return;
    }
    starved_since_ = 0;
    auto peer = peer_address(fd.get());
    if (!peer.ok() || !make_flow_socket(fd.get()).ok()) continue;
    const int number = fd.get();
    pending_.emplace(number, std::make_unique<Pending>(*this, std::move(fd), *peer));
  }
}

// Silent strangers cannot exhaust this process, nor keep members out for long. Many members at once
// do not drive each other out: later ones wait in the system's queue.
bool Acceptor::make_room() {
  if (pending_.size() < limits_.pending) return true;
  const Nanos wait = drop_one();
  if (wait > 0) pause(wait);
  return wait == 0;
}

// Drops the connection that has exceeded its time by most. If none has, returns the time until one
// will have.
Nanos Acceptor::drop_one() {
  for (;;) {
    if (pending_.empty()) return kNoDescriptor;
    const size_t before = pending_.size();
    const auto soonest = std::min_element(
        pending_.begin(), pending_.end(), [](const auto& one, const auto& other) {
          return one.second->kept_until() < other.second->kept_until();
        });
    const auto [fd, pending] = std::pair(soonest->first, soonest->second.get());
    const Nanos until = pending->kept_until(), left = until - monotonic_now();
    if (left > 0) return left;
    pending->on_ready(kForReading);  // it may have spoken while this thread was busy
    if (pending_.size() < before) return 0;
    if (pending->kept_until() > until) continue;
    forget(fd);
    return 0;
  }
}

void Acceptor::starve(int error, Nanos wait) {
  const Nanos now = monotonic_now();
  const std::string text = concat("cannot accept a connection on ", address_.to_string(), ": ",
                                  strerror(error));
  if (starved_since_ == 0) {
    starved_since_ = now;
    log(LogLevel::kWarning, text);
  }
  pause(wait);
  if (starved_ && now - starved_since_ > kStarved) {
    starved_({Code::kInternal, concat(text, " (for ", to_seconds(now - starved_since_), " s)")});
  }
}

// Stops watching the listener: the waiting connection would wake the loop again and again.
void Acceptor::pause(Nanos time) {
  loop_.remove(listener_.get());
  pause_ = loop_.call_after(time, [this] { resume(); });
}

void Acceptor::resume() {
  if (pause_ == 0) return;
  loop_.cancel(std::exchange(pause_, 0));
  loop_.add(listener_.get(), kForReading, this);
}

void Acceptor::forget(int fd) {
  pending_.erase(fd);
  if (pending_.size() + 1 == limits_.pending) resume();
}

void Acceptor::refused(const Address& peer, const std::string& why) {
  constexpr uint64_t kLogged = 20;  // so that strangers do not fill the log
  log(refusals_++ < kLogged ? LogLevel::kWarning : LogLevel::kDebug, "refused ", peer.to_string(),
      ": ", why);
  if (refused_) refused_(peer, why);
}

}  // namespace herring::transport::tcp
