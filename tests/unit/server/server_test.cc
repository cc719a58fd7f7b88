// Tests a real server with members that may send anything.
#include "server/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include "client.h"
#include "transport/tcp/transport.h"

namespace herring::server {
namespace {

// TCP, but there is no memory for the first connection, which its rank takes for accepted.
class ShortOfMemory final : public transport::Transport {
 public:
  std::shared_ptr<transport::EventLoop> make_loop(bool lends) override {
    return tcp_.make_loop(lends);
  }
  Result<std::unique_ptr<transport::Listener>> listen(transport::EventLoop& loop,
                                                      const transport::Address& address,
                                                      transport::Credentials credentials,
                                                      Admit admit, Accepted accepted) override {
    return tcp_.listen(loop, address, std::move(credentials), std::move(admit),
                       [accepted = std::move(accepted), first = true](
                           std::unique_ptr<transport::Connection> connection,
                           const wire::Hello& hello, const transport::Address& peer) mutable {
                         if (std::exchange(first, false)) throw std::bad_alloc();
                         accepted(std::move(connection), hello, peer);
                       });
  }
  std::unique_ptr<transport::Connecting> connect(transport::EventLoop&, const transport::Address&,
                                                 const std::string&, const wire::Hello&,
                                                 const transport::Credentials&, Nanos,
                                                 Connected) override {
    return nullptr;
  }

 private:
  transport::Transport& tcp_ = transport::tcp::transport();
};

// A flow that sends to nobody.
class SilentFlow final : public transport::Flow {
 public:
  void send(const wire::FrameHeader&, const iovec*, int, uint64_t) override {}
  void lend(const wire::FrameHeader&, const iovec*, int) override {}
  void send_owned(wire::FrameHeader, std::string) override {}
  size_t backlog() const override { return 0; }
  void close(Status) override { closed_ = true; }
  void abandon() override { closed_ = true; }
  void finish(bool) override { closed_ = true; }
  bool closed() const override { return closed_; }
  const transport::FlowCounters& counters() const override { return counters_; }
  transport::PathInfo path_info() const override { return {}; }
  const std::string& peer() const override { return peer_; }

 private:
  bool closed_ = false;
  const transport::FlowCounters counters_;
  const std::string peer_ = "nobody";
};

// Each node has one worker. The parameter is the number of proxies.
class ServerTest : public testing::TestWithParam<uint32_t> {
 protected:
  ServerTest() {
    auto started = Server::start({"127.0.0.1", 0, credentials()}, transport::tcp::transport());
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    server = std::move(*started);
    DataPlaneOptions options;
    options.proxies = GetParam();
    options.segment_bytes = kSegment;
    options.credit_max = 8 * kSegment;
    cluster.servers.push_back({kServerOfRank1, false, 1, "10.0.0.1:7001", 1.0});
    server->attach(cluster, 0, options);
  }

  wire::Announce message(const std::string& name, uint64_t elements, bool inlined) {
    wire::Announce announce;
    announce.name = name;
    announce.arrays = {{DType::kFloat32, {elements}}};
    announce.inline_payload = inlined;
    announce.timeout_ms = announce.warn_ms = 60'000;
    return announce;
  }

