// Two ends of a TCP connection over loopback with small buffers, and a handler that records frames.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/tcp/flow.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tls.h"

namespace herring::transport::tcp::testing {

// `buffer` is the size of SO_SNDBUF and SO_RCVBUF in bytes. With 0 the system chooses.
inline std::pair<GuardedFd, GuardedFd> connected_pair(int buffer = 0) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (buffer > 0) setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  GuardedFd client = GuardedFd::open([] { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (buffer > 0) {
    setsockopt(client.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    setsockopt(client.get(), SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
  }
  EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  GuardedFd server =
      GuardedFd::open([&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); });
  if (buffer > 0) setsockopt(server.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
  close(listener);
  EXPECT_TRUE(make_flow_socket(client.get()).ok());
  EXPECT_TRUE(make_flow_socket(server.get()).ok());
  return {std::move(client), std::move(server)};
}

// Completes the handshake of TLS on both ends.
inline void encrypt(Socket& client, Socket& server, const Tls& tls) {
  using Step = TlsSession::Step;
  client.encrypt(tls, false);
  server.encrypt(tls, true);
  Step one = Step::kReads, other = Step::kReads;
  const Nanos until = monotonic_now() + 30 * kSecond;
  while ((one != Step::kDone || other != Step::kDone) && monotonic_now() < until) {
    if (one != Step::kDone) one = client.tls()->shake();
    if (other != Step::kDone) other = server.tls()->shake();
    ASSERT_TRUE(one != Step::kFailed && other != Step::kFailed);
  }
  client.tls()->trust();
  server.tls()->trust();
}

// Returns what encrypts a test's connections.
inline std::shared_ptr<const Tls> tls_by_key(uint64_t records_per_key = 1 << 23) {
  TlsOptions options;
  options.encryption = wire::Encryption::kPsk;
  options.records_per_key = records_per_key;
  auto made = Tls::make(options, "the job's secret");
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *made;
}

// Records every frame that arrives. Tests set hooks that run in the callbacks.
class Recorder : public FlowHandler {
 public:
  struct Frame {
    wire::FrameHeader header;
    std::string payload;
  };

  Status on_header(Flow& flow, const wire::FrameHeader& header, Destinations& out) override {
    if (header_hook) {
      Status status = header_hook(flow, header, out);
      if (!status.ok() || flow.closed() || out.count > 0) return status;
    }
    payload.assign(header.payload, '\0');
    received = 0;
    // The payload goes into pieces of different sizes, one of them empty.
    size_t at = 0;
    for (int piece = 0; at < payload.size(); ++piece) {
      const size_t rest = payload.size() - at;
      const size_t some = 1 + at % 7 + piece * 100;
      const size_t n = piece + 1 == pieces ? rest : std::min(rest, some);
      if (piece == 1) out.add(nullptr, 0);
      out.add(payload.data() + at, n);
      at += n;
    }
    return {};
  }
  void on_payload(Flow&, const wire::FrameHeader& header, size_t now) override {
    EXPECT_GT(now, received) << "progress must be monotonic";
    EXPECT_LE(now, header.payload);
    received = now;
  }
  Status on_frame(Flow& flow, const wire::FrameHeader& header) override {
    if (header.payload > 0 && !header_hook) {
      EXPECT_EQ(received, header.payload);
    }
    frames.push_back({header, payload});
    return frame_hook ? frame_hook(flow, header) : Status();
  }
  void on_sent(Flow& flow, uint64_t token) override {
    tokens.push_back(token);
    if (sent_hook) sent_hook(flow, token);
  }
  void on_closed(Flow&, const Status& why) override {
    closed.push_back(why);
    if (closed_hook) closed_hook();
  }

  int pieces = 1;
  std::string payload;
  size_t received = 0;
  std::vector<Frame> frames;
  std::vector<uint64_t> tokens;
  std::vector<Status> closed;
  std::function<Status(Flow&, const wire::FrameHeader&, Destinations&)> header_hook;
  std::function<Status(Flow&, const wire::FrameHeader&)> frame_hook;
  std::function<void(Flow&, uint64_t)> sent_hook;
  std::function<void()> closed_hook;
};

// The header is good as the `number`-th of its connection; a flow's send() sees to that itself.
inline wire::FrameHeader data_header(size_t payload, uint32_t round, uint64_t number = 1) {
  wire::FrameHeader header;
  header.type = wire::FrameType::kData;
  header.segments = 1;
  header.payload = static_cast<uint32_t>(payload);
  header.round = round;
  header.check = wire::check_of(header, number);
  return header;
}

inline std::string pattern(size_t bytes, uint32_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 31 + seed * 17) ^ (i >> 8));
  return text;
}

// Both ends on one loop. run() ends when a hook calls loop.stop(), or fails after a while.
struct Pair {
  explicit Pair(int buffer = 0) {
    auto [near, far] = connected_pair(buffer);
    Socket client_fd(std::move(near)), server_fd(std::move(far));
    // ctest runs the tests of flows twice.
    if (getenv("HERRING_TEST_TLS") != nullptr) encrypt(client_fd, server_fd, *tls_by_key(5));
    client = std::make_unique<TcpFlow>(loop, std::move(client_fd), client_handler, "server");
    server = std::make_unique<TcpFlow>(loop, std::move(server_fd), server_handler, "client");
  }
  void run() {
    const auto timer = loop.call_after(30 * kSecond, [this] {
      timed_out = true;
      loop.stop();
    });
    loop.run();
    loop.cancel(timer);
    ASSERT_FALSE(timed_out);
  }

  EpollLoop loop;
  Recorder client_handler, server_handler;
  std::unique_ptr<TcpFlow> client, server;
  bool timed_out = false;
};

}  // namespace herring::transport::tcp::testing
