#include "transport/tcp/connector.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/reminders.h"
#include "transport/epoll_loop.h"

namespace herring::transport::tcp {
namespace {

constexpr size_t kMostNamed = 8;  // addresses in a message

bool again(const Status& why, Nanos deadline) {
  return why.code() == Code::kPeerLost && monotonic_now() < deadline && !interrupted();
}

// A loop of this thread, which ends when the thread is interrupted or `given_up` returns an error.
class Waiting {
 public:
  explicit Waiting(const std::function<Status()>& given_up = {}) : given_up_(given_up) { check(); }
  void run() { loop.run(); }

  EpollLoop loop;
  Status why;  // the error of `given_up`, if any

 private:
  void check() {
    if (interrupted()) return loop.stop();
    if (given_up_) why = given_up_();
    if (!why.ok()) return loop.stop();
    loop.call_after(kInterruptInterval, [this] { check(); });
  }

  const std::function<Status()> given_up_;
};

Result<Socket> prove(GuardedFd fd, const std::string& name, const wire::Hello& hello,
                     const Credentials& credentials, Nanos deadline) {
  Waiting waiting;
  std::optional<Result<Socket>> found;
  const Nanos patience = std::max<Nanos>(deadline - monotonic_now(), 0);
  const Connector connector(waiting.loop, std::move(fd), name, hello, credentials, patience,
                            [&](Result<Socket> result) {
                              found.emplace(std::move(result));
                              waiting.loop.stop();
                            });
  waiting.run();
  if (found) return std::move(*found);
  return Status(Code::kTimeout, concat("interrupted while ", name, " completed the hello"));
}

class Attempts {
 public:
  Attempts(const std::vector<Wanted>& wanted, const std::string& source,
           const Credentials& credentials, Nanos deadline, size_t first,
           const std::function<Status()>& given_up)
      : wanted_(wanted),
        source_(source),
        credentials_(credentials),
        deadline_(deadline),
        first_(first),
        waiting_(given_up),
        found_(wanted.size()),
        connectors_(wanted.size()) {}

  Result<std::vector<Socket>> run() {
    if (wanted_.empty()) return std::move(found_);
    while (begun_ < std::min(kConnectingAtOnce, wanted_.size())) begin_next();
    remind();
    waiting_.run();
    connectors_.clear();
    if (!failure_.ok()) return failure_;
    if (left_ > 0 && !waiting_.why.ok()) return waiting_.why;
    if (left_ > 0) {
      return Status(Code::kTimeout,
                    concat("interrupted with ", counted(left_, "connection"), " missing"));
    }
    return std::move(found_);
  }

 private:
  // Logs now and then which addresses have not answered.
  void remind() {
    waiting_.loop.call_at(reminders_.next(), [this] {
      const Nanos now = monotonic_now();
      if (reminders_.due(now)) {
        std::string missing;
        size_t more = left_;
        for (size_t i = 0; i < wanted_.size() && left_ - more < kMostNamed; ++i) {
          if (found_[i].valid()) continue;
          missing += (missing.empty() ? "" : ", ") + wanted_[i].address.to_string();
          --more;
        }
        log(LogLevel::kWarning, "has waited ", in_seconds(now - start_), " to connect to ",
            missing, more > 0 ? concat(" and ", more, " more") : "", last_);
      }
      remind();
    });
  }

  void begin_next() { begin((first_ + begun_++) % wanted_.size()); }

  void begin(size_t i) {
    const Nanos patience = std::clamp<Nanos>(deadline_ - monotonic_now(), 0, kAttempt);
    connectors_[i] = std::make_unique<Connector>(
        waiting_.loop, wanted_[i].address, source_, wanted_[i].hello, credentials_, patience,
        [this, i](Result<Socket> result) { done(i, std::move(result)); });
  }

