#include "worker/links.h"

#include <gtest/gtest.h>

#include <numeric>

#include "../transport/pair.h"

namespace herring::worker {
namespace {

using transport::Destinations;
using transport::EventLoop;
using transport::Flow;
using transport::tcp::TcpFlow;
using transport::tcp::testing::connected_pair;

constexpr size_t kSegment = 1024;

// Answers what is pushed with the same bytes, at once or when told to.
class Server : public transport::FlowHandler {
 public:
  Server(EventLoop& loop, GuardedFd fd)
      : flow(std::make_unique<TcpFlow>(loop, std::move(fd), *this, "worker")) {}

  Status on_header(Flow&, const wire::FrameHeader& header, Destinations& out) override {
    payload.resize(header.payload);
    if (header.payload > 0) out.add(payload.data(), payload.size());
    return {};
  }
  Status on_frame(Flow&, const wire::FrameHeader& header) override {
    if (header.type != wire::FrameType::kData) return {};
    most_waiting = std::max<size_t>(most_waiting, waiting.size() + 1);
    waiting.emplace_back(header, payload);
    segments += header.segments;
    if (answering) answer();
    return {};
  }
  void on_closed(Flow&, const Status&) override {}
  void answer() {
    answering = true;
    for (auto& [pushed, bytes] : std::exchange(waiting, {})) {
      wire::FrameHeader header = pushed;
      header.type = wire::FrameType::kResult;
      header.flags = 0;
      header.workers = 1;
      flow->send_owned(header, std::move(bytes));
    }
  }

  std::unique_ptr<TcpFlow> flow;
  std::string payload;
  std::vector<std::pair<wire::FrameHeader, std::string>> waiting;
  size_t most_waiting = 0;  // frames: the credit that was used
  uint32_t segments = 0;
  bool answering = false;
};

class LinksTest : public ::testing::Test, public TransferOwner {
 protected:
  void make(std::vector<double> weights) {
    LinksOptions options;
    options.segment_bytes = kSegment;
    options.credit_initial = 1;
    options.credit_fixed = true;
    options.credit_max = 128;
    options.weights = weights;
    links = std::make_unique<Links>(
        loop, options, [](uint32_t, const wire::FrameHeader&, std::string_view) {},
        [](uint32_t, const Status& why) { FAIL() << why.message(); });
    for (uint32_t s = 0; s < weights.size(); ++s) {
      auto [near, far] = connected_pair();
      servers.push_back(std::make_unique<Server>(loop, std::move(far)));
      links->add_flow(s, std::move(near), "server");
    }
    data.resize(96 * kSegment);
    std::iota(data.begin(), data.end(), 0);
    expected = data;
    transfer.key = {7, 0, 0};
    transfer.open.name = "test";
    transfer.send = transfer.receive = data.data();
    transfer.shards = plan::shard_layout(data.size(), weights);
    transfer.runs = plan::local_slice(transfer.shards, kSegment, 0, 1);
    transfer.owner = this;
  }
  void on_transfer_done(Transfer&) override {
    done = true;
    loop.stop();
  }
  // Runs `then` once nothing moves any more.
  void when_quiet(std::function<void()> then) {
    const uint32_t before = servers[0]->segments + servers[1]->segments;
    loop.call_after(50 * kMillisecond, [this, before, then] {
      const uint32_t now = servers[0]->segments + servers[1]->segments;
      if (now != before || now == 0) return when_quiet(then);
      then();
    });
  }

  EventLoop loop;
  std::vector<std::unique_ptr<Server>> servers;
  std::unique_ptr<Links> links;
  std::string data, expected;
  Transfer transfer;
  bool done = false;
};

TEST_F(LinksTest, ALightServerDoesNotRunAheadOfAHeavyOne) {
  make({3, 1});  // 72 and 24 segments
  servers[1]->answering = true;
  uint32_t light = 0, heavy = 0;
  loop.post([&] {
    links->push(transfer);
    when_quiet([&] {
      heavy = servers[0]->segments;
      light = servers[1]->segments;
      servers[0]->answer();
    });
  });
  loop.run();
  // Three times the bytes, three times the credit; and the other stops a few frames ahead.
  EXPECT_EQ(servers[0]->most_waiting, 3u);
  EXPECT_EQ(heavy, 3u);
  EXPECT_GE(light, 2u);
  EXPECT_LE(light, 5u);
  EXPECT_TRUE(done);
  EXPECT_EQ(servers[0]->segments, 72u);
  EXPECT_EQ(servers[1]->segments, 24u);
  EXPECT_EQ(data, expected);
}

TEST_F(LinksTest, EqualServersDoNotWaitForEachOther) {
  make({1, 1});
  servers[1]->answering = true;
  uint32_t free_one = 0, stuck = 0;
  loop.post([&] {
    links->push(transfer);
    when_quiet([&] {
      stuck = servers[0]->segments;
      free_one = servers[1]->segments;
      servers[0]->answer();
    });
  });
  loop.run();
  EXPECT_EQ(stuck, 1u);
  EXPECT_EQ(free_one, 48u);
  EXPECT_TRUE(done);
  EXPECT_EQ(data, expected);
}

}  // namespace
}  // namespace herring::worker
