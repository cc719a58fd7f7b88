#include "transport/tcp/connector.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "transport/epoll_loop.h"

namespace herring::transport::tcp {
namespace {

// Both ends on one loop, as in an engine.
class ConnectorTest : public testing::Test {
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
        [this](GuardedFd, const wire::Hello& hello, const Address&) { accepted_ = hello; });
  }

  // Runs the loop until the connector has an answer.
  Result<GuardedFd> connect(const std::string& secret, Nanos patience = 10 * kSecond) {
    std::optional<Result<GuardedFd>> answer;
    std::unique_ptr<Connector> connector;
    connector = std::make_unique<Connector>(
        loop_, address_, "", wire::Hello{wire::Role::kWorker, 3, 0, 7},
        Credentials{secret, wire::job_id("job")}, patience, [&](Result<GuardedFd> fd) {
          EXPECT_FALSE(answer.has_value()) << "twice";
          answer.emplace(std::move(fd));
          connector.reset();  // its owner may let it go at once
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
  EXPECT_EQ(accepted_->epoch, 7u);
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

}  // namespace
}  // namespace herring::transport::tcp
