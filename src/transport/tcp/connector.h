// The connecting side of the hello: a state machine on a loop, and calls that wait for that.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/descriptor_loop.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tls.h"

namespace herring::transport::tcp {

class Connector : private DescriptorHandler {
 public:
  // Called once, from the loop, with a proven connection or the reason why there is none. May
  // destroy the connector.
  using Done = std::function<void(Result<Socket>)>;

  // Makes one attempt, bounded by `patience`, at a literal address where a process listens.
  Connector(DescriptorLoop& loop, const Address& address, const std::string& source,
            const wire::Hello& hello, const Credentials& credentials, Nanos patience, Done done);
  // Uses a socket that is connected, or being connected, to `name`.
  Connector(DescriptorLoop& loop, Result<GuardedFd> fd, std::string name, const wire::Hello& hello,
            const Credentials& credentials, Nanos patience, Done done);
  ~Connector() override;
  // Returns whether a process answered, even if it ended the connection in the hello.
  bool met() const { return state_ != State::kConnecting; }
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

 private:
  // In kRefusal, the other side has answered without TLS.
  enum class State { kConnecting, kTls, kRefusal, kHello, kVerdict };

  void on_ready(uint32_t) override;
  Status connected();
  Status shake();
  Status say_hello();
  Status answered();
  Status say(const void* data, size_t bytes);
  Status gone() const;
  wire::Encryption encryption() const;
  void finish(Result<Socket> result);

  DescriptorLoop& loop_;
  const std::string name_;  // of the other side
  const Credentials credentials_;
  Done done_;
  Socket socket_;
  EventLoop::TimerId timer_ = 0;
  State state_ = State::kConnecting;
  size_t have_ = 0;  // of the message being received
  wire::ClientHello client_{};
  wire::ServerHello server_{};
  wire::VerdictMessage verdict_{};
};

inline constexpr Nanos kPause = 50 * kMillisecond;  // before another attempt

// The functions below are for set-up, when the thread has nothing else to do. They return by
// `deadline`, or soon after this thread is interrupted (base/interrupt.h). They try again if a
// listener ends or is too busy.

// Connects and proves the secret both ways. `address` may be a name; the listener may start later.
// `listens`, if not null, becomes whether somebody accepted the last connection.
Result<Socket> connect_and_prove(const Address& address, const std::string& source,
                                 const wire::Hello& hello, const Credentials& credentials,
                                 Nanos deadline, bool* listens = nullptr);

struct Wanted {
  Address address;  // literal; a process already listens there
  wire::Hello hello;
};
// Returns connections to all of `wanted`, in that order, or the first error. At most
// kConnectingAtOnce are being made at a time. `first` is the index to begin with. It should differ
// between workers, so that they do not all fill the queue of one server at a time. `given_up` is
// called at least every kInterruptInterval; an error from it is returned.
inline constexpr size_t kConnectingAtOnce = 64;
Result<std::vector<Socket>> connect_all(const std::vector<Wanted>& wanted,
                                        const std::string& source,
                                        const Credentials& credentials, Nanos deadline,
                                        size_t first = 0,
                                        const std::function<Status()>& given_up = {});

}  // namespace herring::transport::tcp