  void done(size_t i, Result<Socket> result) {
    if (!result.ok()) {
      last_ = concat(" (last error: ", result.status().message(), ")");
      const bool slow = result.status().code() == Code::kTimeout;
      if ((slow && monotonic_now() < deadline_) || again(result.status(), deadline_)) {
        waiting_.loop.call_after(kPause, [this, i] { begin(i); });
        return;
      }
      // The error has the time of all attempts, not only of the last one.
      failure_ = slow ? Status(Code::kTimeout,
                               concat(wanted_[i].address.to_string(), " accepts connections "
                                      "but did not complete the hello in ",
                                      in_seconds(monotonic_now() - start_),
                                      "; its process may still be starting"))
                      : result.status();
      waiting_.loop.stop();
      return;
    }
    found_[i] = std::move(*result);
    if (--left_ == 0) return waiting_.loop.stop();
    if (begun_ < wanted_.size()) begin_next();
  }

  const std::vector<Wanted>& wanted_;
  const std::string& source_;
  const Credentials& credentials_;
  const Nanos start_ = monotonic_now(), deadline_;
  const size_t first_;
  Reminders reminders_{start_, kFirstReminder, start_};
  Waiting waiting_;
  std::vector<Socket> found_;
  std::vector<std::unique_ptr<Connector>> connectors_;  // destroyed before the loop
  size_t begun_ = 0;
  size_t left_ = wanted_.size();  // connections still to be made
  std::string last_;             // last error, for messages
  Status failure_;
};

}  // namespace

Connector::Connector(DescriptorLoop& loop, const Address& address, const std::string& source,
                     const wire::Hello& hello, const Credentials& credentials, Nanos patience,
                     Done done)
    : Connector(loop, begin_connecting(address, source), address.to_string(), hello, credentials,
                patience, std::move(done)) {}

Connector::Connector(DescriptorLoop& loop, Result<GuardedFd> fd, std::string name,
                     const wire::Hello& hello, const Credentials& credentials, Nanos patience,
                     Done done)
    : loop_(loop),
      name_(std::move(name)),
      credentials_(credentials),
      done_(std::move(done)),
      client_(wire::make_client_hello(hello, credentials.job, encryption())) {
  if (!fd.ok()) {
    // Not reported from the constructor, because the owner does not have this object yet.
    timer_ = loop_.call_after(0, [this, why = fd.status()] {
      timer_ = 0;
      finish(Status(why.code(), concat("cannot connect to ", name_, ": ", why.message())));
    });
    return;
  }
  socket_ = std::move(*fd);
  loop_.add(socket_.get(), kForWriting, this);
  timer_ = loop_.call_after(patience, [this, patience] {
    timer_ = 0;
    finish(Status(Code::kTimeout,
                  concat(name_, " accepts connections but did not complete the hello in ",
                         in_seconds(patience), "; its process may still be starting")));
  });
}

Connector::~Connector() {
  if (timer_ != 0) loop_.cancel(timer_);
  if (socket_.valid()) loop_.remove(socket_.get());
}

wire::Encryption Connector::encryption() const {
  return credentials_.tls ? credentials_.tls->encryption() : wire::Encryption::kOff;
}

void Connector::on_ready(uint32_t) {
  if (state_ == State::kConnecting || state_ == State::kTls) {
    const Status status = state_ == State::kTls ? shake() : connected();
    if (!status.ok()) return finish(status);
    if (state_ != State::kRefusal) return;
  }
  const bool verdict = state_ == State::kVerdict;
  char* into = verdict ? reinterpret_cast<char*>(&verdict_) : reinterpret_cast<char*>(&server_);
  const size_t want = verdict ? sizeof(verdict_) : sizeof(server_);
  // Reads no byte more: what follows the verdict belongs to the flow.
  const ssize_t n = state_ == State::kRefusal
                        ? ::recv(socket_.get(), into + have_, want - have_, MSG_DONTWAIT)
                        : socket_.read(into + have_, want - have_);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return finish(gone());
  have_ += n;
  if (have_ < want) return;
  have_ = 0;
  if (Status status = answered(); !status.ok()) finish(status);
}

Status Connector::connected() {
  if (const Status there = finish_connecting(socket_.get()); !there.ok()) {
    return {there.code(), concat("cannot connect to ", name_, ": ", there.message())};
  }
  if (encryption() == wire::Encryption::kOff) return say_hello();
  HERRING_RETURN_IF_ERROR(say(&client_, wire::kOpeningBytes));
  socket_.encrypt(*credentials_.tls, false);
  state_ = State::kTls;
  return shake();
}

Status Connector::shake() {
  using Step = TlsSession::Step;
  const Step step = socket_.tls()->shake();
  if (step == Step::kFailed && socket_.tls()->answered_plainly()) {
    state_ = State::kRefusal;
    loop_.modify(socket_.get(), kForReading);
    return {};
  }
  if (step == Step::kFailed) return gone();
  if (step == Step::kDone) return say_hello();
  loop_.modify(socket_.get(), step == Step::kWrites ? kForReading | kForWriting : kForReading);
  return {};
}

Status Connector::say_hello() {
  HERRING_RETURN_IF_ERROR(say(&client_, sizeof(client_)));
  state_ = State::kHello;
  loop_.modify(socket_.get(), kForReading);
  return {};
}

Status Connector::answered() {
  if (state_ == State::kRefusal) {
    HERRING_RETURN_IF_ERROR(wire::check_server_hello(server_, name_, encryption()));
    return breach(name_, " answers without TLS");
  }
  const std::string secret = socket_.proof_key(credentials_.secret);
  if (state_ == State::kHello) {
    HERRING_RETURN_IF_ERROR(wire::check_server_hello(server_, name_, encryption()));
    const wire::ClientProof proof = wire::make_client_proof(client_, server_, secret);
    HERRING_RETURN_IF_ERROR(say(&proof, sizeof(proof)));
    state_ = State::kVerdict;
    return {};
  }
  HERRING_RETURN_IF_ERROR(wire::check_verdict(client_, server_, verdict_, secret, name_));
  if (socket_.tls() != nullptr) socket_.tls()->trust();
  loop_.remove(socket_.get());
  finish(std::move(socket_));
  return {};
}

// A fresh socket takes these few bytes at once.
Status Connector::say(const void* data, size_t bytes) {
  return socket_.write_all(data, bytes) ? Status() : gone();
}

Status Connector::gone() const {
  const std::string why = socket_.tls() == nullptr ? "" : socket_.tls()->complaint();
  if (!why.empty()) return {Code::kAuthentication, concat("no TLS with ", name_, ": ", why)};
  return {Code::kPeerLost, concat(name_, " closed the connection in the hello")};
}

void Connector::finish(Result<Socket> result) {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  if (socket_.valid()) {
    loop_.remove(socket_.get());
    socket_.reset();
  }
  const Done done = std::move(done_);
  done(std::move(result));  // may destroy this
}

Result<Socket> connect_and_prove(const Address& address, const std::string& source,
                                 const wire::Hello& hello, const Credentials& credentials,
                                 Nanos deadline, bool* listens) {
  const std::string name = address.to_string();
  for (;;) {
    auto fd = connect_to(address, source, deadline);
    if (listens != nullptr) *listens = fd.ok();
    if (!fd.ok()) return fd.status();
    auto proven = prove(std::move(*fd), name, hello, credentials, deadline);
    if (proven.ok() || !again(proven.status(), deadline)) return proven;
    poll_until(nullptr, 0, std::min(deadline, monotonic_now() + kPause));
  }
}

Result<std::vector<Socket>> connect_all(const std::vector<Wanted>& wanted,
                                        const std::string& source,
                                        const Credentials& credentials, Nanos deadline,
                                        size_t first, const std::function<Status()>& given_up) {
  HERRING_RETURN_IF_ERROR(want_descriptors(wanted.size()));
  return Attempts(wanted, source, credentials, deadline, first, given_up).run();
}

}  // namespace herring::transport::tcp
