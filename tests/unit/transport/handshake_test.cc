#include "transport/tcp/connector.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "door.h"
#include "tests/unit/text.h"
#include "transport/epoll_loop.h"

namespace herring::transport::tcp {
namespace {

using testing::Door;
using testing::kGood;
using testing::soon;
using wire::Verdict;

// A raw client that sends and reads any bytes. hear() returns false if the connection has ended.
class Raw {
 public:
  explicit Raw(const Address& address) {
    auto fd = connect_to(address, "", soon());
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    fd_ = std::move(*fd);
  }
  template <typename T>
  void say(const T& message) {
    say(&message, sizeof(message));
  }
  void say(const void* data, size_t bytes) {
    EXPECT_EQ(::send(fd_.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  template <typename T>
  bool hear(T& message) {
    char* at = reinterpret_cast<char*>(&message);
    for (size_t have = 0; have < sizeof(T);) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (poll(&waiting, 1, 600'000) != 1) {
        ADD_FAILURE() << "nothing came";
        return false;
      }
      const ssize_t n = recv(fd_.get(), at + have, sizeof(T) - have, 0);
      if (n <= 0) return false;
      have += n;
    }
    return true;
  }
  bool ended() {
    char byte;
    return !hear(byte);
  }
  int fd() const { return fd_.get(); }

 private:
  GuardedFd fd_;
};

TEST(Handshake, AMemberGetsInAndIsKnown) {
  Door door;
  const wire::Hello hello{wire::Role::kServer, 7, 3, 2};
  auto fd = connect_and_prove(door.address(), "127.0.0.1", hello, kGood, soon());
  ASSERT_TRUE(fd.ok()) << fd.status().to_string();
  ASSERT_TRUE(door.wait(1, 0));
  const wire::Hello& seen = door.accepted()[0].second;
  EXPECT_EQ(seen.role, hello.role);
  EXPECT_EQ(seen.rank, hello.rank);
  EXPECT_EQ(seen.flow, hello.flow);
  EXPECT_EQ(seen.incarnation, hello.incarnation);
  EXPECT_TRUE(door.refused().empty());
}

TEST(Handshake, BytesMayComeOneByOne) {
  Door door;
  Raw raw(door.address());
  const auto client = wire::make_client_hello({}, kGood.job);
  const auto* bytes = reinterpret_cast<const char*>(&client);
  for (size_t i = 0; i < sizeof(client); ++i) raw.say(bytes + i, 1);
  wire::ServerHello server;
  ASSERT_TRUE(raw.hear(server));
  ASSERT_TRUE(wire::check_server_hello(server, "x").ok());
  const auto proof = wire::make_client_proof(client, server, kGood.secret);
  for (size_t i = 0; i < sizeof(proof); ++i) raw.say(reinterpret_cast<const char*>(&proof) + i, 1);
  wire::VerdictMessage verdict;
  ASSERT_TRUE(raw.hear(verdict));
  EXPECT_TRUE(wire::check_verdict(client, server, verdict, kGood.secret, "x").ok());
}

// What a member sends right after its proof belongs to the flow and must still be in the socket.
TEST(Handshake, WhatFollowsTheProofStaysInTheSocket) {
  Door door;
  Raw raw(door.address());
  const auto client = wire::make_client_hello({}, kGood.job);
  raw.say(client);
  wire::ServerHello server;
  ASSERT_TRUE(raw.hear(server));
  std::string both(sizeof(wire::ClientProof), '\0');
  const auto proof = wire::make_client_proof(client, server, kGood.secret);
  std::memcpy(both.data(), &proof, sizeof(proof));
  both += "frame";
  raw.say(both.data(), both.size());
  ASSERT_TRUE(door.wait(1, 0));
  char text[5];
  const int fd = door.accepted()[0].first.get();
  pollfd waiting{fd, POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 600'000), 1);
  EXPECT_EQ(recv(fd, text, sizeof(text), 0), 5);
  EXPECT_EQ(std::string(text, 5), "frame");
}

TEST(Handshake, AWrongSecretIsRefusedAndBothSidesSaySo) {
  Door door;
  const Status status =
      connect_and_prove(door.address(), "", {}, {"a guess", kGood.job}, soon()).status();
  EXPECT_EQ(status.code(), Code::kAuthentication);
  EXPECT_TRUE(contains(status.message(), door.address().to_string())) << status.message();
  ASSERT_TRUE(door.wait(0, 1));
  EXPECT_EQ(door.refused()[0], wire::describe(Verdict::kWrongSecret));
}

TEST(Handshake, AWrongProofIsRefused) {
  Door door;
  Raw raw(door.address());
  const auto client = wire::make_client_hello({}, kGood.job);
  raw.say(client);
  wire::ServerHello server;
  ASSERT_TRUE(raw.hear(server));
  raw.say(wire::make_client_proof(client, server, "a guess"));
  wire::VerdictMessage verdict;
  ASSERT_TRUE(raw.hear(verdict));
  EXPECT_EQ(verdict.verdict, static_cast<uint16_t>(Verdict::kWrongSecret));
  const uint8_t none[32] = {};
  EXPECT_EQ(std::memcmp(verdict.mac, none, sizeof(none)), 0) << "no proof for strangers";
  EXPECT_TRUE(raw.ended());
  EXPECT_EQ(door.refused().size(), 1u);
  EXPECT_TRUE(door.accepted().empty());
}

// A stranger may know the protocol and the job's name, which has a default.
TEST(Handshake, WhoHasProvenNothingGetsNothingToTryGuessesOn) {
  Door door;
  Raw raw(door.address());
  raw.say(wire::make_client_hello({}, kGood.job));
  wire::ServerHello server;
  ASSERT_TRUE(raw.hear(server));
  EXPECT_EQ(server.verdict, static_cast<uint16_t>(Verdict::kAccepted));
  const std::string all(reinterpret_cast<const char*>(&server), sizeof(server));
  EXPECT_EQ(all.substr(offsetof(wire::ServerHello, unused)), std::string(32, '\0'));
}

// A client that only echoes is refused, whether it sends back the server's proof or a member's own.
TEST(Handshake, AnEchoIsNoProof) {
  Door door;
  const auto client = wire::make_client_hello({}, kGood.job);
  Raw good(door.address());
  good.say(client);
  wire::ServerHello server;
  ASSERT_TRUE(good.hear(server));
  good.say(wire::make_client_proof(client, server, kGood.secret));
  wire::VerdictMessage verdict;
  ASSERT_TRUE(good.hear(verdict));

  Raw raw(door.address());
  raw.say(client);
  ASSERT_TRUE(raw.hear(server));
  raw.say(verdict.mac);
  ASSERT_TRUE(raw.hear(verdict));
  EXPECT_EQ(verdict.verdict, static_cast<uint16_t>(Verdict::kWrongSecret));

  auto listener = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(listener.ok());
  std::thread mirror([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 600'000);
    const UniqueFd fd(accept(listener->get(), nullptr, nullptr));
    const auto hello = wire::make_server_hello(Verdict::kAccepted);
    EXPECT_EQ(::send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(hello)));
    char skipped[sizeof(wire::ClientHello)];
    EXPECT_EQ(recv(fd.get(), skipped, sizeof(skipped), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(skipped)));
    wire::ClientProof proof;
    EXPECT_EQ(recv(fd.get(), &proof, sizeof(proof), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(proof)));
    wire::VerdictMessage accepted{};
    std::memcpy(accepted.mac, proof.mac, sizeof(proof.mac));
    EXPECT_EQ(::send(fd.get(), &accepted, sizeof(accepted), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(accepted)));
    char drain[200];
    while (recv(fd.get(), drain, sizeof(drain), 0) > 0) continue;
  });
  const Status status =
      connect_and_prove(*local_address(listener->get()), "", {}, kGood, soon()).status();
  EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
  mirror.join();
}

TEST(Handshake, AReplayOfAGoodHandshakeIsRefused) {
  Door door;
  const auto client = wire::make_client_hello({}, kGood.job);
  wire::ServerHello server;
  wire::VerdictMessage verdict;
  Raw good(door.address());
  good.say(client);
  ASSERT_TRUE(good.hear(server));
  const auto proof = wire::make_client_proof(client, server, kGood.secret);
  good.say(proof);
  ASSERT_TRUE(good.hear(verdict));
  ASSERT_EQ(verdict.verdict, static_cast<uint16_t>(Verdict::kAccepted));

  Raw replay(door.address());
  replay.say(client);
  wire::ServerHello other;
  ASSERT_TRUE(replay.hear(other));
  EXPECT_NE(std::memcmp(server.nonce, other.nonce, sizeof(other.nonce)), 0);
  replay.say(proof);
  ASSERT_TRUE(replay.hear(verdict));
  EXPECT_EQ(verdict.verdict, static_cast<uint16_t>(Verdict::kWrongSecret));
  EXPECT_EQ(door.accepted().size(), 1u);
}

TEST(Handshake, AReplayedServerIsRefusedByTheClient) {
  wire::ServerHello recorded;
  wire::VerdictMessage verdict;
  {
    Door door;
    Raw raw(door.address());
    const auto client = wire::make_client_hello({}, kGood.job);
    raw.say(client);
    ASSERT_TRUE(raw.hear(recorded));
    raw.say(wire::make_client_proof(client, recorded, kGood.secret));
    ASSERT_TRUE(raw.hear(verdict));
  }
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(listener.ok());
  std::thread impostor([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 600'000);
    const UniqueFd fd(accept(listener->get(), nullptr, nullptr));
    EXPECT_EQ(::send(fd.get(), &recorded, sizeof(recorded), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(recorded)));
    EXPECT_EQ(::send(fd.get(), &verdict, sizeof(verdict), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(verdict)));
    char drain[200];
    while (recv(fd.get(), drain, sizeof(drain), 0) > 0) continue;
  });
  const Status status =
      connect_and_prove(*local_address(listener->get()), "", {}, kGood, soon()).status();
  EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
  impostor.join();
}

TEST(Handshake, VersionJobAndRoleAreAnsweredWithTheirVerdict) {
  const struct {
    void (*change)(wire::ClientHello&);
    Verdict verdict;
  } cases[] = {
      {[](wire::ClientHello& hello) { hello.version = 99; }, Verdict::kWrongVersion},
      {[](wire::ClientHello& hello) { hello.job[3] ^= 1; }, Verdict::kWrongJob},
      {[](wire::ClientHello& hello) { hello.role = 77; }, Verdict::kUnexpected},
  };
  for (const auto& one : cases) {
    Door door;
    Raw raw(door.address());
    auto client = wire::make_client_hello({}, kGood.job);
    one.change(client);
    raw.say(client);
    wire::ServerHello server;
    ASSERT_TRUE(raw.hear(server));
    EXPECT_EQ(server.version, wire::kProtocolVersion);
    EXPECT_EQ(server.verdict, static_cast<uint16_t>(one.verdict));
    const uint8_t none[32] = {};
    EXPECT_EQ(std::memcmp(server.unused, none, sizeof(none)), 0) << "no proof for strangers";
    EXPECT_TRUE(raw.ended());
    EXPECT_EQ(door.refused(),
              (std::vector<std::string>{wire::describe_refusal(one.verdict, client)}));
  }
}

TEST(Handshake, GarbageGetsNoAnswer) {
  Door door;
  for (const std::string& garbage :
       {std::string("x"), std::string("HRRINGxx"), std::string(72, '\0'), std::string(5000, 'A'),
        std::string("GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: probe/1.0\r\n"
                    "Accept: */*\r\n\r\n")}) {
    Raw raw(door.address());
    raw.say(garbage.data(), garbage.size());
    EXPECT_TRUE(raw.ended());
  }
  EXPECT_TRUE(connect_and_prove(door.address(), "", {}, kGood, soon()).ok());
  EXPECT_TRUE(door.refused().empty()) << "not worth a line each";
}

TEST(Handshake, ARefusedRankIsToldWhy) {
  Door door;
  const Status status =
      connect_and_prove(door.address(), "", {wire::Role::kWorker, 13}, kGood, soon()).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), wire::describe(Verdict::kUnexpected)));
  ASSERT_TRUE(door.wait(0, 1));
  EXPECT_EQ(door.refused().front(), wire::describe(Verdict::kUnexpected));
}

TEST(Handshake, SlowStrangersAreDroppedAfterAWhile) {
  Door door({256, 200 * kMillisecond});
  Raw silent(door.address()), half(door.address()), unproven(door.address());
  const auto client = wire::make_client_hello({}, kGood.job);
  half.say(&client, 40);
  unproven.say(client);
  wire::ServerHello server;
  ASSERT_TRUE(unproven.hear(server));
  EXPECT_TRUE(silent.ended());
  EXPECT_TRUE(half.ended());
  EXPECT_TRUE(unproven.ended());
}

TEST(Handshake, MoreStrangersThanMayWaitKeepNobodyOut) {
  Door door({4, 60 * kSecond, 60 * kSecond, 10 * kMillisecond});
  std::vector<std::unique_ptr<Raw>> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(std::make_unique<Raw>(door.address()));
  EXPECT_TRUE(connect_and_prove(door.address(), "", {}, kGood, soon()).ok());
  // The member displaced one stranger and left. Of the others, the last three (or four) still wait.
  for (int i = 0; i < 26; ++i) EXPECT_TRUE(strangers[i]->ended()) << i;
  pollfd last{strangers.back()->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&last, 1, 0), 0);
}

// Hundreds of connections say nothing, reconnect as often as they are dropped and never leave. They
// are strangers, because a member speaks as soon as it is connected.
TEST(Handshake, StrangersThatComeAgainKeepNobodyOut) {
  constexpr int kStrangers = 700;
  Door door({256, 60 * kSecond, 60 * kSecond, kMillisecond});
  ASSERT_TRUE(want_descriptors(2 * kStrangers).ok());
  std::atomic<bool> over = false;
  std::thread crowd([&] {
    std::vector<GuardedFd> strangers;
    std::vector<pollfd> polled(kStrangers);
    strangers.resize(kStrangers);
    while (!over) {
      for (int i = 0; i < kStrangers; ++i) {
        if (!strangers[i].valid() || polled[i].revents != 0) {
          auto fd = connect_to(door.address(), "", soon());
          if (fd.ok()) strangers[i] = std::move(*fd);
        }
        polled[i] = {strangers[i].get(), POLLIN, 0};
      }
      poll(polled.data(), polled.size(), 1);
    }
  });
  for (uint32_t rank = 100; rank < 110; ++rank) {
    const auto fd =
        connect_and_prove(door.address(), "", {wire::Role::kWorker, rank}, kGood, soon());
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
  }
  over = true;
  crowd.join();
}

// Strangers replay the hello of a member, which looks good, and never prove anything.
TEST(Handshake, ReplayedHellosFromOneHostKeepNobodyOut) {
  constexpr int kStrangers = 700;
  // Without suspicion, each of them would keep its place for a second.
  Door door({8, 60 * kSecond, kSecond, kSecond, kMillisecond, 4});
  ASSERT_TRUE(want_descriptors(2 * kStrangers).ok());
  const wire::ClientHello recorded = wire::make_client_hello({wire::Role::kWorker, 3}, kGood.job);
  std::atomic<bool> over = false;
  std::atomic<int> came = 0;
  std::thread crowd([&] {
    std::vector<GuardedFd> strangers(kStrangers);
    std::vector<pollfd> polled(kStrangers);
    while (!over) {
      for (int i = 0; i < kStrangers && !over; ++i) {
        if (polled[i].revents != 0) {
          char bytes[256];
          if (recv(strangers[i].get(), bytes, sizeof bytes, 0) <= 0) strangers[i].reset();
        }
        if (!strangers[i].valid()) {
          auto fd = connect_to(door.address(), "", soon());
          if (fd.ok()) strangers[i] = std::move(*fd);
          send(strangers[i].get(), &recorded, sizeof recorded, MSG_NOSIGNAL);
          ++came;
        }
        polled[i] = {strangers[i].get(), POLLIN, 0};
      }
      poll(polled.data(), polled.size(), 1);
    }
  });
  while (came < kStrangers) std::this_thread::yield();
  for (uint32_t rank = 100; rank < 103; ++rank) {
    const auto fd =
        connect_and_prove(door.address(), "", {wire::Role::kWorker, rank}, kGood, soon());
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
  }
  over = true;
  crowd.join();
}

TEST(Handshake, AHostIsSuspectUntilOneOfItsConnectionsProvesItself) {
  Suspects suspects(3);
  const Nanos now = 100 * kSecond;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(suspects.suspect("10.0.0.1", now));
    suspects.failed("10.0.0.1", now);
  }
  EXPECT_TRUE(suspects.suspect("10.0.0.1", now));
  EXPECT_FALSE(suspects.suspect("10.0.0.2", now));
  suspects.proved("10.0.0.1");
  EXPECT_FALSE(suspects.suspect("10.0.0.1", now));
  // Addresses of one network count together; the record fades.
  for (int i = 0; i < 3; ++i) suspects.failed(concat("fd00::", i + 1), now);
  EXPECT_TRUE(suspects.suspect("fd00::ffff", now));
  EXPECT_FALSE(suspects.suspect("fd00:0:0:1::1", now));
  EXPECT_FALSE(suspects.suspect("fd00::1", now + Suspects::kMemory + 1));
  // Memory is bounded, and the newest hosts are remembered.
  for (int i = 0; i < 5000; ++i) {
    for (int k = 0; k < 3; ++k) suspects.failed(concat("10.1.", i / 256, ".", i % 256), now + i);
  }
  EXPECT_LE(suspects.size(), Suspects::kMostHosts);
  EXPECT_TRUE(suspects.suspect("10.1.19.135", now + 5000));
}

