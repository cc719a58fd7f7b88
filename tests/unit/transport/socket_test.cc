#include "transport/tcp/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/unit/text.h"
#include "transport/tcp/transport.h"

namespace herring::transport::tcp {
namespace {

TEST(Socket, AddressesAreParsed) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } good[] = {{"10.0.0.1:29500", "10.0.0.1", 29500},
              {"node-3.cluster:1", "node-3.cluster", 1},
              {"[::1]:65535", "::1", 65535},
              {"localhost:0", "localhost", 0}};
  for (const auto& one : good) {
    auto address = parse_address(one.text, "X");
    ASSERT_TRUE(address.ok()) << one.text;
    EXPECT_EQ(address->host, one.host);
    EXPECT_EQ(address->port, one.port);
    EXPECT_EQ(address->to_string(), one.text);
  }
  for (const char* bad : {"", ":", "host", "host:", ":1", "host:x", "host:1x", "host:-1", "host:+1",
                          "host:65536", "host: 1", "::1:5", "[::1]", "[::1:5", "[]:5", "[::1]x:5",
                          "host:99999999999999999999"}) {
    const Status status = parse_address(bad, "HERRING_RENDEZVOUS").status();
    EXPECT_EQ(status.code(), Code::kConfiguration) << bad;
    EXPECT_TRUE(contains(status.message(), concat("HERRING_RENDEZVOUS is '", bad, "'")));
  }
}

TEST(Socket, APortInUseIsNamed) {
  auto first = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(first.ok());
  const Address address = *local_address(first->get());
  const Status status = listen_on(address, 1).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), address.to_string())) << status.message();
  EXPECT_TRUE(contains(status.message(), "in use")) << status.message();
}

class ListeningPorts : public ::testing::Test {
 protected:
  ~ListeningPorts() override { set_listening_ports({}); }
  // Returns a port that was free a moment ago.
  static uint16_t free_port() {
    auto listener = listen_on({"127.0.0.1", 0}, 1);
    return listener.ok() ? local_address(listener->get())->port : 0;
  }
};

TEST_F(ListeningPorts, AreTakenOneAfterTheOtherUntilTheRangeIsUsedUp) {
  const uint16_t first = free_port();
  ASSERT_NE(first, 0);
  const PortRange range{first, static_cast<uint16_t>(std::min(first + 2, 65535))};
  const int size = range.last - range.first + 1;
  set_listening_ports(range);
  std::vector<GuardedFd> listeners;
  for (int i = 0; i <= size; ++i) {
    auto listener = listen_on({"127.0.0.1", 0}, 1);
    if (!listener.ok()) {  // other programs may use some of the ports
      const std::string& message = listener.status().message();
      EXPECT_EQ(listener.status().code(), Code::kConfiguration);
      EXPECT_TRUE(contains(message, "HERRING_PORTS=" + range.to_string())) << message;
      EXPECT_TRUE(contains(message, concat("none of its ", size, " ports"))) << message;
      return;
    }
    const uint16_t port = local_address(listener->get())->port;
    EXPECT_GE(port, range.first);
    EXPECT_LE(port, range.last);
    listeners.push_back(std::move(*listener));
  }
  FAIL() << "more listeners than ports";
}

TEST_F(ListeningPorts, ANamedPortIsTaken) {
  const uint16_t port = free_port();
  set_listening_ports({1, 1});
  auto listener = listen_on({"127.0.0.1", port}, 1);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  EXPECT_EQ(local_address(listener->get())->port, port);
}

TEST_F(ListeningPorts, AForeignAddressIsNoUsedUpRange) {
  set_listening_ports({30000, 30001});
  const Status status = listen_on({"192.0.2.1", 0}, 1).status();
  EXPECT_FALSE(contains(status.message(), "used up")) << status.message();
  EXPECT_TRUE(contains(status.message(), "192.0.2.1")) << status.message();
}

TEST(Socket, AForeignAddressIsNamed) {
  const Status status = listen_on({"192.0.2.1", 0}, 1).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "this host has no such address")) << status.message();
}

