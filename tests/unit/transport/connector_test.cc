#include "transport/tcp/connector.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/interrupt.h"
#include "door.h"
#include "transport/epoll_loop.h"

namespace herring::transport::tcp {
namespace {

using testing::Door;
using testing::kGood;
using testing::soon;

// Both ends run on one loop, as in an engine.
class ConnectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = listen_on({"127.0.0.1", 0}, 16);
    ASSERT_TRUE(listener.ok());
    address_ = *local_address(listener->get());
    listener_ = std::move(*listener);
  }

  void accept(wire::Verdict verdict = wire::Verdict::kAccepted) {
    acceptor_ = std::make_unique<Acceptor>(
        loop_, std::move(listener_), Credentials{"secret", wire::job_id("job")},
        [verdict](const wire::Hello&) { return verdict; },
        [this](Socket, const wire::Hello& hello, const Address&) { accepted_ = hello; });
  }

  // Runs the loop until the connector has answered.
  Result<Socket> connect(const std::string& secret, Nanos patience = 10 * kSecond) {
    std::optional<Result<Socket>> answer;
    std::unique_ptr<Connector> connector;
    connector = std::make_unique<Connector>(
        loop_, address_, "", wire::Hello{wire::Role::kWorker, 3, 0, 7},
        Credentials{secret, wire::job_id("job")}, patience, [&](Result<Socket> fd) {
          EXPECT_FALSE(answer.has_value()) << "twice";
          answer.emplace(std::move(fd));
          connector.reset();  // the owner may destroy it at once
          loop_.stop();
        });
    loop_.run();
    if (!answer) return Status(Code::kInternal, "no answer");
    return std::move(*answer);
  }

  EpollLoop loop_;
  GuardedFd listener_;
  Address address_;
  std::unique_ptr<Acceptor> acceptor_;
  std::optional<wire::Hello> accepted_;
};

TEST_F(ConnectorTest, ProvesWhoItIs) {
  accept();
  const auto fd = connect("secret");
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  EXPECT_TRUE((*fd).valid());
  ASSERT_TRUE(accepted_.has_value());
  EXPECT_EQ(accepted_->rank, 3u);
  EXPECT_EQ(accepted_->incarnation, 7u);
}

TEST_F(ConnectorTest, DoesNotTrustWhoDoesNotKnowTheSecret) {
  accept();
  const auto fd = connect("another");
  EXPECT_EQ(fd.status().code(), Code::kAuthentication);
  EXPECT_NE(fd.status().message().find(address_.to_string()), std::string::npos);
  EXPECT_FALSE(accepted_.has_value());
}

TEST_F(ConnectorTest, TellsWhyItWasRefused) {
  accept(wire::Verdict::kUnexpected);
  EXPECT_EQ(connect("secret").status().code(), Code::kConfiguration);
}

TEST_F(ConnectorTest, NobodyListens) {
  listener_.reset();
  EXPECT_EQ(connect("secret").status().code(), Code::kPeerLost);
}

TEST_F(ConnectorTest, NobodyAnswersInTime) {
  EXPECT_EQ(connect("secret", 50 * kMillisecond).status().code(), Code::kTimeout);
}

TEST_F(ConnectorTest, AnAddressThatCannotBe) {
  address_.host = "no.such.host.invalid";
  EXPECT_FALSE(connect("secret").ok());
}

std::vector<Wanted> hellos(const std::vector<Address>& addresses, uint32_t flows) {
  std::vector<Wanted> wanted;
  for (uint32_t server = 0; server < addresses.size(); ++server) {
    for (uint32_t k = 0; k < flows; ++k) {
      wanted.push_back({addresses[server], {wire::Role::kWorker, 5, k, 0}});
    }
  }
  return wanted;
}

TEST(ConnectAll, BringsThemInTheirOrder) {
  Door one, other;
  const auto wanted = hellos({one.address(), other.address()}, 100);
  const auto found = connect_all(wanted, "", kGood, soon(), 150);  // wherever connect_all() begins
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), 200u);
  std::set<int> different;
  for (size_t i = 0; i < found->size(); ++i) {
    different.insert((*found)[i].get());
    EXPECT_EQ(peer_address((*found)[i].get())->port, wanted[i].address.port);
  }
  EXPECT_EQ(different.size(), 200u);
  EXPECT_TRUE(connect_all({}, "", kGood, soon())->empty());
}

