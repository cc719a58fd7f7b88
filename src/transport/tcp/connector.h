// The connecting side of the hello as a state machine on a loop, for connections that are made
// while other flows of the loop must not wait. The blocking form is connect_and_prove().
#pragma once

#include <functional>
#include <string>

#include "transport/event_loop.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"

namespace herring::transport::tcp {

class Connector : private EventHandler {
 public:
  // Called once, from the loop: a proven connection, or why there is none. May destroy the
  // connector.
  using Done = std::function<void(Result<GuardedFd>)>;

  // `address` is literal, and somebody listens there already: one attempt, bounded by `patience`.
  Connector(EventLoop& loop, const Address& address, const std::string& source,
            const wire::Hello& hello, const Credentials& credentials, Nanos patience, Done done);
  ~Connector() override;
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

 private:
  enum class State { kConnecting, kHello, kVerdict };

  void on_events(uint32_t) override;
  Status connected();
  Status answered();
  Status say(const void* data, size_t bytes);
  void finish(Result<GuardedFd> result);

  EventLoop& loop_;
  const std::string name_;  // of the other side
  const std::string secret_;
  Done done_;
  GuardedFd fd_;
  EventLoop::TimerId timer_ = 0;
  State state_ = State::kConnecting;
  size_t have_ = 0;  // of the message being received
  wire::ClientHello client_{};
  wire::ServerHello server_{};
  wire::VerdictMessage verdict_{};
};

}  // namespace herring::transport::tcp
