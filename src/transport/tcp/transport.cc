#include "transport/tcp/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/epoll_loop.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/flow.h"
#include "transport/tcp/handshake.h"

namespace herring::transport::tcp {
namespace {

constexpr int kBacklog = 1024;
// The most unsent bytes of a schedule's step that the system takes. What waits in the socket of one
// flow would leave later, together with what goes to other workers.
constexpr int kMostUnsent = 128 << 10;

class TcpConnection final : public Connection {
 public:
  TcpConnection(Socket socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  std::unique_ptr<Flow> open(EventLoop& loop, FlowHandler& handler, Traffic traffic) override {
    prepare(socket_.get(), traffic);
    return std::make_unique<TcpFlow>(DescriptorLoop::of(loop), std::move(socket_), handler,
                                     std::move(peer_));
  }

 private:
  Socket socket_;
  std::string peer_;
};

class TcpListener final : public Listener {
 public:
  TcpListener(TcpTransport& transport, DescriptorLoop& loop, GuardedFd socket,
              Credentials credentials,
              Transport::Admit admit, Transport::Accepted accepted)
      : acceptor_(loop, std::move(socket), std::move(credentials), std::move(admit),
                  [&transport, accepted = std::move(accepted)](
                      Socket socket, const wire::Hello& hello, const Address& peer) {
                    accepted(transport.make_connection(std::move(socket), peer.to_string(), hello),
                             hello, peer);
                  }) {}
  const Address& address() const override { return acceptor_.address(); }
  void close() override { acceptor_.close(); }
  void on_starved(std::function<void(const Status& why)> told) override {
    acceptor_.on_starved(std::move(told));
  }

 private:
  Acceptor acceptor_;
};

class TcpConnecting final : public Connecting {
 public:
  TcpConnecting(TcpTransport& transport, DescriptorLoop& loop, const Address& address,
                const std::string& source,
                const wire::Hello& hello, const Credentials& credentials, Nanos patience,
                Transport::Connected connected)
      : transport_(transport),
        loop_(loop),
        address_(address),
        source_(source),
        hello_(hello),
        credentials_(credentials),
        deadline_(loop.now() + patience),
        connected_(std::move(connected)) {
    begin();
  }
  ~TcpConnecting() override {
    if (again_ != 0) loop_.cancel(again_);
  }

 private:
  void begin() {
    again_ = 0;
    const Nanos left = std::max<Nanos>(deadline_ - loop_.now(), 0);
    connector_.emplace(loop_, address_, source_, hello_, credentials_, left,
                       [this](Result<Socket> socket) { done(std::move(socket)); });
  }

  void done(Result<Socket> socket) {
    // A busy listener may drop a member that is slow to speak.
    const bool dropped =
        !socket.ok() && socket.status().code() == Code::kPeerLost && connector_->met();
    if (dropped && loop_.now() < deadline_) {
      again_ = loop_.call_after(kPause, [this] { begin(); });
      return;
    }
    const auto then = std::move(connected_);
    if (!socket.ok()) return then(socket.status());  // may destroy this
    then(transport_.make_connection(std::move(*socket), address_.to_string(), hello_));
  }

  TcpTransport& transport_;
  DescriptorLoop& loop_;
  const Address address_;
  const std::string source_;
  const wire::Hello hello_;
  const Credentials credentials_;
  const Nanos deadline_;
  Transport::Connected connected_;
  EventLoop::TimerId again_ = 0;
  std::optional<Connector> connector_;
};

}  // namespace

std::unique_ptr<Connection> make_connection(Socket socket, std::string peer) {
  return std::make_unique<TcpConnection>(std::move(socket), std::move(peer));
}

std::unique_ptr<Connection> TcpTransport::make_connection(Socket socket, std::string peer,
                                                          const wire::Hello&) {
  return tcp::make_connection(std::move(socket), std::move(peer));
}

void prepare(int socket, Traffic traffic) {
  if (traffic != Traffic::kControl) repeat_soon(socket);
  switch (traffic) {
    case Traffic::kCredit:
      // Credit keeps fewer bytes outstanding than a path could hold, so BBR takes the path to be
      // slower than it is. 125 MB over paths of 5 ms took 1.10 times the limit with BBR and 1.02
      // times with cubic; with packet loss, both were the same.
      avoid_bbr(socket);
      break;
    case Traffic::kSchedule:
      setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent, sizeof(kMostUnsent));
      // A schedule's flow pauses for whole steps, and shares the link with its neighbours when
      // one step meets the next. With BBR, measured steps of a butterfly did not fill the link.
      avoid_bbr(socket);
      break;
    case Traffic::kControl: repeat_steadily(socket); break;
  }
}

TcpTransport& transport() {
  static TcpTransport one;
  return one;
}

std::shared_ptr<EventLoop> TcpTransport::make_loop(bool lends) {
  return std::make_shared<EpollLoop>(lends ? EpollLoop::Drivers::kWaitersToo
                                           : EpollLoop::Drivers::kOwnThread);
}

Result<std::unique_ptr<Listener>> TcpTransport::listen(EventLoop& loop, const Address& address,
                                                       Credentials credentials, Admit admit,
                                                       Accepted accepted) {
  HERRING_ASSIGN_OR_RETURN(auto& socket, listen_on(address, kBacklog));
  return std::unique_ptr<Listener>(
      std::make_unique<TcpListener>(*this, DescriptorLoop::of(loop), std::move(socket),
                                    std::move(credentials), std::move(admit),
                                    std::move(accepted)));
}

std::unique_ptr<Connecting> TcpTransport::connect(EventLoop& loop, const Address& address,
                                                  const std::string& source,
                                                  const wire::Hello& hello,
                                                  const Credentials& credentials, Nanos patience,
                                                  Connected connected) {
  return std::make_unique<TcpConnecting>(*this, DescriptorLoop::of(loop), address, source, hello,
                                         credentials, patience, std::move(connected));
}

}  // namespace herring::transport::tcp
