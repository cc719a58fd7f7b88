// Tests of epochs: every loss begins one, all members count alike, and a notice out of turn is
// refused.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "control/channel.h"
#include "control/messages.h"
#include "job.h"
#include "tests/unit/text.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/transport.h"

namespace herring::control {
namespace {

using testing::Running;
using testing::Witness;
using wire::FrameType;

TEST(Epoch, EveryLossAndEveryLeaveCountsOne) {
  Running running(4);
  for (const auto& worker : running.workers) EXPECT_EQ(worker->epoch(), kFirstEpoch);
  EXPECT_EQ(running.server->epoch(), kFirstEpoch);
  Witness zero(*running.workers[0]), one(*running.workers[1]), server(*running.server);
  running.workers[3]->goodbye();
  ASSERT_TRUE(zero.wait_losses(1));
  running.workers[2].reset();
  for (Witness* witness : {&zero, &one, &server}) {
    ASSERT_TRUE(witness->wait_losses(2));
    EXPECT_EQ(witness->losses()[0].index, 3u);
    EXPECT_EQ(witness->losses()[0].epoch, 2u);
    EXPECT_EQ(witness->losses()[1].index, 2u);
    EXPECT_EQ(witness->losses()[1].epoch, 3u);
  }
  EXPECT_EQ(running.workers[0]->epoch(), 3u);
  EXPECT_EQ(running.workers[1]->epoch(), 3u);
  EXPECT_EQ(running.server->epoch(), 3u);
  EXPECT_EQ(running.workers[0]->cluster().epoch, kFirstEpoch) << "as it was described";
}

TEST(Epoch, ManyWhoLeaveTogetherCountAsMany) {
  constexpr uint32_t kWorkers = 12;
  Running running(kWorkers);
  Witness zero(*running.workers[0]);
  std::vector<std::future<void>> leaving;
  for (uint32_t rank = 1; rank < kWorkers; ++rank) {
    leaving.push_back(std::async(std::launch::async,
                                 [&running, rank] { running.workers[rank]->goodbye(); }));
  }
  leaving.clear();
  ASSERT_TRUE(zero.wait_losses(kWorkers - 1));
  uint32_t epoch = kFirstEpoch;
  for (const Loss& loss : zero.losses()) EXPECT_EQ(loss.epoch, ++epoch);
  EXPECT_EQ(running.workers[0]->epoch(), kWorkers);
}

TEST(Epoch, AJobThatBeginsAgainIsAnotherIncarnation) {
  std::vector<uint32_t> seen;
  for (int i = 0; i < 2; ++i) {
    Running running(2);
    EXPECT_EQ(running.workers[0]->cluster().incarnation, running.workers[1]->cluster().incarnation);
    EXPECT_EQ(running.workers[0]->epoch(), kFirstEpoch);
    seen.push_back(running.workers[0]->cluster().incarnation);
  }
  EXPECT_NE(seen[0], 0u);
  EXPECT_NE(seen[0], seen[1]);
}

// A rendezvous that describes a job of four ranks and a server to every member, and then sends what
// a test wants.
class FakeRendezvous : public Channel::Owner {
 public:
  FakeRendezvous()
      : acceptor_(
            loop_, std::move(*transport::tcp::listen_on({"127.0.0.1", 0}, 8)),
            testing::credentials(),
            [](const wire::Hello&) { return wire::Verdict::kAccepted; },
            [this](transport::tcp::Socket fd, const wire::Hello&, const transport::Address& peer) {
              const auto connection =
                  transport::tcp::make_connection(std::move(fd), peer.to_string());
              channel_ = std::make_unique<Channel>(loop_, *connection, 1 << 20, *this);
            }) {
    loop_.start("fake");
  }
  ~FakeRendezvous() override { loop_.join(); }

  const transport::Address& address() const { return acceptor_.address(); }
  void describe(uint32_t epoch) { epoch_ = epoch; }  // to be called before a member joins
  void tell(uint32_t epoch, std::vector<uint32_t> ranks) {
    LossNotice notice{epoch, {}};
    for (const uint32_t rank : ranks) notice.losses.push_back({false, false, rank, "gone"});
    loop_.post([this, text = encode(notice)] { channel_->send(FrameType::kPeerLost, text); });
  }

