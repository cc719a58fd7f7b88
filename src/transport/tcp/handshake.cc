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
      : owner_(owner), socket_(std::move(fd)), peer_(std::move(peer)) {
    number_ = socket_.get();
    owner_.loop_.add(number_, kForReading, this);
    timer_ = owner_.loop_.call_after(owner_.limits_.patience, [this] {
      timer_ = 0;
      owner_.forget(number_);
    });
  }

  ~Pending() override {
    if (socket_.valid()) owner_.loop_.remove(number_);
    if (timer_ != 0) owner_.loop_.cancel(timer_);
    proved_ ? owner_.suspects_.proved(peer_.host)
            : owner_.suspects_.failed(peer_.host, monotonic_now());
  }

  // Returns until when the connection keeps its place although others want one.
  Nanos kept_until() const {
    const bool speaks =
        state_ == State::kProof || (socket_.tls() != nullptr && state_ != State::kRefused);
    const Nanos least = speaks ? owner_.limits_.fair : owner_.limits_.silent;
    const bool hurried = owner_.suspects_.suspect(peer_.host, since_);
    return since_ + (hurried ? std::min(owner_.limits_.hurried, least) : least);
  }

  void on_ready(uint32_t) override {
    if (state_ == State::kRefused) return drain();
    if (state_ == State::kTls) return shake();
    const bool proving = state_ == State::kProof;
    char* into = proving ? reinterpret_cast<char*>(&proof_) : reinterpret_cast<char*>(&client_);
    const size_t want = proving ? sizeof(proof_)
                        : state_ == State::kOpening ? wire::kOpeningBytes : sizeof(client_);
    const ssize_t n = socket_.read(into + have_, want - have_);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return end_in_hello();
    have_ += n;
    // A stranger who does not even know the magic gets no answer and no more time.
    if (!proving && !wire::may_begin_hello(&client_, have_)) return owner_.forget(number_);
    if (have_ < want) return;
    if (state_ == State::kOpening) return on_opening();
    have_ = 0;
    proving ? on_proof() : on_hello();
  }

 private:
  // kOpening, kTls, kHello and kProof say what comes next. In kRefused, what comes is dropped. The
  // system resets a connection that is closed with unread input, and the client would not hear why.
  enum class State { kOpening, kTls, kHello, kProof, kRefused };

  wire::Encryption encryption() const {
    const auto& tls = owner_.credentials_.tls;
    return tls ? tls->encryption() : wire::Encryption::kOff;
  }

  void on_opening() {
    const wire::Verdict verdict = wire::check_opening(client_, encryption());
    if (verdict != wire::Verdict::kAccepted) return refuse_hello(verdict);
    if (encryption() == wire::Encryption::kOff) {
      state_ = State::kHello;  // the bytes so far are its beginning
      return on_ready(kForReading);
    }
    have_ = 0;
    state_ = State::kTls;
    socket_.encrypt(*owner_.credentials_.tls, true);
    shake();
  }

  void shake() {
    using Step = TlsSession::Step;
    const Step step = socket_.tls()->shake();
    if (step == Step::kFailed) return end_in_hello();
    owner_.loop_.modify(number_, step == Step::kWrites ? kForReading | kForWriting : kForReading);
    if (step != Step::kDone) return;
    state_ = State::kHello;
    on_ready(kForReading);
  }

  void on_hello() {
    const wire::Verdict verdict =
        wire::check_client_hello(client_, owner_.credentials_.job, encryption());
    if (verdict != wire::Verdict::kAccepted) return refuse_hello(verdict);
    server_ = wire::make_server_hello(verdict, encryption());
    state_ = State::kProof;
    if (!socket_.write_all(&server_, sizeof(server_))) owner_.forget(number_);
  }

  void refuse_hello(wire::Verdict verdict) {
    server_ = wire::make_server_hello(verdict, encryption());
    owner_.refused(peer_, wire::describe_refusal(verdict, client_, encryption()));
    refuse(&server_, sizeof(server_));
  }

  void on_proof() {
    const wire::Hello hello = wire::hello_of(client_);
    const std::string secret = socket_.proof_key(owner_.credentials_.secret);
    wire::Verdict verdict = wire::Verdict::kWrongSecret;
    if (wire::check_client_proof(client_, server_, proof_, secret)) {
      proved_ = true;
      verdict = owner_.admit_(hello);
    }
    if (verdict != wire::Verdict::kAccepted) owner_.refused(peer_, wire::describe(verdict));
    const wire::VerdictMessage message = wire::make_verdict(client_, server_, verdict, secret);
    if (verdict != wire::Verdict::kAccepted) return refuse(&message, sizeof(message));
    if (!socket_.write_all(&message, sizeof(message))) return owner_.forget(number_);
    owner_.loop_.remove(number_);
    if (socket_.tls() != nullptr) socket_.tls()->trust();
    Socket socket = std::move(socket_);
    const Address peer = peer_;
    Acceptor& owner = owner_;
    owner.forget(number_);  // destroys this
    owner.accepted_(std::move(socket), hello, peer);
  }

  void end_in_hello() {
    const std::string why = socket_.tls() == nullptr ? "" : socket_.tls()->complaint();
    if (why.empty()) return owner_.forget(number_);
    owner_.refused(peer_, why);
    refuse(nullptr, 0);
  }

  // A fresh socket takes these few bytes at once.
  void refuse(const void* last_words, size_t bytes) {
    if (bytes > 0 && !socket_.write_all(last_words, bytes)) return owner_.forget(number_);
    if (!socket_.end_writing()) return owner_.forget(number_);
    state_ = State::kRefused;
    drain();
  }

  void drain() {
    char dropped[4096];
    for (int i = 0; i < 16; ++i) {
      const ssize_t n = ::recv(number_, dropped, sizeof(dropped), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return owner_.forget(number_);
    }
  }

  Acceptor& owner_;
  Socket socket_;
  int number_ = -1;
  Address peer_;
  const Nanos since_ = monotonic_now();
  EventLoop::TimerId timer_ = 0;
  State state_ = State::kOpening;
  bool proved_ = false;
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
