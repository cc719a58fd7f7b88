// Fuzzes a rendezvous with members that say anything in any order: registrations that may
// contradict each other, servers, heartbeats, goodbyes, aborts and connections that end. The
// rendezvous must neither crash nor hang, and its answers must decode.
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "control/messages.h"
#include "control/rendezvous.h"
#include "tests/fuzz/input.h"
#include "transport/tcp/socket.h"
#include "wire/frame.h"

using namespace herring;           // NOLINT: a fuzz target
using namespace herring::control;  // NOLINT
using namespace herring::fuzz;     // NOLINT

namespace {

const transport::Credentials& credentials() {
  static const transport::Credentials one{"secret", wire::job_id("job")};
  return one;
}

void append(std::string& out, wire::FrameType type, const std::string& payload,
            uint8_t flags = 0) {
  wire::FrameHeader header;
  header.type = type;
  header.flags = flags;
  header.payload = static_cast<uint32_t>(payload.size());
  out.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out += payload;
  count_frames(1);
}

std::string registration(Input& in, uint32_t rank, uint32_t size, uint32_t servers) {
  Registration one;
  one.pid = in.byte();
  one.patience = in.seldom() ? 1 : 60 * kSecond;
  if (in.below(4) == 0) {
    ServerRegistration server;
    server.dedicated = in.flag();
    server.node = in.below(3);
    server.host = "127.0.0.1";
    server.port = 7000 + in.below(2);
    one.what = server;
  } else {
    WorkerRegistration worker;
    worker.rank = in.seldom() ? in.below(8) : rank % size;
    worker.size = in.seldom() ? in.below(8) : size;
    worker.dedicated_servers = in.seldom() ? in.below(4) : servers;
    worker.host_id = in.flag() ? "a" : "b";
    worker.bus = "bus";
    if (in.seldom()) worker.local_rank = in.below(4);
    if (in.seldom()) worker.local_size = in.below(4);
    worker.settings = {{"server_weights", in.seldom() ? "1,0,x" : ""}, {"proxies", "1"}};
    one.what = worker;
  }
  return encode(one);
}

// Appends a message that a member may send.
void say(Input& in, std::string& out, uint32_t rank, uint32_t size, uint32_t servers) {
  switch (in.below(8)) {
    case 0:
    case 1:
    case 2: return append(out, wire::FrameType::kRegister, registration(in, rank, size, servers));
    case 3:
    case 4:
    case 5: return append(out, wire::FrameType::kHeartbeat, in.seldom() ? "x" : "");
    case 6:
      if (in.below(4) > 0) return;
      return append(out, wire::FrameType::kGoodbye, "", in.byte() & 3);
    default:
      if (in.below(8) > 0) return;
      return append(out, in.seldom() ? wire::FrameType::kReady : wire::FrameType::kAbort,
                    encode(Status(Code::kPeerLost, "why")));
  }
}

// What a member has received: the bytes of an incomplete message, and the epoch.
struct Answers {
  std::string have;
  uint32_t epoch = 0;
};

void check_notice(std::string_view payload, uint32_t& epoch) {
  const auto notice = decode_losses(payload);
  expect(notice.ok() && epoch >= kFirstEpoch && check_next(*notice, epoch).ok());
  epoch = notice->epoch;
}

void check_cluster(std::string_view payload, uint32_t& epoch) {
  const auto message = decode_cluster(payload);
  expect(message.ok());
  epoch = message->cluster.epoch;
}

// Reads what has come back so far. Every message must be sound.
void read_answers(int fd, Answers& answers) {
  std::string& have = answers.have;
  char bytes[65536];
  for (ssize_t n; (n = ::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0;) have.append(bytes, n);
  while (have.size() >= sizeof(wire::FrameHeader)) {
    wire::FrameHeader header;
    std::memcpy(&header, have.data(), sizeof(header));
    expect(wire::plausible(header));
    if (have.size() < sizeof(header) + header.payload) return;
    const std::string_view payload = std::string_view(have).substr(sizeof(header), header.payload);
    Status why;
    switch (header.type) {
      case wire::FrameType::kCluster:
      case wire::FrameType::kReady: check_cluster(payload, answers.epoch); break;
      case wire::FrameType::kPeerLost: check_notice(payload, answers.epoch); break;
      case wire::FrameType::kAbort: expect(decode_abort(payload, why).ok()); break;
      default: break;
    }
    have.erase(0, sizeof(header) + header.payload);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  be_quiet();
  Input in(data, size);
  RendezvousOptions options;
  options.credentials = credentials();
  options.size = 1 + in.below(3);
  options.dedicated_servers = in.below(3);
  auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 16);
  expect(listener.ok());
  auto started = Rendezvous::start(std::move(*listener), options);
  expect(started.ok());
  const uint32_t members = options.size + 1;
  std::vector<transport::tcp::Socket> sockets;
  std::vector<uint64_t> frames(members);
  std::vector<Answers> answers(members);
  for (uint32_t m = 0; m < members; ++m) {
    auto fd = transport::tcp::connect_and_prove((*started)->address(), "", {}, credentials(),
                                                monotonic_now() + 10 * kSecond);
    expect(fd.ok());
    sockets.push_back(std::move(*fd));
  }
  while (!in.empty()) {
    const uint32_t m = in.below(members);
    std::string out;
    for (uint32_t n = 1 + in.below(32); n > 0 && !in.empty(); --n) {
      say(in, out, m, options.size, options.dedicated_servers);
    }
    if (!sockets[m].valid()) continue;
    seal(out, frames[m]);
    // Answers are read in between, so that neither side waits for the other to read.
    for (size_t at = 0; at < out.size();) {
      const ssize_t n = ::send(sockets[m].get(), out.data() + at, out.size() - at,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) break;
      at += n > 0 ? static_cast<size_t>(n) : 0;
      read_answers(sockets[m].get(), answers[m]);
    }
    if (in.seldom()) sockets[m].reset();
  }
  for (transport::tcp::Socket& socket : sockets) {
    if (socket.valid()) ::shutdown(socket.get(), SHUT_WR);
  }
  // The rendezvous reads all input, and then ends the remaining connections.
  for (uint32_t m = 0; m < members; ++m) {
    if (!sockets[m].valid()) continue;
    const Nanos deadline = monotonic_now() + 5 * kSecond;
    pollfd polled{sockets[m].get(), POLLIN, 0};
    char byte;
    while (::poll(&polled, 1, 5000) > 0 &&
           ::recv(polled.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
      read_answers(polled.fd, answers[m]);
    }
    expect(monotonic_now() < deadline);
  }
  sockets.clear();
  return 0;
}

std::vector<std::string> seeds() {
  std::string all = std::string("\2\1", 2);
  for (int i = 0; i < 300; ++i) all += static_cast<char>(i * 5 + i / 32);
  return {all};
}