  // Returns a flow of `rank`, which says that it no longer needs the server.
  Client releases(uint32_t rank) {
    Client client(*server, rank);
    wire::FrameHeader header;
    header.type = wire::FrameType::kReleased;
    client.send(header);
    return client;
  }
  void expect_soon(const std::function<bool()>& holds) {
    const Nanos deadline = monotonic_now() + kPatience;
    while (!holds() && monotonic_now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(holds());
  }

  // Rank 1 is lost, and then rank 0 leaves, while rank 3 waits.
  void expect_names_rank_1(const control::Loss& loss);

  static constexpr uint32_t kRanks = 4, kServerOfRank1 = 1;
  control::Cluster cluster = make_cluster(kRanks);
  std::unique_ptr<Server> server;
};

TEST_P(ServerTest, EveryRankHearsOfTicketsInTheirOrder) {
  constexpr uint32_t kCalls = 500;
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([this, rank] {
      Client client(*server, rank);
      std::vector<uint32_t> order(kCalls);
      for (uint32_t i = 0; i < kCalls; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(rank));
      for (const uint32_t i : order) client.announce(message(std::to_string(i), 1 << 20, false));
      for (uint32_t ticket = 0; ticket < kCalls; ++ticket) {
        const Client::Frame frame = client.receive();
        ASSERT_EQ(frame.header.type, wire::FrameType::kGo);
        ASSERT_EQ(frame.header.round, ticket) << "rank " << rank;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(ServerTest, WhoConnectsLateHearsWhatWasSaidBefore) {
  Client first(*server, 0);
  first.open(7, 2 * kSegment);
  first.data(3, 1);  // of an operation that rank 0 has not opened
  EXPECT_NE(first.error().find("gave up on rank 0"), std::string::npos);
  EXPECT_TRUE(first.ended());
  Client late(*server, 1);
  EXPECT_NE(late.error().find("gave up on rank 0"), std::string::npos);
}

TEST_P(ServerTest, EveryStreamMaySendOneSegmentBeyondTheCreditAndNoMore) {
  Client client(*server, 0), other(*server, 1);
  client.open(0, 64 * kSegment);
  client.data(0, 8);  // the whole credit
  for (uint32_t stream = 1; stream <= 300; ++stream) {
    client.open(stream, 64 * kSegment);
    client.data(stream, 1);
  }
  client.announce(message("still a member", 1, false));
  wire::Announce refusal = message("still a member", 1, false);
  refusal.refusal = "on purpose";
  other.announce(refusal);
  EXPECT_NE(client.error().find("on purpose"), std::string::npos) << "it was no member any more";
  client.data(300, 1, 1);  // a second segment beyond the credit
  EXPECT_NE(client.error().find("exceeds its credit of 8 segments"), std::string::npos);
  EXPECT_NE(other.error().find("gave up on rank 0"), std::string::npos);
}

// Each plan has a stream of its own. A closed plan's stream must not count any more.
TEST_P(ServerTest, StreamsThatAreOverCountNoMore) {
  if (GetParam() != 1) return;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.push_back(std::make_unique<Client>(*server, rank));
  }
  constexpr uint32_t kAtOnce = 64;
  for (uint32_t first = 0; first < kMostStreams + 4 * kAtOnce; first += kAtOnce) {
    for (auto& client : clients) {
      for (uint32_t stream = first; stream < first + kAtOnce; ++stream) {
        client->open(stream, 4);
        client->data(stream, 1, 0, 0, 4);
      }
    }
    for (auto& client : clients) {
      for (uint32_t stream = first; stream < first + kAtOnce; ++stream) {
        const Client::Frame frame = client->receive();
        ASSERT_EQ(frame.header.type, wire::FrameType::kResult) << "stream " << stream;
      }
    }
  }
}

TEST_P(ServerTest, AGroupGivenUpGoesOnWithPartialRoundsAndWhoIsGoneEndsNothing) {
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.push_back(std::make_unique<Client>(*server, rank));
  }
  wire::FrameHeader header;
  header.group = 7;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    header.type = wire::FrameType::kGroup;
    clients[rank]->send(header, encode(wire::GroupMessage{1, "g", {0, 1, 2}}));
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(clients[rank]->receive().header.type, wire::FrameType::kReply);
  }
  server->rank_left(2);
  const auto still_a_member = [&](uint32_t rank) {
    clients[rank]->announce(message("x", 1, false));
    Client::Frame frame = clients[rank]->receive();
    while (frame.header.type == wire::FrameType::kResult) frame = clients[rank]->receive();
    ASSERT_EQ(frame.header.type, wire::FrameType::kOpError) << "it is no member";
    const auto error = wire::decode_op_error(frame.payload);
    ASSERT_TRUE(error.ok());
    EXPECT_NE(error->text.find("rank 2"), std::string::npos) << error->text;
  };
  still_a_member(0);  // now the server knows who has left
  still_a_member(1);
  header.type = wire::FrameType::kLeaveGroup;
  header.flags = wire::kFlagCalledOff;
  clients[0]->send(header, "a member is gone");
  ASSERT_EQ(clients[1]->receive().header.type, wire::FrameType::kLeaveGroup);
  clients[1]->send(header, "a member is gone");
  still_a_member(1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    clients[rank]->open(wire::kPartialStreams, 4, 0, 7);
    clients[rank]->data(wire::kPartialStreams, 1, 0, 0, 4, 7);
    still_a_member(rank);
  }
  // By the time the server reads what the lost rank had sent, all members have forgotten the group.
  header.flags = 0;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    clients[rank]->send(header);
    still_a_member(rank);
  }
  clients[2]->open(9, 4, 0, 7);
  Client::Frame last = clients[2]->receive();
  while (last.header.type == wire::FrameType::kLeaveGroup) last = clients[2]->receive();
  EXPECT_EQ(last.header.type, wire::FrameType::kHeartbeat) << "its connection has ended";
  still_a_member(0);
}

TEST_P(ServerTest, WhetherItIsIdleCanBeAskedOfAServerThatHasEnded) {
  EXPECT_TRUE(server->idle());
  Client client(*server, 0);
  client.announce(message("x", 1, false));
  const Nanos deadline = monotonic_now() + kPatience;
  while (server->idle() && monotonic_now() < deadline) std::this_thread::yield();
  server->stop();
  EXPECT_FALSE(server->idle()) << "an operation waits for the other ranks";
  EXPECT_EQ(server->traffic(), 0u);
}

TEST_P(ServerTest, WhatAMemberMayNotSendEndsTheJobAndNotTheServer) {
  const auto expect_refusal = [this](const char* what, const auto& act) {
    Client witness(*server, 1);
    Client client(*server, 0);
    act(client);
    EXPECT_NE(client.error().find(what), std::string::npos) << what;
    const Status told = witness.failure();
    EXPECT_EQ(told.code(), Code::kProtocol) << what;
    EXPECT_NE(told.message().find("gave up on rank 0"), std::string::npos) << what;
    EXPECT_TRUE(told.message().ends_with("report it as a bug")) << told.message();
    // The next case needs a fresh server.
    server->stop();
    auto started = Server::start({"127.0.0.1", 0, credentials()}, transport::tcp::transport());
    ASSERT_TRUE(started.ok());
    server = std::move(*started);
    DataPlaneOptions options;
    options.proxies = GetParam();
    options.segment_bytes = kSegment;
    server->attach(cluster, 0, options);
  };
  expect_refusal("with 0 bytes, not 4096", [&](Client& client) {
    client.announce(message("an empty payload", 1024, true));
  });
  expect_refusal("sent no data for it", [](Client& client) {
    client.open(0, kSegment);
    client.data(1, 1);
  });
  expect_refusal("unexpected open", [](Client& client) {
    client.open(0, kSegment);
    client.open(1, kSegment);
  });
  expect_refusal("with a shard of", [](Client& client) { client.open(0, uint64_t{1} << 60); });
  expect_refusal("malformed", [](Client& client) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kOpen;
    client.send(header, "rubbish");
  });
  expect_refusal("reported 9 lent segments", [](Client& client) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kTaken;
    header.taken = 9;
    client.send(header);
  });
  expect_refusal("unexpected", [](Client& client) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kGo;
    client.send(header, "x");
  });
}

