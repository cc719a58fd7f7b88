// The accepting side of the hello of wire/hello.h over TCP sockets: a stranger who connects and
// says nothing must cost nothing but one descriptor for a few seconds. The other side: connector.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "transport/descriptor_loop.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"
#include "wire/hello.h"

namespace herring::transport::tcp {

// Accepts connections on a listening socket and hands over those that proved themselves.
class Acceptor : public DescriptorHandler {
 public:
  using Admit = Transport::Admit;
  using Accepted = std::function<void(GuardedFd, const wire::Hello&, const Address& peer)>;

  // What strangers may take: connections that have not proven themselves, and time to do so.
  struct Limits {
    size_t pending = 256;
    Nanos patience = 10 * kSecond;
    // What everybody gets, also when more want a place: a member speaks as soon as it is connected,
    // and answers after a round trip. One that was dropped because it is slow comes again.
    Nanos fair = kSecond;               // who has said a hello of this job
    Nanos silent = 100 * kMillisecond;  // who has not
  };

  Acceptor(DescriptorLoop& loop, GuardedFd listener, Credentials credentials, Admit admit,
           Accepted accepted, Limits limits);
  Acceptor(DescriptorLoop& loop, GuardedFd listener, Credentials credentials, Admit admit,
           Accepted accepted)
      : Acceptor(loop, std::move(listener), std::move(credentials), std::move(admit),
                 std::move(accepted), Limits()) {}
  ~Acceptor() override;

  // Told about everybody who did not get in although they spoke the protocol.
  using Refused = std::function<void(const Address& peer, const std::string& why)>;
  void on_refused(Refused refused) { refused_ = std::move(refused); }

  // Told, again and again, when descriptors have run out and nobody was let in for a second.
  using Starved = std::function<void(const Status& why)>;
  void on_starved(Starved starved) { starved_ = std::move(starved); }

  const Address& address() const { return address_; }
  void on_ready(uint32_t) override;
  void close();

 private:
  class Pending;

  void forget(int fd);
  bool make_room();
  Nanos drop_one();
  void pause(Nanos time);
  void starve(int error, Nanos wait);
  void resume();
  void refused(const Address& peer, const std::string& why);

  DescriptorLoop& loop_;
  GuardedFd listener_;
  Address address_;
  Credentials credentials_;
  Limits limits_;
  Admit admit_;
  Accepted accepted_;
  Refused refused_;
  Starved starved_;
  Nanos starved_since_ = 0;  // 0: it is not
  uint64_t refusals_ = 0;
  std::map<int, std::unique_ptr<Pending>> pending_;
  EventLoop::TimerId pause_ = 0;  // while there is no room, or no descriptor, for a stranger
};

}  // namespace herring::transport::tcp
