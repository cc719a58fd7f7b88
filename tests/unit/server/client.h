// A worker's flow to a real server, driven by hand.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "fixture.h"
#include "server/server.h"
#include "transport/tcp/connector.h"

namespace herring::server {

inline constexpr Nanos kPatience = 600 * kSecond;

inline transport::Credentials credentials() { return {"a test's secret", wire::job_id("test")}; }

// A flow of a worker, driven by hand.
class Client {
 public:
  Client(const Server& server, uint32_t rank, uint32_t flow = 0) {
    auto fd = transport::tcp::connect_and_prove(server.address(), "",
                                                {wire::Role::kWorker, rank, flow, kIncarnation},
                                                credentials(),
                                                monotonic_now() + kPatience);
    EXPECT_TRUE(fd.ok()) << fd.status().to_string();
    if (fd.ok()) fd_ = std::move(*fd);
  }

  void send(wire::FrameHeader header, std::string_view payload = {}) {
    header.payload = static_cast<uint32_t>(payload.size());
    header.check = wire::check_of(header, ++sent_);
    write(&header, sizeof(header));
    write(payload.data(), payload.size());
  }
  void announce(wire::Announce message, std::string_view payload = {}) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kAnnounce;
    send(header, encode(message).append(payload));
  }
  void open(uint32_t stream, uint64_t bytes, uint32_t round = 0, uint32_t group = 0) {
    wire::FrameHeader header;
    header.group = group;
    header.type = wire::FrameType::kOpen;
    header.stream = stream;
    header.round = round;
    wire::Open open;
    open.workers = 1;
    open.shard_bytes = bytes;
    open.deadline = {60'000, 60'000, 60'000};
    open.name = "op";
    send(header, encode(open));
  }
  void data(uint32_t stream, uint16_t segments, uint32_t first = 0, uint32_t round = 0,
            size_t segment = kSegment, uint32_t group = 0) {
    wire::FrameHeader header;
    header.group = group;
    header.type = wire::FrameType::kData;
    header.stream = stream;
    header.round = round;
    header.first_segment = first;
    header.segments = segments;
    send(header, std::string(segments * segment, '\0'));
  }

  struct Frame {
    wire::FrameHeader header;
    std::string payload;
  };
  // Returns the next frame, or one of type kHeartbeat if the connection ends or nothing comes.
  Frame receive() {
    Frame frame;
    if (!read(&frame.header, sizeof(frame.header))) return {};
    frame.payload.resize(frame.header.payload);
    return read(frame.payload.data(), frame.payload.size()) ? frame : Frame{};
  }
  Status failure() {
    const Frame frame = receive();
    EXPECT_EQ(frame.header.type, wire::FrameType::kOpError);
    const auto error = wire::decode_op_error(frame.payload);
    return error.ok() ? Status(error->code, error->text) : error.status();
  }
  std::string error() { return failure().message(); }
  bool ended() { return receive().header.type == wire::FrameType::kHeartbeat; }
  // Waits until so many bytes can be read.
  bool has(size_t bytes) {
    int here = 0;
    const Nanos deadline = monotonic_now() + kPatience;
    while (::ioctl(fd_.get(), FIONREAD, &here) == 0 && static_cast<size_t>(here) < bytes) {
      if (monotonic_now() > deadline) return false;
      std::this_thread::yield();
    }
    return static_cast<size_t>(here) >= bytes;
  }
  // Sends nothing more, and waits until the server does the same. What has come can still be read.
  bool end() { return ::shutdown(fd_.get(), SHUT_WR) == 0 && ready(POLLRDHUP); }

 private:
  bool ready(short events) {
    pollfd one{fd_.get(), events, 0};
    return poll(&one, 1, static_cast<int>(kPatience / kMillisecond)) == 1;
  }
  void write(const void* data, size_t bytes) {
    for (size_t done = 0; done < bytes && ready(POLLOUT);) {
      const ssize_t n = ::send(fd_.get(), static_cast<const char*>(data) + done, bytes - done,
                               MSG_NOSIGNAL);
      if (n < 0) return;  // the server has closed; its last words are still to be read
      done += static_cast<size_t>(n);
    }
  }
  bool read(void* data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      if (!ready(POLLIN)) return false;
      const ssize_t n = ::recv(fd_.get(), static_cast<char*>(data) + done, bytes - done, 0);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

  transport::tcp::Socket fd_;
  uint64_t sent_ = 0;  // frames
};

}  // namespace herring::server