TEST_P(ServerTest, ResultsOnTheirWayToAMemberThatIsGivenUpStayWhereTheyAre) {
  // With one proxy, rank 0 is answered before the others read their results, and may send again.
  if (GetParam() != 1) return;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.push_back(std::make_unique<Client>(*server, rank));
  }
  // Rank 0 reads nothing until far more is on its way than sockets hold.
  constexpr uint32_t kRounds = 1500;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (auto& client : clients) {
      client->open(0, 8 * kSegment, round);
      client->data(0, 8, 0, round);
    }
    for (uint32_t rank = 1; rank < kRanks; ++rank) {
      for (uint32_t left = 8; left > 0;) {
        const Client::Frame frame = clients[rank]->receive();
        ASSERT_EQ(frame.header.type, wire::FrameType::kResult);
        left -= frame.header.segments;
      }
    }
  }
  clients[0]->data(3, 1);  // of an operation that rank 0 has not opened
  uint32_t segments = 0;
  Client::Frame frame = clients[0]->receive();
  for (; frame.header.type == wire::FrameType::kResult; frame = clients[0]->receive()) {
    segments += frame.header.segments;
    ASSERT_EQ(frame.payload, std::string(frame.header.payload, '\0'));
  }
  EXPECT_EQ(frame.header.type, wire::FrameType::kOpError);
  EXPECT_LE(segments, 8 * kRounds);
  EXPECT_NE(clients[1]->error().find("gave up on rank 0"), std::string::npos);
}

