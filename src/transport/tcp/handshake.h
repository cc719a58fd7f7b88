// The accepting side of the hello of wire/hello.h over TCP sockets. A stranger who connects and
// says nothing must cost no more than a descriptor for a few seconds. The other side: connector.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "transport/descriptor_loop.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/suspects.h"
#include "transport/tcp/tls.h"
#include "transport/transport.h"
#include "wire/hello.h"

namespace herring::transport::tcp {

// Accepts connections on a listening socket and hands over those that have proved themselves.
class Acceptor : public DescriptorHandler {
 public:
  using Admit = Transport::Admit;
  using Accepted = std::function<void(Socket, const wire::Hello&, const Address& peer)>;

  // Limits for strangers: the number of connections that are not proved yet, and their time.
  struct Limits {
    size_t pending = 256;
    Nanos patience = 10 * kSecond;
    // The least time that every connection gets, even if more connections want a place. A member
    // speaks as soon as it is connected, and answers after a round trip. A slow one that is dropped
    // comes again.
    Nanos fair = kSecond;               // after a hello of this job
    Nanos silent = 100 * kMillisecond;  // before such a hello
    // The same if the last `failures` connections from that host have all failed.
    Nanos hurried = 10 * kMillisecond;
    uint32_t failures = 64;
  };

  Acceptor(DescriptorLoop& loop, GuardedFd listener, Credentials credentials, Admit admit,
           Accepted accepted, Limits limits);
  Acceptor(DescriptorLoop& loop, GuardedFd listener, Credentials credentials, Admit admit,
           Accepted accepted)
      : Acceptor(loop, std::move(listener), std::move(credentials), std::move(admit),
                 std::move(accepted), Limits()) {}
  ~Acceptor() override;

  // Called for every peer that spoke the protocol, but whose hello or proof was refused.
  using Refused = std::function<void(const Address& peer, const std::string& why)>;
  void on_refused(Refused refused) { refused_ = std::move(refused); }

  // Called repeatedly if descriptors have run out and nobody was accepted for a second.
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
  Suspects suspects_;
  Nanos starved_since_ = 0;  // 0: there are descriptors
  uint64_t refusals_ = 0;
  std::map<int, std::unique_ptr<Pending>> pending_;
  EventLoop::TimerId pause_ = 0;  // set while there is no place or no descriptor for a stranger
};

}  // namespace herring::transport::tcp
