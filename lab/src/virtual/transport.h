// The transport of a simulated host, with which it listens and connects. Its address is "host-N".
#pragma once

#include <memory>
#include <string>

#include "transport/transport.h"
#include "virtual/simulation.h"

namespace herring::transport::virtual_time {

class VirtualTransport final : public Transport {
 public:
  VirtualTransport(Simulation& simulation, size_t host) : simulation_(simulation), host_(host) {}

  std::shared_ptr<EventLoop> make_loop(bool lends) override;
  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                           Credentials credentials, Admit admit,
                                           Accepted accepted) override;
  // Connects a moment later. Sides with equal `credentials` accept each other.
  std::unique_ptr<Connecting> connect(EventLoop& loop, const Address& address,
                                      const std::string& source, const wire::Hello& hello,
                                      const Credentials& credentials, Nanos patience,
                                      Connected connected) override;
  // Connects at once, for set-up.
  Result<std::unique_ptr<Connection>> connect_now(const Address& address, const wire::Hello& hello,
                                                  const Credentials& credentials);
  std::string address() const;

 private:
  Simulation& simulation_;
  const size_t host_;
};

}  // namespace herring::transport::virtual_time