// A worker reads on when only its connection has failed. What it finds there may be lent memory.
TEST(Server, ResultsThatAreReadAfterTheConnectionEndedAreRight) {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kBytes = 2 * transport::Flow::kLeastLent;
  const control::Cluster cluster = make_cluster(kRanks);
  auto server = Server::start({"127.0.0.1", 0, credentials()}, transport::tcp::transport());
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  DataPlaneOptions options;
  options.segment_bytes = options.frame_max = kBytes;
  options.credit_max = 8 * kBytes;
  (*server)->attach(cluster, 0, options);
  std::vector<std::unique_ptr<Client>> clients;
  const auto push = [&](uint32_t rank, uint32_t stream, uint32_t taken, float value) {
    clients[rank]->open(stream, kBytes);
    wire::FrameHeader header;
    header.type = wire::FrameType::kData;
    header.stream = stream;
    header.segments = 1;
    header.flags = wire::kFlagWant;
    header.taken = taken;
    const std::vector<float> values(kBytes / sizeof(float), value);
    clients[rank]->send(header, {reinterpret_cast<const char*>(values.data()), kBytes});
  };
  const auto expect_sum = [&](uint32_t rank) {
    const Client::Frame frame = clients[rank]->receive();
    ASSERT_EQ(frame.header.type, wire::FrameType::kResult);
    EXPECT_TRUE(frame.header.flags & wire::kFlagLent);
    std::vector<float> values(kBytes / sizeof(float));
    ASSERT_EQ(frame.payload.size(), kBytes);
    std::memcpy(values.data(), frame.payload.data(), kBytes);
    EXPECT_EQ(values, std::vector<float>(values.size(), 4)) << "rank " << rank;
  };
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.push_back(std::make_unique<Client>(**server, rank));
    push(rank, 0, 0, 1);
  }
  ASSERT_TRUE(clients[0]->has(sizeof(wire::FrameHeader) + kBytes));
  for (uint32_t rank = 1; rank < kRanks; ++rank) expect_sum(rank);
  const auto await_traffic = [&](uint64_t bytes) {
    const Nanos deadline = monotonic_now() + kPatience;
    while ((*server)->traffic() < bytes && monotonic_now() < deadline) std::this_thread::yield();
    ASSERT_GE((*server)->traffic(), bytes);
  };
  uint64_t before = (*server)->traffic();
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kTaken;
    header.taken = 1;
    clients[rank]->send(header);
  }
  await_traffic(before + (kRanks - 1) * sizeof(wire::FrameHeader));
  ASSERT_TRUE(clients[0]->end());
  // The memory that was given back last is used first.
  before = (*server)->traffic();
  for (uint32_t rank = 1; rank < kRanks; ++rank) push(rank, 1, 1, 9);
  await_traffic(before + (kRanks - 1) * kBytes);
  expect_sum(0);
}

TEST_P(ServerTest, WhoDiedIsNamedAndNotWhoLeftBecauseOfIt) {
  expect_names_rank_1({.index = 1});
}

TEST_P(ServerTest, WhoseServerDiedIsNamedAndNotWhoLeftBecauseOfIt) {
  expect_names_rank_1({.is_server = true, .index = kServerOfRank1});
}

TEST_P(ServerTest, WhoCallsLaterIsToldWhoseServerDied) {
  server->lost({.is_server = true, .index = kServerOfRank1});
  server->rank_left(0);
  Client late(*server, 3);
  late.announce(message("b", 1, true), "1234");
  const std::string error = late.error();
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
}

TEST_P(ServerTest, WhoLeavesAFailedJobIsToldOfWithTheCause) {
  Client waits(*server, 3);
  waits.announce(message("b", 1, true), "1234");
  server->job_failed("rank 2: GPU 0 is lost");
  server->job_failed("rank 1 has heard of it");
  server->rank_left(0);
  Client late(*server, 1);
  late.announce(message("b", 1, true), "1234");
  for (const std::string& error : {waits.error(), late.error()}) {
    EXPECT_EQ(error.find("'b' cannot complete: rank 0 "), 0u) << error;
    EXPECT_TRUE(error.ends_with("has left the job, which failed: rank 2: GPU 0 is lost")) << error;
  }
}

