// Flows over TCP connections of the system, on epoll loops.
#pragma once

#include <memory>
#include <string>

#include "transport/tcp/tls.h"
#include "transport/transport.h"

namespace herring::transport::tcp {

class TcpTransport final : public Transport {
 public:
  std::shared_ptr<EventLoop> make_loop(bool lends) override;
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           Credentials credentials, Admit admit,
                                           Accepted accepted) override;
  std::unique_ptr<Connecting> connect(EventLoop& loop, const Address& address,
                                      const std::string& source, const wire::Hello& hello,
                                      const Credentials& credentials, Nanos patience,
                                      Connected connected) override;
};

// Returns the instance of this process, which has no state.
TcpTransport& transport();

// `socket` must be connected, proven and non-blocking; `peer` names the other side in messages.
std::unique_ptr<Connection> make_connection(Socket socket, std::string peer);

}  // namespace herring::transport::tcp
