#include "transport/tcp/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace herring::transport::tcp {

Connector::Connector(EventLoop& loop, const Address& address, const std::string& source,
                     const wire::Hello& hello, const Credentials& credentials, Nanos patience,
                     Done done)
    : loop_(loop),
      name_(address.to_string()),
      secret_(credentials.secret),
      done_(std::move(done)),
      client_(wire::make_client_hello(hello, credentials.job)) {
  auto fd = begin_connecting(address, source);
  if (!fd.ok()) {
    // Not from the constructor: the owner does not have us yet.
    timer_ = loop_.call_after(0, [this, why = fd.status()] {
      timer_ = 0;
      finish(Status(why.code(), concat("cannot connect to ", name_, ": ", why.message())));
    });
    return;
  }
  fd_ = std::move(*fd);
  loop_.add(fd_.get(), EPOLLOUT, this);
  timer_ = loop_.call_after(patience, [this, patience] {
    timer_ = 0;
    finish(Status(Code::kTimeout, concat(name_, " did not complete the hello in ",
                                         to_seconds(patience), " s")));
  });
}

Connector::~Connector() {
  if (timer_ != 0) loop_.cancel(timer_);
  if (fd_.valid()) loop_.remove(fd_.get());
}

void Connector::on_events(uint32_t) {
  if (state_ == State::kConnecting) {
    if (Status status = connected(); !status.ok()) finish(status);
    return;
  }
  const bool hello = state_ == State::kHello;
  char* into = hello ? reinterpret_cast<char*>(&server_) : reinterpret_cast<char*>(&verdict_);
  const size_t want = hello ? sizeof(server_) : sizeof(verdict_);
  // Not a byte more: what follows the verdict belongs to the flow.
  const ssize_t n = ::recv(fd_.get(), into + have_, want - have_, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    return finish(Status(Code::kPeerLost, concat(name_, " closed the connection in the hello")));
  }
  have_ += n;
  if (have_ < want) return;
  have_ = 0;
  if (Status status = answered(); !status.ok()) finish(status);
}

Status Connector::connected() {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    return {Code::kPeerLost, concat("cannot connect to ", name_, ": ", strerror(error))};
  }
  HERRING_RETURN_IF_ERROR(make_flow_socket(fd_.get()));
  HERRING_RETURN_IF_ERROR(say(&client_, sizeof(client_)));
  state_ = State::kHello;
  loop_.modify(fd_.get(), EPOLLIN);
  return {};
}

Status Connector::answered() {
  if (state_ == State::kHello) {
    HERRING_RETURN_IF_ERROR(wire::check_server_hello(client_, server_, secret_, name_));
    const wire::ClientProof proof = wire::make_client_proof(client_, server_, secret_);
    HERRING_RETURN_IF_ERROR(say(&proof, sizeof(proof)));
    state_ = State::kVerdict;
    return {};
  }
  HERRING_RETURN_IF_ERROR(
      wire::status_of(static_cast<wire::Verdict>(verdict_.verdict), name_));
  loop_.remove(fd_.get());
  finish(std::move(fd_));
  return {};
}

// A fresh socket takes these few bytes whole.
Status Connector::say(const void* data, size_t bytes) {
  if (::send(fd_.get(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes)) return {};
  return {Code::kPeerLost, concat(name_, " closed the connection in the hello")};
}

void Connector::finish(Result<GuardedFd> result) {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
  if (fd_.valid()) {
    loop_.remove(fd_.get());
    fd_.reset();
  }
  const Done done = std::move(done_);
  done(std::move(result));  // may destroy this
}

}  // namespace herring::transport::tcp