// All members have connected before the first says a word. More wait than allowed, yet none is
// dropped.
TEST(Handshake, ThousandsOfMembersAtOnceAllGetIn) {
  constexpr size_t kMembers = 3000;
  ASSERT_TRUE(want_descriptors(2 * kMembers).ok());
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 2 * kMembers + 100) GTEST_SKIP() << "this system allows too few descriptors";
  Door door({256, 60 * kSecond, 60 * kSecond, 60 * kSecond});
  std::vector<std::unique_ptr<Raw>> members;
  std::vector<wire::ClientHello> hellos;
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    members.push_back(std::make_unique<Raw>(door.address()));
    hellos.push_back(wire::make_client_hello({wire::Role::kWorker, rank + 100}, kGood.job));
  }
  for (size_t i = 0; i < kMembers; ++i) members[i]->say(hellos[i]);
  for (size_t i = 0; i < kMembers; ++i) {
    wire::ServerHello server;
    ASSERT_TRUE(members[i]->hear(server)) << "member " << i << " was driven out";
    members[i]->say(wire::make_client_proof(hellos[i], server, kGood.secret));
  }
  ASSERT_TRUE(door.wait(kMembers, 0));
  EXPECT_TRUE(door.refused().empty());
}

TEST(Handshake, ASilentListenerIsATimeout) {
  auto listener = listen_on({"127.0.0.1", 0}, 8);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  const Status status =
      connect_and_prove(address, "", {}, kGood, monotonic_now() + 200 * kMillisecond).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_TRUE(contains(status.message(), address.to_string())) << status.message();
}

