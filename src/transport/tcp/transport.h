// Flows over TCP connections of the system, on epoll loops.
#pragma once

#include <memory>
#include <string>

#include "transport/tcp/tls.h"
#include "transport/transport.h"

namespace herring::transport::tcp {

class TcpTransport : public Transport {
 public:
  std::shared_ptr<EventLoop> make_loop(bool lends) override;
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           Credentials credentials, Admit admit,
                                           Accepted accepted) override;
  std::unique_ptr<Connecting> connect(EventLoop& loop, const Address& address,
                                      const std::string& source, const wire::Hello& hello,
                                      const Credentials& credentials, Nanos patience,
                                      Connected connected) override;
  // `socket` must be connected, proven and non-blocking; `peer` names the other side in messages.
  // `hello` is what the connecting side has said. Every connection of a data plane is made here.
  virtual std::unique_ptr<Connection> make_connection(Socket socket, std::string peer,
                                                      const wire::Hello& hello);
};

// Returns the instance of this process, which has no state.
TcpTransport& transport();

// Makes a connection of the control plane.
std::unique_ptr<Connection> make_connection(Socket socket, std::string peer);
// Sets the options of a socket that become it as a flow.
void prepare(int socket, Traffic traffic);

}  // namespace herring::transport::tcp
