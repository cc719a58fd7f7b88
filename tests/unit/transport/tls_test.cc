#include "transport/tcp/tls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "certificates.h"
#include "door.h"
#include "pair.h"
#include "relay.h"
#include "tests/unit/text.h"
#include "transport/tcp/connector.h"

namespace herring::transport::tcp {
namespace {

using testing::Certificates;
using testing::connected_pair;
using testing::data_header;
using testing::Door;
using testing::pattern;
using testing::Recorder;
using testing::Relay;
using testing::soon;
using testing::tls_by_key;
using wire::Encryption;

constexpr char kSecret[] = "the job's secret";

Credentials with(std::shared_ptr<const Tls> tls, const std::string& secret = kSecret) {
  return {secret, wire::job_id("job"), std::move(tls)};
}

Credentials plain() { return with(nullptr); }

Credentials by_key(const std::string& secret = kSecret) {
  auto made = Tls::make({Encryption::kPsk}, secret);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return with(*made, secret);
}

Credentials by_certificate(const TlsOptions& options, const std::string& secret = kSecret) {
  auto made = Tls::make(options, secret);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return with(*made, secret);
}

Result<Socket> enter(const Address& address, const Credentials& credentials) {
  return connect_and_prove(address, "", {}, credentials, soon());
}

// Two flows over a proven connection, on one loop.
struct Flows {
  Flows(Socket near, Socket far) {
    client = std::make_unique<TcpFlow>(loop, std::move(near), client_handler, "server");
    server = std::make_unique<TcpFlow>(loop, std::move(far), server_handler, "client");
    loop.post([this] { loop.call_after(30 * kSecond, [this] { loop.stop(); }); });
  }
  EpollLoop loop;
  Recorder client_handler, server_handler;
  std::unique_ptr<TcpFlow> client, server;
};

TEST(Tls, AMemberGetsInAndFramesFlowBothWays) {
  Certificates files;
  const auto root = files.authority("root");
  files.member("one", root);
  files.member("other", root);
  const std::pair<Credentials, Credentials> kinds[] = {
      {by_key(), by_key()},
      {by_certificate(files.options("one", "root")),
       by_certificate(files.options("other", "root"))},
  };
  for (const auto& [here, there] : kinds) {
    Door door(there);
    auto near = enter(door.address(), here);
    ASSERT_TRUE(near.ok()) << near.status().to_string();
    Flows flows(std::move(*near), door.take());
    const std::string payload = pattern(3'000'000, 1);
    int left = 2;
    for (Recorder* handler : {&flows.client_handler, &flows.server_handler}) {
      handler->frame_hook = [&](Flow&, const wire::FrameHeader&) {
        if (--left == 0) flows.loop.stop();
        return Status();
      };
    }
    const iovec piece{const_cast<char*>(payload.data()), payload.size()};
    flows.loop.post([&] {
      flows.client->send(data_header(payload.size(), 1), &piece, 1, 1);
      flows.server->lend(data_header(payload.size(), 2), &piece, 1);
    });
    flows.loop.run();
    ASSERT_EQ(left, 0);
    EXPECT_EQ(flows.client_handler.frames[0].payload, payload);
    EXPECT_EQ(flows.server_handler.frames[0].payload, payload);
  }
}

// The key changes many times while both sides have more to send than the sockets take.
TEST(Tls, TheKeyChangesWhileBothSidesAreFull) {
  constexpr uint32_t kFrames = 40;
  auto [near, far] = connected_pair(16 << 10);
  Socket client(std::move(near)), server(std::move(far));
  testing::encrypt(client, server, *tls_by_key(2));
  Flows flows(std::move(client), std::move(server));
  const std::string payload = pattern(200'000, 4);
  const iovec piece{const_cast<char*>(payload.data()), payload.size()};
  int left = 2;
  for (Recorder* handler : {&flows.client_handler, &flows.server_handler}) {
    handler->frame_hook = [&, handler](Flow&, const wire::FrameHeader&) {
      EXPECT_EQ(handler->payload, payload);
      if (handler->frames.size() == kFrames && --left == 0) flows.loop.stop();
      return Status();
    };
  }
  flows.loop.post([&] {
    for (uint32_t i = 0; i < kFrames; ++i) {
      flows.client->send(data_header(payload.size(), i), &piece, 1, i + 1);
      flows.server->send(data_header(payload.size(), i), &piece, 1, i + 1);
    }
  });
  flows.loop.run();
  EXPECT_EQ(left, 0);
  EXPECT_EQ(flows.client_handler.tokens.size(), kFrames);
}

TEST(Tls, AWrongSecretIsRefusedAndBothSidesSaySo) {
  Door door(by_key());
  const Status status = enter(door.address(), by_key("a guess, 16 bytes")).status();
  EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
  EXPECT_TRUE(contains(status.message(), "the job's secret differs")) << status.message();
  EXPECT_TRUE(contains(status.message(), door.address().to_string())) << status.message();
  EXPECT_TRUE(contains(door.refusal(), "the job's secret differs")) << door.refusal();
  EXPECT_TRUE(enter(door.address(), by_key()).ok());
}

TEST(Tls, AnotherJobIsRefused) {
  Door door(by_key());
  Credentials other = by_key();
  other.job = wire::job_id("another job");
  const Status status = enter(door.address(), other).status();
  EXPECT_TRUE(contains(status.message(), "HERRING_JOB differs")) << status.to_string();
}

// Nobody ever talks without TLS to whom has another setting, and both learn both settings.
TEST(Tls, AnotherSettingIsRefusedAndBothSidesNameBoth) {
  Certificates files;
  files.member("one", files.authority("root"));
  const Credentials all[] = {plain(), by_key(), by_certificate(files.options("one", "root"))};
  const char* const names[] = {"HERRING_TLS=off", "HERRING_TLS=psk", "HERRING_TLS=certificates"};
  for (int here = 0; here < 3; ++here) {
    for (int there = 0; there < 3; ++there) {
      if (here == there) continue;
      Door door(all[there]);
      const Status status = enter(door.address(), all[here]).status();
      EXPECT_EQ(status.code(), Code::kConfiguration) << status.to_string();
      const std::string refused = door.refusal();
      EXPECT_TRUE(contains(status.message(), concat("has ", names[there], ", but this process has ",
                                                    names[here])))
          << status.message();
      EXPECT_TRUE(contains(refused, concat("it has ", names[here], ", but this process has ",
                                           names[there])))
          << refused;
      EXPECT_FALSE(door.has_accepted());
    }
  }
}

TEST(Tls, ACertificateOfAnotherAuthorityIsRefusedByBothSides) {
  Certificates files;
  const auto root = files.authority("root"), other = files.authority("other");
  files.member("good", root);
  files.member("foreign", other);
  const Credentials good = by_certificate(files.options("good", "root"));
  // The server does not know the client's authority.
  {
    Door door(good);
    const Status status =
        enter(door.address(), by_certificate(files.options("foreign", "root"))).status();
    EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
    EXPECT_TRUE(contains(status.message(), files.file("foreign.pem"))) << status.message();
    EXPECT_TRUE(contains(door.refusal(), "does not vouch for its certificate")) << door.refusal();
  }
  // The client does not know the server's authority.
  {
    Door door(by_certificate(files.options("foreign", "root")));
    const Status status = enter(door.address(), good).status();
    EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
    EXPECT_TRUE(contains(status.message(), "does not vouch for its certificate"))
        << status.message();
    EXPECT_TRUE(contains(status.message(), files.file("root.pem"))) << status.message();
  }
  // A certificate alone does not make a member: the secret is proved besides.
  {
    Door door(good);
    const Status status =
        enter(door.address(), by_certificate(files.options("good", "root"), "a guess, 16 bytes"))
            .status();
    EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
    EXPECT_TRUE(contains(door.refusal(), "secret differs")) << door.refusal();
  }
}

// Whoever has a certificate of the same authority, but not the secret, could pass the hello and the
// proof on between two members if the proof did not cover the session.
TEST(Tls, AProofCannotBePassedOnFromAnotherSession) {
  Certificates files;
  const auto root = files.authority("root");
  files.member("member", root);
  files.member("spy", root);
  const Credentials members = by_certificate(files.options("member", "root"));
  const auto spy = Tls::make(files.options("spy", "root"), "");
  ASSERT_TRUE(spy.ok());
  Door door(members);
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  std::thread middle([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 30000);
    Socket client(GuardedFd(UniqueFd(accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK))));
    Socket server(std::move(*connect_to(door.address(), "", soon())));
    const auto move = [](Socket& from, Socket& to, size_t bytes) {
      std::string text(bytes, '\0');
      for (size_t have = 0; have < bytes;) {
        const ssize_t n = from.read(text.data() + have, bytes - have);
        if (n > 0) have += static_cast<size_t>(n);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
        pollfd ready{from.get(), POLLIN, 0};
        if (n < 0 && poll(&ready, 1, 30000) != 1) return false;
      }
      return to.write_all(text.data(), bytes);
    };
    ASSERT_TRUE(move(client, server, wire::kOpeningBytes));
    client.encrypt(**spy, true);
    server.encrypt(**spy, false);
    for (Socket* end : {&client, &server}) {
      while (end->tls()->shake() == TlsSession::Step::kReads) {
        pollfd ready{end->get(), POLLIN, 0};
        ASSERT_EQ(poll(&ready, 1, 30000), 1);
      }
    }
    EXPECT_TRUE(move(client, server, sizeof(wire::ClientHello)));
    EXPECT_TRUE(move(server, client, sizeof(wire::ServerHello)));
    EXPECT_TRUE(move(client, server, sizeof(wire::ClientProof)));
    move(server, client, sizeof(wire::VerdictMessage));
  });
  const Status status = enter(*local_address(listener->get()), members).status();
  middle.join();
  EXPECT_EQ(status.code(), Code::kAuthentication) << status.to_string();
  EXPECT_TRUE(contains(door.refusal(), "secret differs")) << door.refusal();
  EXPECT_FALSE(door.has_accepted());
}

TEST(Tls, WhoAnswersWithoutTlsLearnsNothing) {
  auto listener = listen_on({"127.0.0.1", 0}, 1);
  std::string heard;
  std::thread impostor([&] {
    pollfd waiting{listener->get(), POLLIN, 0};
    poll(&waiting, 1, 30000);
    const UniqueFd fd(accept(listener->get(), nullptr, nullptr));
    // Claims to have the same setting, and to accept.
    const auto hello = wire::make_server_hello(wire::Verdict::kAccepted, Encryption::kPsk);
    EXPECT_EQ(send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(hello)));
    char bytes[4096];
    for (ssize_t n; (n = recv(fd.get(), bytes, sizeof(bytes), 0)) > 0;) heard.append(bytes, n);
  });
  const Status status = enter(*local_address(listener->get()), by_key()).status();
  impostor.join();
  EXPECT_EQ(status.code(), Code::kProtocol) << status.to_string();
  EXPECT_TRUE(contains(status.message(), "answers without TLS")) << status.message();
  const auto job = wire::job_id("job");
  EXPECT_FALSE(contains(heard, {reinterpret_cast<const char*>(job.data()), job.size()}))
      << "the hello itself is encrypted";
}