void ServerTest::expect_names_rank_1(const control::Loss& loss) {
  Client waits(*server, 3);
  waits.announce(message("b", 1, true), "1234");
  // Both are queued before the server's first thread can handle them.
  std::promise<void> held, told;
  server->connect(0, 0, [&](transport::EventLoop&, transport::FlowHandler&) {
    held.set_value();
    told.get_future().wait();
    return std::make_unique<SilentFlow>();
  });
  held.get_future().wait();
  server->lost(loss);
  server->rank_left(0);
  told.set_value();
  const std::string error = waits.error();
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  EXPECT_EQ(error.find("has left"), std::string::npos) << error;
}

// A rank may leave as soon as it has joined, when others are still on their way.
TEST_P(ServerTest, WhoHasNotConnectedYetStillNeedsTheServer) {
  const Client first = releases(1), second = releases(2);
  server->rank_left(0);
  expect_soon([this] { return server->idle(); });
  EXPECT_FALSE(server->released()) << "rank 3 has not connected";
  const Client third = releases(3);
  expect_soon([this] { return server->released(); });
}

TEST_P(ServerTest, WhoDiesBeforeItConnectsIsNotWaitedFor) {
  const Client first = releases(0), second = releases(1), third = releases(2);
  server->lost({false, false, 3, "rank 3 is lost", 0, {}});
  expect_soon([this] { return server->released(); });
}

TEST_P(ServerTest, WhoIsLostWhileConnectedIsNotWaitedFor) {
  const Client first = releases(0), second = releases(1), third = releases(2);
  const Client lost(*server, 3);
  server->lost({false, false, 3, "rank 3 is lost", 0, {}});
  expect_soon([this] { return server->released(); });
}

TEST_P(ServerTest, WithoutNewsOfRanksWhoDoesNotConnectInTimeIsNotWaitedFor) {
  const Client second = releases(1);
  Client first(*server, 0);
  first.announce(message("b", 1, true), "1234");
  { const Client leaves(*server, 2); }
  server->hears_nothing(kPatience);
  EXPECT_EQ(first.receive().header.type, wire::FrameType::kOpError) << "rank 2 has left";
  wire::FrameHeader released;
  released.type = wire::FrameType::kReleased;
  first.send(released);
  expect_soon([this] { return server->idle(); });
  EXPECT_FALSE(server->released()) << "rank 3 may still come";
  server->hears_nothing(kMillisecond);
  expect_soon([this] { return server->released(); });
}

Status connect_as(const Server& server, const wire::Hello& hello,
                  const transport::Credentials& as = credentials()) {
  return transport::tcp::connect_and_prove(server.address(), "", hello, as,
                                           monotonic_now() + kPatience)
      .status();
}

TEST_P(ServerTest, OneConnectionPerFlow) {
  Client first(*server, 0);
  Client again(*server, 0);
  EXPECT_TRUE(again.ended());
  for (const auto& [rank, flow] : {std::pair{0u, 5u}, {4u, 0u}}) {
    const Status refused = connect_as(*server, {wire::Role::kWorker, rank, flow, kIncarnation});
    EXPECT_EQ(refused.code(), Code::kConfiguration);
    EXPECT_NE(refused.message().find(describe(wire::Verdict::kUnexpected)), std::string::npos);
  }
  std::vector<std::unique_ptr<Client>> others;
  first.announce(message("b", 1, true), "1234");
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    others.push_back(std::make_unique<Client>(*server, rank));
    others.back()->announce(message("b", 1, true), "1234");
  }
  EXPECT_EQ(first.receive().header.type, wire::FrameType::kReply) << "the first is served";
}

