#include "virtual/transport.h"

#include <utility>

#include "virtual/flow.h"
#include "virtual/loop.h"

namespace herring::transport::virtual_time {

class VirtualConnection final : public Connection {
 public:
  VirtualConnection(Simulation& simulation, uint32_t connection, int side, std::string peer)
      : simulation_(simulation), connection_(connection), side_(side), peer_(std::move(peer)) {}
  ~VirtualConnection() override {
    if (!opened_) simulation_.streams_.abort(connection_, side_, simulation_.now());
  }

  std::unique_ptr<Flow> open(EventLoop& loop, FlowHandler& handler, Traffic) override {
    opened_ = true;
    return std::make_unique<VirtualFlow>(static_cast<VirtualLoop&>(loop), connection_, side_,
                                         handler, std::move(peer_));
  }

 private:
  Simulation& simulation_;
  const uint32_t connection_;
  const int side_;
  std::string peer_;
  bool opened_ = false;
};

class VirtualListener final : public Listener {
 public:
  VirtualListener(Simulation& simulation, EventLoop& loop, Address address,
                  Credentials credentials, Transport::Admit admit, Transport::Accepted accepted)
      : simulation_(simulation),
        loop_(loop),
        address_(std::move(address)),
        credentials_(std::move(credentials)),
        admit_(std::move(admit)),
        accepted_(std::move(accepted)),
        alive_(std::make_shared<bool>(true)) {
    simulation_.listeners_[address_.to_string()] = this;
  }
  ~VirtualListener() override {
    close();
    *alive_ = false;
  }

  const Address& address() const override { return address_; }
  void close() override { simulation_.listeners_.erase(address_.to_string()); }

  Result<std::unique_ptr<Connection>> accept(const Address& from, size_t from_host,
                                             const wire::Hello& hello,
                                             const Credentials& credentials) {
    if (credentials.secret != credentials_.secret || credentials.job != credentials_.job) {
      return Status(Code::kAuthentication,
                    concat(address_.to_string(), " does not know the job's secret"));
    }
    if (admit_(hello) != wire::Verdict::kAccepted) {
      return Status(Code::kPeerLost, concat(address_.to_string(), " has refused the connection"));
    }
    const size_t here = static_cast<VirtualLoop&>(loop_).host();
    const uint32_t connection = simulation_.connect(from_host, here);
    auto incoming = std::make_shared<std::unique_ptr<Connection>>(
        std::make_unique<VirtualConnection>(simulation_, connection, 1, from.to_string()));
    loop_.post([this, alive = alive_, incoming, hello, from] {
      if (*alive) accepted_(std::move(*incoming), hello, from);
    });
    return std::unique_ptr<Connection>(std::make_unique<VirtualConnection>(
        simulation_, connection, 0, address_.to_string()));
  }

 private:
  Simulation& simulation_;
  EventLoop& loop_;
  const Address address_;
  const Credentials credentials_;
  const Transport::Admit admit_;
  const Transport::Accepted accepted_;
  const std::shared_ptr<bool> alive_;
};

namespace {

class VirtualConnecting final : public Connecting {
 public:
  VirtualConnecting(EventLoop& loop, Nanos after, std::function<void()> then)
      : loop_(loop), timer_(loop.call_after(after, std::move(then))) {}
  ~VirtualConnecting() override { loop_.cancel(timer_); }

 private:
  EventLoop& loop_;
  const EventLoop::TimerId timer_;
};

}  // namespace

std::string VirtualTransport::address() const { return concat("host-", host_); }

std::shared_ptr<EventLoop> VirtualTransport::make_loop(bool) {
  return std::make_shared<VirtualLoop>(simulation_, host_);
}

Result<std::unique_ptr<Listener>> VirtualTransport::listen(EventLoop& loop, const Address& asked,
                                                           Credentials credentials, Admit admit,
                                                           Accepted accepted) {
  Address own{address(), asked.port};
  if (own.port == 0) own.port = simulation_.next_port_++;
  if (simulation_.listeners_.count(own.to_string()) != 0) {
    return Status(Code::kConfiguration, concat("port ", own.port, " of ", own.host,
                                               " is in use"));
  }
  return std::unique_ptr<Listener>(std::make_unique<VirtualListener>(
      simulation_, loop, own, std::move(credentials), std::move(admit), std::move(accepted)));
}

Result<std::unique_ptr<Connection>> VirtualTransport::connect_now(const Address& to,
                                                                  const wire::Hello& hello,
                                                                  const Credentials& credentials) {
  const auto found = simulation_.listeners_.find(to.to_string());
  if (found == simulation_.listeners_.end()) {
    return Status(Code::kPeerLost, concat("nobody listens at ", to.to_string()));
  }
  return found->second->accept({address(), 0}, host_, hello, credentials);
}

std::unique_ptr<Connecting> VirtualTransport::connect(EventLoop& loop, const Address& to,
                                                      const std::string&, const wire::Hello& hello,
                                                      const Credentials& credentials, Nanos,
                                                      Connected connected) {
  const auto then = [this, to, hello, credentials, connected = std::move(connected)] {
    const auto call = connected;  // a copy, because the call may destroy this lambda
    call(connect_now(to, hello, credentials));
  };
  return std::make_unique<VirtualConnecting>(loop, kMillisecond, then);
}

}  // namespace herring::transport::virtual_time
