// Links with servers that answer as a test says, all in one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "../transport/pair.h"
#include "links/links.h"
#include "transport/tcp/transport.h"

namespace herring::links::testing {

using transport::Destinations;
using transport::DescriptorLoop;
using transport::Flow;
using transport::tcp::TcpFlow;
using transport::tcp::testing::connected_pair;

inline constexpr size_t kSegment = 1024;

// Answers every push with the same bytes, at once or when told to. Acknowledges a result that is
// given.
class Server : public transport::FlowHandler {
 public:
  Server(DescriptorLoop& loop, GuardedFd fd)
      : flow(std::make_unique<TcpFlow>(loop, std::move(fd), *this, "worker")) {}

  Status on_header(Flow&, const wire::FrameHeader& header, Destinations& out) override {
    payload.resize(header.payload);
    if (header.payload > 0) out.add(payload.data(), payload.size());
    return {};
  }
  Status on_frame(Flow&, const wire::FrameHeader& header) override {
    if (header.type == wire::FrameType::kTaken) ++taken_frames;
    if (header.flags & wire::kFlagSteers) told.push_back(header.credit);
    if (header.type == wire::FrameType::kOpen) {
      const auto open = wire::decode_open(payload);
      EXPECT_TRUE(open.ok());
      if (open.ok()) opened = *open;
    }
    if (header.type == wire::FrameType::kTaken || header.type == wire::FrameType::kData) {
      // The count never exceeds what was lent, and never decreases.
      const uint32_t fresh = header.taken - static_cast<uint32_t>(taken);
      EXPECT_LE(taken + fresh, lent);
      taken += fresh;
    }
    if (header.type != wire::FrameType::kData) return {};
    if (acknowledging && (header.flags & wire::kFlagGives)) {
      reply(header, payload);
      return {};
    }
    most_waiting = std::max<size_t>(most_waiting, waiting.size() + 1);
    waiting.emplace_back(header, payload);
    segments += header.segments;
    if (answering) answer();
    return {};
  }
  void on_closed(Flow&, const Status&) override {}
  void answer() {
    answering = true;
    for (auto& [pushed, bytes] : std::exchange(waiting, {})) reply(pushed, std::move(bytes));
  }
  void reply(wire::FrameHeader header, std::string bytes) {
    const bool given = header.flags & wire::kFlagGives;
    if (given) bytes.clear();
    header.type = wire::FrameType::kResult;
    header.flags = given ? wire::kFlagEmpty : lending ? wire::kFlagLent : 0;
    header.workers = 1;
    if (lending) lent += header.segments;
    flow->send_owned(header, std::move(bytes));
  }

  std::unique_ptr<TcpFlow> flow;
  std::string payload;
  std::vector<std::pair<wire::FrameHeader, std::string>> waiting;
  wire::Open opened;  // the latest
  std::vector<uint16_t> told;  // the credit, with each frame that tells it
  size_t most_waiting = 0;  // frames; the credit that was used
  uint32_t segments = 0;
  bool answering = false;
  bool acknowledging = false;  // results that are given
  bool lending = false;
  size_t lent = 0, taken = 0;  // segments
  int taken_frames = 0;
};

class LinksTest : public ::testing::Test, public TransferOwner {
 protected:
  void make(std::vector<double> weights) {
    LinksOptions options;
    options.segment_bytes = kSegment;
    options.credit_initial = credit;
    options.credit_fixed = true;
    options.credit_max = 128;
    options.weights = weights;
    options.failover = failover;
    options.steers = steers;
    options.flows = several_flows ? 2 : 1;
    links = std::make_unique<Links>(
        loop, options, [](uint32_t, const wire::FrameHeader&, std::string_view) {},
        [](uint32_t, const Status& why) { FAIL() << why.message(); });
    for (uint32_t s = 0; s < weights.size(); ++s) {
      auto [near, far] = connected_pair();
      if (silent) {
        ends.push_back(std::move(far));
      } else {
        servers.push_back(std::make_unique<Server>(loop, std::move(far)));
      }
      links->add_flow(s, *transport::tcp::make_connection(std::move(near), "server"));
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
  void push() { EXPECT_TRUE(links->push(transfer).ok()); }
  void on_transfer_done(Transfer&) override {
    if (on_done) return on_done();
    done = true;
    loop.stop();
  }
  void when(std::function<bool()> so, std::function<void()> then) {
    if (so()) return then();
    loop.post([this, so, then] { when(so, then); });
  }
  void when_all_is_taken() {
    when([this] { return servers[0]->taken == servers[0]->lent; }, [this] { loop.stop(); });
  }
  // With failover, pushes a transfer that may move to another server if it is one of a plan, or if
  // there is one flow.
  void check_moving(bool lockstep, int flows) {
    failover = true;
    several_flows = flows > 1;
    make({1, 1});
    std::unique_ptr<Server> second;
    if (flows == 2) {
      auto [near, far] = connected_pair();
      second = std::make_unique<Server>(loop, std::move(far));
      second->answering = true;
      links->add_flow(0, *transport::tcp::make_connection(std::move(near), "server"));
    }
    transfer.lockstep = lockstep;
    servers[0]->answering = servers[1]->answering = true;
    loop.post([&] {
      push();
      EXPECT_EQ(links->can_move(), lockstep || flows == 1);
    });
    loop.run();
    EXPECT_TRUE(done);
    EXPECT_EQ(data, expected);
    EXPECT_TRUE(links->can_move());
    links.reset();
  }
  // Loses a server in a round of a partial all-reduce. `when` calls the function that it is given
  // after the push.
  void lose_a_server(std::function<void(std::function<void()>)> when) {
    make({1, 1});
    transfer.key.stream = wire::kPartialStreams;
    servers[0]->answering = true;
    loop.post([&] {
      push();
      when([this] { links->server_lost(1); });
    });
    loop.run();
    EXPECT_TRUE(done);
    EXPECT_EQ(transfer.fewest_workers, 0u);
    EXPECT_EQ(transfer.segments_left, 0u);
  }
  // Runs `then` once nothing moves any more. Everything runs in this thread, so pending work shows
  // within a few turns of the loop.
  void when_quiet(std::function<void()> then, uint32_t before = 0, int turns = 0) {
    uint32_t now = 0;
    for (const auto& server : servers) now += server->segments;
    turns = now == before && now > 0 ? turns + 1 : 0;
    if (turns == 1000) return then();
    loop.post([this, then, now, turns] { when_quiet(then, now, turns); });
  }

  transport::EpollLoop loop;
  std::vector<std::unique_ptr<Server>> servers;
  std::unique_ptr<Links> links;
  std::string data, expected;
  Transfer transfer;
  bool done = false, failover = false, several_flows = false, steers = false;
  uint16_t credit = 1;  // segments
  bool silent = false;  // nothing but the test reads what the servers get, from `ends`
  std::vector<GuardedFd> ends;
  std::function<void()> on_done;
};

}  // namespace herring::links::testing