TEST(Socket, OnlyListenersAreAdopted) {
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(listener.ok());
  const int copy = dup(listener->get());
  auto adopted = adopt_listener(copy);
  ASSERT_TRUE(adopted.ok());
  EXPECT_TRUE(fcntl(copy, F_GETFD) & FD_CLOEXEC);
  EXPECT_FALSE(adopt_listener(0).ok());
  EXPECT_FALSE(adopt_listener(-1).ok());
  const UniqueFd stream(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(adopt_listener(stream.get()).status().code(), Code::kConfiguration);
}

TEST(Socket, ConnectingWaitsForAListenerThatComesLater) {
  Address address;
  {
    auto reserved = listen_on({"127.0.0.1", 0}, 1);
    ASSERT_TRUE(reserved.ok());
    address = *local_address(reserved->get());
  }
  Result<GuardedFd> listener = Status(Code::kInternal, "");
  std::thread later([&] {
    poll(nullptr, 0, 50);
    listener = listen_on(address, 1);
  });
  auto fd = connect_to(address, "127.0.0.1", monotonic_now() + 30 * kSecond);
  later.join();
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  EXPECT_TRUE(fcntl(fd->get(), F_GETFL) & O_NONBLOCK);
  EXPECT_EQ(peer_address(fd->get())->port, address.port);
}

TEST(Socket, AFamilyThatDoesNotFitIsAnErrorAtOnce) {
  const Nanos start = monotonic_now();
  const Status status = connect_to({"127.0.0.1", 1}, "::1", start + 60 * kSecond).status();
  EXPECT_EQ(status.code(), Code::kConfiguration) << status.to_string();
  EXPECT_TRUE(contains(status.message(), "::1")) << status.message();
}

TEST(Socket, AnUnknownSourceOrHostIsAnErrorAtOnce) {
  const Nanos later = monotonic_now() + 60 * kSecond;
  Status status = connect_to({"127.0.0.1", 1}, "192.0.2.1", later).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "192.0.2.1")) << status.message();
  status = interface_address("no-such-interface").status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "this host has ")) << status.message();
  EXPECT_EQ(*interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(*interface_address("10.9.8.7"), "10.9.8.7");
}

TEST(Socket, AnIPv4PeerOfAnIPv6ListenerIsShownByItsIPv4Address) {
  auto listener = listen_on({"::", 0}, 1);
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here";
  auto fd = connect_to({"127.0.0.1", local_address(listener->get())->port}, "",
                       monotonic_now() + 30 * kSecond);
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  pollfd waiting{listener->get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 30000), 1);
  const UniqueFd accepted(accept(listener->get(), nullptr, nullptr));
  EXPECT_EQ(peer_address(accepted.get())->host, "127.0.0.1");
  EXPECT_EQ(local_address(accepted.get())->host, "127.0.0.1");
}

std::string congestion_control(int fd) {
  char name[16] = {};
  socklen_t length = sizeof(name) - 1;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

TEST(Socket, OnlyBbrIsReplaced) {
  size_t tried = 0;
  for (std::string_view chosen : {"bbr", "reno", "cubic"}) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, chosen.data(), chosen.size()) != 0) {
      continue;  // this system does not have it
    }
    ++tried;
    avoid_bbr(fd.get());
    EXPECT_EQ(congestion_control(fd.get()), chosen == "bbr" ? "cubic" : chosen);
  }
  EXPECT_GT(tried, 0u);
}

// An outage of 0.85 s was a silence of 1.6 s with BBR, and with a timeout of 20 ms. It is one of
// 1.1 s with pauses of 200 ms.
TEST(Socket, ControlConnectionsRepeatSteadily) {
  constexpr int kLeastTimeoutOption = 45;  // TCP_RTO_MIN_US
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  auto fd = connect_to({"127.0.0.1", local_address(listener->get())->port}, "",
                       monotonic_now() + 30 * kSecond);
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  prepare(fd->get(), Traffic::kControl);
  EXPECT_EQ(congestion_control(fd->get()), "reno");
  int steady = 0, least = 0;
  socklen_t length = sizeof(steady);
  ASSERT_EQ(getsockopt(fd->get(), IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &steady, &length), 0);
  EXPECT_EQ(steady, 1);
  if (getsockopt(fd->get(), IPPROTO_TCP, kLeastTimeoutOption, &least, &length) == 0) {
    EXPECT_EQ(least, 200'000);
  }
}

// Both ends are on one host, so the round-trip time is close to zero.
TEST(Socket, ALostTailIsSentAgainSoon) {
  constexpr int kLeastTimeoutOption = 45;  // TCP_RTO_MIN_US
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  auto fd = connect_to({"127.0.0.1", local_address(listener->get())->port}, "",
                       monotonic_now() + 30 * kSecond);
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  int least = 0;
  socklen_t length = sizeof(least);
  if (getsockopt(fd->get(), IPPROTO_TCP, kLeastTimeoutOption, &least, &length) != 0) {
    GTEST_SKIP() << "this system is older than Linux 6.15";
  }
  EXPECT_EQ(least, 200'000);
  repeat_soon(fd->get());
  ASSERT_EQ(getsockopt(fd->get(), IPPROTO_TCP, kLeastTimeoutOption, &least, &length), 0);
  EXPECT_LT(least, 50'000);
}

}  // namespace
}  // namespace herring::transport::tcp