TEST(Handshake, AnotherProtocolIsNamed) {
  auto listener = listen_on({"127.0.0.1", 0}, 8);
  ASSERT_TRUE(listener.ok());
  std::thread other([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 600'000);
    const UniqueFd fd(accept(listener->get(), nullptr, nullptr));
    const std::string answer = "HTTP/1.1 400 Bad Request\r\n" + std::string(200, ' ');
    EXPECT_GT(::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    char drain[200];
    while (recv(fd.get(), drain, sizeof(drain), 0) > 0) continue;
  });
  const Status status =
      connect_and_prove(*local_address(listener->get()), "", {}, kGood, soon()).status();
  EXPECT_EQ(status.code(), Code::kConfiguration) << status.to_string();
  other.join();
}

// The first listener may go away in the middle of the hello. The next listener is the right one.
TEST(Handshake, AConnectionThatEndsDuringTheHelloIsTriedAgain) {
  auto listener = listen_on({"127.0.0.1", 0}, 8);
  ASSERT_TRUE(listener.ok());
  const Address address = *local_address(listener->get());
  EpollLoop thread;
  std::unique_ptr<Acceptor> acceptor;
  std::thread server([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 600'000);
    UniqueFd(accept(listener->get(), nullptr, nullptr)).reset();
    acceptor = std::make_unique<Acceptor>(
        thread, std::move(*listener), kGood,
        [](const wire::Hello&) { return Verdict::kAccepted; },
        [](Socket, const wire::Hello&, const Address&) {});
    thread.start("test");
  });
  EXPECT_TRUE(connect_and_prove(address, "", {}, kGood, soon()).ok());
  server.join();
  thread.join();
}

// Without a free descriptor the acceptor waits, instead of being woken again and again by the same
// connection.
TEST(Handshake, WithoutDescriptorsTheAcceptorPauses) {
  Door door;
  Raw waiting(door.address());  // accepted, so the acceptor is running
  auto next = GuardedFd::open([] { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
  // Uses up all lower numbers, so that no descriptor is left.
  std::vector<UniqueFd> filling;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (;;) {
    UniqueFd one(dup(0));
    if (!one.valid()) break;
    filling.push_back(std::move(one));
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(door.address().port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(next.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  // Lets three pauses pass on the loop's own clock, and counts what the loop does meanwhile.
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t from = 0, until = 0;
  door.loop().post([&] {
    from = door.loop().wakeups();
    door.loop().call_after(350 * kMillisecond, [&] {
      std::lock_guard lock(mutex);
      until = door.loop().wakeups();
      changed.notify_all();
    });
  });
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return until != 0; }));
  }
  EXPECT_LT(until - from, 50u);
  filling.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(connect_and_prove(door.address(), "", {}, kGood, soon()).ok());
}

}  // namespace
}  // namespace herring::transport::tcp