// The listener says nothing before several members have said hello. If they connected one after the
// other, they would wait forever.
TEST(ConnectAll, ManyAreOnTheirWayAtOnce) {
  auto listener = listen_on({"127.0.0.1", 0}, 256);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  std::thread server([&] {
    std::vector<UniqueFd> all;
    for (size_t i = 0; i < kConnectingAtOnce; ++i) {
      pollfd waiting{listener->get(), POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 30000), 1);
      all.emplace_back(accept(listener->get(), nullptr, nullptr));
      wire::ClientHello hello;
      ASSERT_EQ(recv(all.back().get(), &hello, sizeof(hello), MSG_WAITALL),
                static_cast<ssize_t>(sizeof(hello)));
    }
    const std::string answer = "HTTP/1.1 400 Bad Request\r\n" + std::string(200, ' ');
    EXPECT_GT(send(all[0].get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    char drain[200];
    while (recv(all[0].get(), drain, sizeof(drain), 0) > 0) continue;
  });
  const auto found = connect_all(hellos({address}, kConnectingAtOnce), "", kGood, soon());
  EXPECT_EQ(found.status().code(), Code::kConfiguration) << "another protocol";
  server.join();
}

TEST(ConnectAll, TheFirstErrorEndsIt) {
  Door door;
  auto wanted = hellos({door.address()}, 300);
  wanted[200].hello.rank = 13;
  const auto found = connect_all(wanted, "", kGood, soon());
  EXPECT_EQ(found.status().code(), Code::kConfiguration);
  EXPECT_NE(found.status().message().find(door.address().to_string()), std::string::npos);
}

TEST(ConnectAll, WhoEndsDuringTheHelloIsTriedAgain) {
  auto listener = listen_on({"127.0.0.1", 0}, 256);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  EpollLoop loop;
  std::unique_ptr<Acceptor> acceptor;
  std::vector<Socket> in;
  std::thread server([&] {
    for (int i = 0; i < 3; ++i) {
      pollfd waiting{listener->get(), POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 30000), 1);
      const UniqueFd closed(accept(listener->get(), nullptr, nullptr));
    }
    acceptor = std::make_unique<Acceptor>(
        loop, std::move(*listener), kGood,
        [](const wire::Hello&) { return wire::Verdict::kAccepted; },
        [&](Socket fd, const wire::Hello&, const Address&) { in.push_back(std::move(fd)); });
    loop.start("door");
  });
  const auto found = connect_all(hellos({address}, 8), "", kGood, soon());
  server.join();
  EXPECT_TRUE(found.ok()) << found.status().message();
  loop.post([&] { acceptor.reset(); });
  loop.join();
}

TEST(ConnectAll, SilenceEndsAtTheDeadline) {
  auto listener = listen_on({"127.0.0.1", 0}, 256);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  const auto found = connect_all(hellos({address}, 3), "", kGood,
                                 monotonic_now() + 100 * kMillisecond);
  EXPECT_EQ(found.status().code(), Code::kTimeout);
  // The error names the address and the total time, however many attempts there were.
  const std::string& text = found.status().message();
  EXPECT_NE(text.find(address.to_string() +
                      " accepts connections but did not complete the hello in 0.1"),
            std::string::npos) << text;
}

TEST(ConnectAll, EndsWhenItsThreadIsInterrupted) {
  auto listener = listen_on({"127.0.0.1", 0}, 256);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  std::atomic<int> asked{0};
  const Interruptible interruptible([&] { return ++asked > 2; });
  EXPECT_FALSE(connect_all(hellos({address}, 3), "", kGood, soon()).ok());
  EXPECT_FALSE(connect_and_prove(address, "", {}, kGood, soon()).ok());
}

TEST(ConnectAll, EndsWhenItIsGivenUpElsewhere) {
  auto listener = listen_on({"127.0.0.1", 0}, 256);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  int asked = 0;
  const auto found = connect_all(hellos({address}, 3), "", kGood, soon(), 0, [&] {
    return ++asked > 2 ? Status(Code::kPeerLost, "rank 3 is gone") : Status();
  });
  EXPECT_EQ(found.status().code(), Code::kPeerLost);
  EXPECT_EQ(found.status().message(), "rank 3 is gone");
}

TEST(ConnectAll, MoreThanTheSystemAllowsIsOneClearError) {
  const Status status = want_descriptors(size_t{1} << 40);
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_NE(status.message().find("ulimit -Hn"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace herring::transport::tcp