TEST_P(ServerTest, AnotherJobIsToldSoAndChangesNothing) {
  Client first(*server, 0);
  first.announce(message("b", 1, true), "1234");
  // The same processes with the same secret, started again; and a member that looks for a
  // rendezvous where this server listens now.
  for (const uint32_t incarnation : {kIncarnation + 2, 0u}) {
    const Status refused = connect_as(*server, {wire::Role::kWorker, 1, 0, incarnation});
    EXPECT_EQ(refused.code(), Code::kConfiguration);
    EXPECT_NE(refused.message().find("another start of the same job"), std::string::npos)
        << refused.message();
  }
  const wire::Hello right{wire::Role::kWorker, 1, 0, kIncarnation};
  EXPECT_EQ(connect_as(*server, right, {"a test's secret", wire::job_id("another")}).code(),
            Code::kConfiguration);
  EXPECT_EQ(connect_as(*server, right, {"another secret", wire::job_id("test")}).code(),
            Code::kAuthentication);
  std::vector<std::unique_ptr<Client>> others;
  for (uint32_t rank = 1; rank < kRanks; ++rank) {
    others.push_back(std::make_unique<Client>(*server, rank));
    others.back()->announce(message("b", 1, true), "1234");
  }
  EXPECT_EQ(first.receive().header.type, wire::FrameType::kReply);
}

TEST(Server, WhoLooksForARendezvousIsToldSoByAServerThatWaitsForItsJob) {
  auto server = Server::start({"127.0.0.1", 0, credentials()}, transport::tcp::transport());
  ASSERT_TRUE(server.ok());
  const Status refused = connect_as(**server, {wire::Role::kWorker, 1, 0, 0});
  EXPECT_EQ(refused.code(), Code::kConfiguration);
  EXPECT_NE(refused.message().find("another start"), std::string::npos) << refused.message();
}

TEST_P(ServerTest, AViewTellsWhoIsMissingAndWhatMovedAndWhoWasLast) {
  server->tell_states({{3, ": its process is stopped"}});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.push_back(std::make_unique<Client>(*server, rank));
    clients[rank]->open(0, kSegment);
  }
  for (auto& client : clients) client->data(0, 1);
  for (auto& client : clients) {
    ASSERT_EQ(client->receive().header.type, wire::FrameType::kResult);
  }
  wire::Announce call = message("x", 1, true);
  call.warn_ms = 1;
  clients[0]->announce(call, "abcd");
  const std::string warning = clients[0]->receive().payload;  // the first to come is told
  EXPECT_NE(warning.find("; rank 3: its process is stopped"), std::string::npos) << warning;
  for (const uint32_t rank : {1, 2}) clients[rank]->announce(call, "abcd");
  const Nanos deadline = monotonic_now() + kPatience;
  ServerView view;
  while (view.sums < 1 || view.announced < 3 || view.missing.empty() || view.bytes_sent == 0) {
    ASSERT_LT(monotonic_now(), deadline);
    std::this_thread::yield();
    view = server->view(monotonic_now());
  }
  EXPECT_GT(view.bytes_received, kRanks * kSegment);
  ASSERT_EQ(view.missing.size(), 1u);
  EXPECT_EQ(view.missing[0].what, "allreduce 'x'");
  EXPECT_EQ(view.missing[0].ranks, std::vector<uint32_t>{3});
  EXPECT_EQ(view.in_flight, 0u);
  ASSERT_EQ(view.paths.size(), kRanks);
  EXPECT_GT(view.paths[2].rtt, 0);
  clients[3]->announce(call, "abcd");
  EXPECT_EQ(clients[3]->receive().header.type, wire::FrameType::kReply);
  const ServerView after = server->view(monotonic_now());
  EXPECT_EQ(after.ranks[3].last_calls, 1u);
  EXPECT_GT(after.ranks[3].calls_waited, 0);
  EXPECT_TRUE(after.missing.empty());
  uint64_t last = 0;
  for (const observe::Lateness& one : after.ranks) last += one.last_segments;
  EXPECT_EQ(last, 1u);
  const auto entries = server->recorder().latest(10);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(entries[0].ended);
}

// A rank whose connection is lost waits for a server that does not know it. Nobody is dead, so only
// the server can end that.
TEST(Server, WhatFailsBeforeTheJobBeginsEndsIt) {
  ShortOfMemory transport;
  auto server = Server::start({"127.0.0.1", 0, credentials()}, transport);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  Client lost(**server, 0);
  EXPECT_TRUE(lost.ended());
  Client other(**server, 1);
  const control::Cluster cluster = make_cluster(2);
  (*server)->attach(cluster, 0, DataPlaneOptions());
  const Status told = other.failure();
  EXPECT_NE(told.message().find("out of memory"), std::string::npos) << told.message();
}

INSTANTIATE_TEST_SUITE_P(Proxies, ServerTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace herring::server
