// Feeds a byte stream into a flow. The flow takes the frames or ends, and no byte may land outside
// its place.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/fuzz/input.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/flow.h"

using namespace herring;             // NOLINT: a fuzz target
using namespace herring::transport;  // NOLINT

namespace {

class Handler : public FlowHandler {
 public:
  explicit Handler(EventLoop& loop) : loop_(loop) {}

  Status on_header(Flow&, const wire::FrameHeader& header, Destinations& out) override {
    if (!wire::plausible(header)) std::abort();
    if (header.payload > 4096) return {Code::kInternal, "more than was expected"};
    // Each piece is an allocation of its own, so that an overrun shows.
    const uint32_t pieces = 1 + header.round % 70;
    pieces_.clear();
    uint32_t left = header.payload;
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint32_t n = i + 1 == pieces ? left : std::min(left, header.buffer % 97);
      pieces_.emplace_back(n);
      out.add(pieces_.back().data(), n);
      left -= n;
    }
    before_ = 0;
    return {};
  }
  void on_payload(Flow&, const wire::FrameHeader& header, size_t received) override {
    if (received <= before_ || received > header.payload) std::abort();
    before_ = received;
  }
  Status on_frame(Flow& flow, const wire::FrameHeader& header) override {
    if (header.payload != before_) std::abort();
    if (header.stream % 5 == 1) flow.close({Code::kMismatch, "on purpose"});
    if (header.stream % 5 == 2) flow.send_owned(header, "echo");
    return header.stream % 5 == 3 ? Status(Code::kInternal, "refused") : Status();
  }
  void on_closed(Flow&, const Status& why) override {
    if (why.ok() || ended_) std::abort();
    ended_ = true;
    loop_.stop();
  }

 private:
  EventLoop& loop_;
  std::vector<std::vector<char>> pieces_;
  size_t before_ = 0;
  bool ended_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  std::string data(reinterpret_cast<const char*>(input), size);
  uint64_t frames = 0;
  // Otherwise the flow ends at the first header.
  if (size == 0 || data.back() != '!') herring::fuzz::seal(data, frames);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  UniqueFd writer(ends[0]);
  EpollLoop loop;
  Handler handler(loop);
  tcp::TcpFlow flow(loop, GuardedFd(UniqueFd(ends[1])), handler, "fuzz");
  // The input arrives in up to three portions, so that frames are cut anywhere.
  size_t at = 0;
  const size_t step = std::max<size_t>(1, size / 3 + (size > 0 ? input[0] % 7 : 0));
  EventLoop::Task feed = [&] {
    const size_t n = std::min({step, size - at, size_t{60000}});
    if (n == 0) {
      shutdown(writer.get(), SHUT_WR);
      return;
    }
    if (::send(writer.get(), data.data() + at, n, MSG_NOSIGNAL) < 0) return;  // the flow has ended
    at += n;
    loop.post(feed);
  };
  loop.post(feed);
  loop.run();
  return 0;
}

std::vector<std::string> seeds() {
  std::string stream;
  const auto add = [&](wire::FrameType type, uint16_t segments, const std::string& payload,
                       uint32_t salt) {
    wire::FrameHeader header;
    header.type = type;
    header.segments = segments;
    header.payload = static_cast<uint32_t>(payload.size());
    header.round = salt;
    header.buffer = salt;
    stream.append(reinterpret_cast<const char*>(&header), sizeof(header));
    stream += payload;
  };
  add(wire::FrameType::kHeartbeat, 0, "", 0);
  add(wire::FrameType::kData, 3, std::string(500, 'd'), 40);
  add(wire::FrameType::kAnnounce, 0, std::string(30, 'a'), 3);
  add(wire::FrameType::kResult, 1, std::string(4096, 'r'), 63);
  return {stream, stream.substr(32), stream.substr(32, 532)};
}