// The answer may come at any moment of the handshake. It must not be taken for a record of TLS.
TEST(Tls, AnAnswerWithoutTlsStaysInTheSocket) {
  auto [near, far] = connected_pair();
  const auto hello = wire::make_server_hello(wire::Verdict::kOtherEncryption);
  ASSERT_EQ(send(far.get(), &hello, sizeof(hello), MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(hello)));
  pollfd ready{near.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1);
  Socket client(std::move(near));
  client.encrypt(*tls_by_key(), false);
  EXPECT_EQ(client.tls()->shake(), TlsSession::Step::kFailed);
  EXPECT_TRUE(client.tls()->answered_plainly());
  wire::ServerHello answer;
  ASSERT_EQ(recv(client.get(), &answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(std::memcmp(&answer, &hello, sizeof(hello)), 0);
}

TEST(Tls, NonsenseEndsTheConnectionAndTheDoorStaysOpen) {
  Door door(by_key());
  wire::ClientHello hello = wire::make_client_hello({}, wire::job_id("job"), Encryption::kPsk);
  const std::string opening(reinterpret_cast<const char*>(&hello), wire::kOpeningBytes);
  for (const std::string& bytes :
       {opening + std::string(5000, 'A'), opening + std::string("\x16\x03\x01\xff\xff", 5),
        opening + std::string("\x16\x03\x01\x40\x00\x01\x02\x00\x00", 9) + std::string(16384, 'x'),
        std::string(reinterpret_cast<const char*>(&hello), sizeof(hello))}) {
    auto fd = connect_to(door.address(), "", soon());
    ASSERT_TRUE(fd.ok());
    ASSERT_EQ(send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    shutdown(fd->get(), SHUT_WR);
    for (;;) {
      pollfd ready{fd->get(), POLLIN, 0};
      ASSERT_EQ(poll(&ready, 1, 30000), 1);
      char dropped[1024];
      if (recv(fd->get(), dropped, sizeof(dropped), 0) <= 0) break;
    }
  }
  EXPECT_FALSE(door.has_accepted());
  EXPECT_TRUE(enter(door.address(), by_key()).ok());
}

// Strangers who begin TLS and stop there keep nobody out.
TEST(Tls, SilentStrangersKeepNobodyOut) {
  Acceptor::Limits limits;
  limits.pending = 8;
  limits.fair = 20 * kMillisecond;
  limits.silent = 10 * kMillisecond;
  Door door(by_key(), limits);
  const auto hello = wire::make_client_hello({}, wire::job_id("job"), Encryption::kPsk);
  std::vector<GuardedFd> strangers;
  for (int i = 0; i < 32; ++i) {
    auto fd = connect_to(door.address(), "", soon());
    ASSERT_TRUE(fd.ok());
    ASSERT_EQ(send(fd->get(), &hello, wire::kOpeningBytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(wire::kOpeningBytes));
    strangers.push_back(std::move(*fd));
  }
  EXPECT_TRUE(enter(door.address(), by_key()).ok());
}

// Runs one large frame through a relay, and returns how the receiver's flow ended.
Status through(Relay::Touch touch, std::string* seen = nullptr) {
  Door door(by_key());
  Status ended;
  std::string passed;
  {
    Relay relay(door.address(), std::move(touch));
    auto near = enter(relay.address(), by_key());
    EXPECT_TRUE(near.ok()) << near.status().to_string();
    if (!near.ok()) return near.status();
    Flows flows(std::move(*near), door.take());
    const std::string payload(200'000, 'g');
    const iovec piece{const_cast<char*>(payload.data()), payload.size()};
    flows.server_handler.frame_hook = [&](Flow&, const wire::FrameHeader&) {
      EXPECT_EQ(flows.server_handler.payload, payload);
      flows.client->close({});
      return Status();
    };
    flows.server_handler.closed_hook = [&] { flows.loop.stop(); };
    flows.loop.post([&] { flows.client->send(data_header(payload.size(), 1), &piece, 1, 1); });
    flows.loop.run();
    EXPECT_EQ(flows.server_handler.closed.size(), 1u);
    if (!flows.server_handler.closed.empty()) ended = flows.server_handler.closed[0];
    if (seen != nullptr) *seen = relay.seen();
  }
  return ended;
}

TEST(Tls, WhatIsSentDoesNotAppearOnTheWire) {
  std::string seen;
  const Status ended = through({}, &seen);
  EXPECT_TRUE(contains(ended.message(), "was closed by the other side")) << ended.to_string();
  EXPECT_GT(seen.size(), 200'000u);
  EXPECT_FALSE(contains(seen, "gggg"));
  EXPECT_FALSE(contains(seen, kSecret));
}

TEST(Tls, AChangedByteEndsTheFlowWithAnErrorThatSaysSo) {
  size_t passed = 0;
  const Status ended = through([&](bool from_client, std::string& bytes) {
    if (from_client && passed < 100'000 && passed + bytes.size() >= 100'000) bytes[0] ^= 1;
    if (from_client) passed += bytes.size();
    return true;
  });
  EXPECT_EQ(ended.code(), Code::kPeerLost);
  EXPECT_TRUE(contains(ended.message(), "what arrived is not what was sent")) << ended.message();
}

TEST(Tls, AnEndWithinARecordOrBetweenRecordsIsNotTheOtherSidesEnd) {
  size_t passed = 0;
  const Status ended = through([&](bool from_client, std::string& bytes) {
    if (from_client) passed += bytes.size();
    return passed < 100'000;
  });
  EXPECT_EQ(ended.code(), Code::kPeerLost);
  EXPECT_FALSE(contains(ended.message(), "was closed by the other side")) << ended.message();
}

// The other side has sent data and closed with unread input, so its system resets the connection.
TEST(Tls, WhatHasComeIsReadAlthoughNothingCanBeWritten) {
  auto [gone_fd, fd] = connected_pair();
  Socket gone(std::move(gone_fd)), here(std::move(fd));
  testing::encrypt(gone, here, *tls_by_key());
  ASSERT_TRUE(here.write_all("unread", 6));
  const auto header = data_header(1000, 3);
  const std::string payload = pattern(1000, 9);
  ASSERT_TRUE(gone.write_all(&header, sizeof(header)));
  ASSERT_TRUE(gone.write_all(payload.data(), payload.size()));
  gone.reset();
  pollfd reset{here.get(), 0, 0};
  ASSERT_EQ(poll(&reset, 1, 30'000), 1);
  EpollLoop loop;
  Recorder handler;
  TcpFlow flow(loop, std::move(here), handler, "the other side");
  handler.closed_hook = [&] { loop.stop(); };
  loop.post([&] { loop.call_after(30 * kSecond, [&] { loop.stop(); }); });
  flow.send_owned({}, "nobody takes this");
  loop.run();
  ASSERT_EQ(handler.frames.size(), 1u);
  EXPECT_EQ(handler.frames[0].payload, payload);
  ASSERT_EQ(handler.closed.size(), 1u);
  EXPECT_EQ(handler.closed[0].code(), Code::kPeerLost);
}

// A record is decrypted as a whole, so what one read leaves is not in the socket any more.
TEST(Tls, ReadsOfAnySizeGiveAllBytes) {
  auto [near, far] = connected_pair();
  Socket client(std::move(near)), server(std::move(far));
  testing::encrypt(client, server, *tls_by_key());
  const std::string sent = pattern(50'000, 2);
  ASSERT_TRUE(client.write_all(sent.data(), sent.size()));
  std::string got;
  for (size_t step = 1; got.size() < sent.size(); step = step * 3 % 7919) {
    std::string some(std::min(step, sent.size() - got.size()), '\0');
    const ssize_t n = server.read(some.data(), some.size());
    if (n < 0) {
      ASSERT_EQ(errno, EAGAIN);
      EXPECT_FALSE(server.holds());
      pollfd ready{server.get(), POLLIN, 0};
      ASSERT_EQ(poll(&ready, 1, 30000), 1);
      continue;
    }
    got.append(some, 0, static_cast<size_t>(n));
  }
  EXPECT_EQ(got, sent);
  // The other side's end is said inside TLS.
  EXPECT_TRUE(client.end_writing());
  char byte;
  pollfd ready{server.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1);
  EXPECT_EQ(server.read(&byte, 1), 0);
  EXPECT_TRUE(server.write_all("still open", 10));
}

// A loop does not report again what TLS has taken ahead: the flow must come back to it by itself.
TEST(Tls, AFlowReadsWhatWasTakenAheadAlthoughTheSocketIsEmpty) {
  auto [near, far] = connected_pair();
  Socket client(std::move(near)), server(std::move(far));
  testing::encrypt(client, server, *tls_by_key());
  const auto header = data_header(10'000, 3);
  const std::string payload = pattern(10'000, 9);
  std::string both(reinterpret_cast<const char*>(&header), sizeof(header));
  both += payload;
  ASSERT_TRUE(client.write_all(both.data(), both.size()));
  pollfd ready{server.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1);
  char first;  // of the header; the rest of the record is inside OpenSSL now
  ASSERT_EQ(server.read(&first, 1), 1);
  ASSERT_TRUE(server.holds());
  ASSERT_EQ(poll(&ready, 1, 0), 0);
  EpollLoop loop;
  Recorder handler;
  TcpFlow flow(loop, std::move(server), handler, "client");
  handler.closed_hook = [&] { loop.stop(); };
  loop.post([&] { loop.call_after(30 * kSecond, [&] { loop.stop(); }); });
  loop.run();
  // Without its first byte the header is nonsense, which shows that the rest was read.
  ASSERT_EQ(handler.closed.size(), 1u);
  EXPECT_TRUE(contains(handler.closed[0].message(), "what arrived is not what was sent"))
      << handler.closed[0].to_string();
}

TEST(Tls, AFileThatCannotBeUsedIsAnErrorWithTheNameOfItsSetting) {
  Certificates files;
  const auto root = files.authority("root");
  files.member("one", root);
  files.member("other", root);
  const auto refuses = [&](TlsOptions options, const std::string& part) {
    const Status status = Tls::make(options, kSecret).status();
    EXPECT_EQ(status.code(), Code::kConfiguration) << status.to_string();
    EXPECT_TRUE(contains(status.message(), part)) << status.message();
  };
  TlsOptions options = files.options("one", "root");
  ASSERT_TRUE(Tls::make(options, kSecret).ok());
  options.certificate = "/nonexistent/file";
  refuses(options, "HERRING_TLS_CERTIFICATE=/nonexistent/file cannot be used: ");
  options = files.options("one", "root");
  options.key = files.file("other.key");
  refuses(options, concat("HERRING_TLS_KEY=", options.key, " cannot be used: "));
  options = files.options("one", "root");
  options.authorities = files.file("one.key");
  refuses(options, concat("HERRING_TLS_CA=", options.authorities, " cannot be used: "));
}

}  // namespace
}  // namespace herring::transport::tcp