 private:
  Status on_message(Channel& channel, FrameType type, uint8_t, std::string_view) override {
    if (type != FrameType::kRegister) return {};
    ClusterMessage message;
    message.index = 3;
    message.cluster.epoch = epoch_;
    message.cluster.size = 4;
    message.cluster.nodes = 1;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      message.cluster.workers.push_back({rank, 0, rank, "10.0.0.1", 10 + rank, ""});
    }
    message.cluster.servers = {{0, true, ~0u, "10.0.0.2:7000", 1}};
    channel.send(FrameType::kReady, encode(message));
    return {};
  }
  void on_dropped(Channel&, const Status&) override {}

  uint32_t epoch_ = kFirstEpoch;
  transport::EpollLoop loop_;
  std::unique_ptr<Channel> channel_;
  transport::tcp::Acceptor acceptor_;
};

Result<std::unique_ptr<Member>> join(const FakeRendezvous& rendezvous) {
  Member::Options options;
  options.rendezvous = rendezvous.address();
  options.credentials = testing::credentials();
  options.heartbeat_timeout = 60 * kSecond;
  WorkerRegistration registration;
  registration.rank = 3;
  registration.size = 4;
  registration.dedicated_servers = 1;
  return Member::join(options, registration, nullptr);
}

TEST(Epoch, MembersFollowTheNotices) {
  FakeRendezvous rendezvous;
  auto member = join(rendezvous);
  ASSERT_TRUE(member.ok()) << member.status().to_string();
  Witness witness(**member);
  rendezvous.tell(2, {1});
  rendezvous.tell(4, {2, 0});
  ASSERT_TRUE(witness.wait_losses(3));
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(witness.losses()[i].epoch, 2 + i);
  EXPECT_EQ((*member)->epoch(), 4u);
}

TEST(Epoch, ANoticeOutOfTurnEndsTheConnection) {
  struct Case {
    uint32_t epoch;
    std::vector<uint32_t> ranks;
    const char* why;
  };
  const Case cases[] = {
      {2, {2}, "malformed notice of losses: epoch 2 with 1 of them, after epoch 2"},  // not newer
      {4, {2}, "malformed notice of losses: epoch 4 with 1 of them, after epoch 2"},  // skips 3
      {3, {2, 3}, "malformed notice of losses: epoch 3 with 2 of them, after epoch 2"},
      {0, {2}, "malformed notice of losses"},
      {~0u, {2}, "malformed notice of losses"},
      {2, {}, "malformed notice of losses"},
      {3, {4}, "a loss notice for an unknown or already lost process"},
      {3, {1}, "a loss notice for an unknown or already lost process"},  // rank 1 is lost already
  };
  for (const Case& one : cases) {
    FakeRendezvous rendezvous;
    auto member = join(rendezvous);
    ASSERT_TRUE(member.ok()) << member.status().to_string();
    Witness witness(**member);
    rendezvous.tell(2, {1});
    rendezvous.tell(one.epoch, one.ranks);
    ASSERT_TRUE(witness.wait_losses(2));
    const Loss loss = witness.losses()[1];
    EXPECT_EQ(loss.index, 0u);
    EXPECT_TRUE(contains(loss.text, "which hosts the rendezvous")) << loss.text;
    EXPECT_TRUE(contains(loss.text, one.why)) << loss.text;
    // The member itself counts the loss of the rendezvous, because no other process can.
    EXPECT_EQ(loss.epoch, 3u);
    EXPECT_EQ((*member)->epoch(), 3u);
  }
}

TEST(Epoch, ACompleteClusterIsTheFirstEpoch) {
  for (const uint32_t epoch : {0u, 2u}) {
    FakeRendezvous rendezvous;
    rendezvous.describe(epoch);
    auto member = join(rendezvous);
    ASSERT_FALSE(member.ok());
    EXPECT_TRUE(contains(member.status().message(), "unexpected description of the cluster"))
        << member.status().message();
  }
}

}  // namespace
}  // namespace herring::control
