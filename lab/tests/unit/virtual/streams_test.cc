// Compares streams over the modelled network with closed forms, in virtual time.
#include "virtual/streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <tuple>
#include <vector>

#include "equal_links.h"

namespace herring::transport::virtual_time {
namespace {

constexpr uint32_t kPacket = 9014;  // bytes of a full packet on the wire
constexpr uint32_t kEmpty = 66;     // bytes of a packet without data
constexpr uint32_t kSegment = 8948;

struct Happened {
  enum Kind { kReceived, kWritable, kAcknowledged, kFinished, kAborted } kind;
  uint32_t connection;
  int side;
  uint64_t total;
  Nanos time;
  bool operator==(const Happened&) const = default;
};

// Records all events and lets a test react.
class Log : public StreamEvents {
 public:
  void on_received(uint32_t connection, int side, uint64_t total, Nanos now) override {
    add({Happened::kReceived, connection, side, total, now});
  }
  void on_writable(uint32_t connection, int side, Nanos now) override {
    add({Happened::kWritable, connection, side, 0, now});
  }
  void on_acknowledged(uint32_t connection, int side, uint64_t total, Nanos now) override {
    add({Happened::kAcknowledged, connection, side, total, now});
  }
  void on_finished(uint32_t connection, int side, Nanos now) override {
    add({Happened::kFinished, connection, side, 0, now});
  }
  void on_aborted(uint32_t connection, int side, Nanos now) override {
    add({Happened::kAborted, connection, side, 0, now});
  }

  // When `side` had so many bytes; kNever: not yet.
  Nanos when(uint32_t connection, int side, uint64_t total) const {
    for (const Happened& one : all) {
      if (one.kind == Happened::kReceived && one.connection == connection && one.side == side &&
          one.total >= total) {
        return one.time;
      }
    }
    return kNever;
  }
  size_t count(Happened::Kind kind) const {
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](auto& one) { return one.kind == kind; }));
  }

  std::vector<Happened> all;
  std::function<void(const Happened&)> react;

 private:
  void add(const Happened& one) {
    all.push_back(one);
    if (react) react(one);
  }
};

TEST(Streams, AWriteTakesBothLinksAndTheDelay) {
  auto network = make(2, kRate, kSecond, {.delay = 500 * kMicrosecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  ASSERT_EQ(streams.write(connection, 0, 1000, 0), 1000u);
  streams.advance(kSecond);
  Nanos there = 2 * took(1066, kRate) + 500 * kMicrosecond;
  Nanos back = 2 * took(kEmpty, kRate) + 500 * kMicrosecond;
  std::vector<Happened> expected{
      {Happened::kReceived, connection, 1, 1000, there},
      {Happened::kAcknowledged, connection, 0, 1000, there + back},
  };
  EXPECT_EQ(log.all, expected);
  EXPECT_EQ(streams.next(), kNever);
}

TEST(Streams, ATrainWithinTheWindowIsPipelined) {
  auto network = make(2, kRate, kSecond, {.delay = 5 * kMillisecond});
  Log log;
  Streams streams(network, {.receive_window = 0}, log);
  uint32_t connection = streams.connect(0, 1);
  ASSERT_EQ(streams.write(connection, 0, 10 * kSegment, 0), 10u * kSegment);
  streams.advance(kSecond);
  EXPECT_EQ(log.when(connection, 1, 10 * kSegment), 11 * took(kPacket, kRate) + 5 * kMillisecond);
  EXPECT_EQ(streams.counters().packets, 10u);
  EXPECT_EQ(streams.counters().retransmissions, 0u);
}

// In slow start without another limit the window doubles in each round. So 10 (2^k - 1) packets
// have left after k round trips.
TEST(Streams, SlowStartDoublesEachRoundTrip) {
  auto network = make(2, 100e9, kSecond, {.delay = 10 * kMillisecond});
  Log log;
  Streams streams(network, {.hystart = false, .receive_window = 0}, log);
  uint32_t connection = streams.connect(0, 1);
  constexpr uint64_t kPackets = 10 * (1 + 2 + 4 + 8);
  ASSERT_EQ(streams.write(connection, 0, kPackets * kSegment, 0), kPackets * kSegment);
  streams.advance(10 * kSecond);
  Nanos packet = took(kPacket, 100e9);
  for (uint64_t round = 0, packets = 0; round < 4; ++round) {
    Nanos begin = 10 * kMillisecond * static_cast<Nanos>(2 * round + 1);
    EXPECT_EQ(log.when(connection, 1, packets * kSegment + 1) / kMillisecond,
              begin / kMillisecond);
    packets += 10u << round;
    Nanos all = log.when(connection, 1, packets * kSegment);
    EXPECT_GT(all, begin);
    EXPECT_LT(all, begin + (20 << round) * packet);
  }
  EXPECT_EQ(streams.counters().timeouts + streams.counters().retransmissions, 0u);
}

// A receiver has room for seven packets at first, so a window of ten packets must wait.
TEST(Streams, AReceiverHasLittleRoomAtFirst) {
  auto network = make(2, 100e9, kSecond, {.delay = 10 * kMillisecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  ASSERT_EQ(streams.write(connection, 0, 10 * kSegment, 0), 10u * kSegment);
  streams.advance(kSecond);
  EXPECT_EQ(log.when(connection, 1, 7 * kSegment) / kMillisecond, 10);
  EXPECT_EQ(log.when(connection, 1, 7 * kSegment + 1) / kMillisecond, 30);
  EXPECT_EQ(log.when(connection, 1, 10 * kSegment) / kMillisecond, 30);
}

// An application that keeps W bytes outstanding at a round trip T gets W / T.
TEST(Streams, AFixedWindowGetsItsShareOfTheRoundTrip) {
  constexpr size_t kWindow = 16 << 10;
  constexpr int kAnswers = 400;
  auto network = make(2, 10e9, kSecond, {.delay = kMillisecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  int answers = 0;
  Nanos end = 0;
  uint64_t asked = 0;
  log.react = [&](const Happened& one) {
    if (one.kind != Happened::kReceived) return;
    if (one.side == 1) {
      if (one.total == asked) streams.write(connection, 1, kWindow, one.time);
    } else if (one.total == asked && ++answers < kAnswers) {
      asked += kWindow;
      streams.write(connection, 0, kWindow, one.time);
    }
    end = one.time;
  };
  asked = kWindow;
  streams.write(connection, 0, kWindow, 0);
  streams.advance(100 * kSecond);
  ASSERT_EQ(answers, kAnswers);
  // The second packet is acknowledged at once, before the answer.
  const Nanos way =
      kMillisecond + 2 * took(kPacket, 10e9) + took(kWindow - kSegment + kEmpty, 10e9);
  EXPECT_EQ(end, 2 * kAnswers * way + (2 * kAnswers - 1) * took(kEmpty, 10e9));
}

TEST(Streams, AnswersCarryAcknowledgements) {
  constexpr int kAnswers = 400;
  auto network = make(2, 10e9, kSecond, {.delay = kMillisecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  Nanos end = 0;
  log.react = [&](const Happened& one) {
    if (one.kind != Happened::kReceived || one.total > kAnswers * uint64_t{kSegment}) return;
    end = one.time;
    if (one.side == 1 || one.total < kAnswers * uint64_t{kSegment}) {
      streams.write(connection, one.side, kSegment, one.time);
    }
  };
  streams.write(connection, 0, kSegment, 0);
  streams.advance(100 * kSecond);
  EXPECT_EQ(log.when(connection, 0, kAnswers * uint64_t{kSegment}), end);
  // Exceptions are the first message, before answers are expected, and the last one.
  EXPECT_EQ(streams.counters().acks, 3u);
  EXPECT_EQ(end, 2 * kAnswers * (2 * took(kPacket, 10e9) + kMillisecond) + 2 * took(kEmpty, 10e9));
}

TEST(Streams, TwoSendersShareAPort) {
  auto network = make(3, kRate, 20 * kMillisecond, {.delay = 100 * kMicrosecond});
  Log log;
  Streams streams(network, {}, log);
  constexpr size_t kBytes = 20 << 20;
  size_t left[2];
  log.react = [&](const Happened& one) {
    if (one.kind != Happened::kWritable) return;
    left[one.connection] -= streams.write(one.connection, 0, left[one.connection], one.time);
  };
  for (uint16_t host = 0; host < 2; ++host) {
    uint32_t connection = streams.connect(host, 2);
    left[connection] = kBytes;
    left[connection] -= streams.write(connection, 0, kBytes, 0);
  }
  streams.advance(100 * kSecond);
  ASSERT_EQ(left[0] + left[1], 0u);
  Nanos ends[2] = {log.when(0, 1, kBytes), log.when(1, 1, kBytes)};
  Nanos last = std::max(ends[0], ends[1]), first = std::min(ends[0], ends[1]);
  const double limit = 2.0 * kBytes / kSegment * kPacket * 8 / kRate;
  EXPECT_GE(to_seconds(last), limit);
  EXPECT_LE(to_seconds(last), 1.02 * limit);
  EXPECT_GE(to_seconds(first), 0.7 * limit);
  // Sharing a queue of 20 ms takes losses, but few.
  auto counters = streams.counters();
  EXPECT_GT(counters.retransmissions, 0u);
  EXPECT_LT(counters.retransmissions, counters.packets / 50);
  EXPECT_EQ(counters.timeouts, 0u);
}

// Ten packets leave at once, and some are lost. Returns the time beyond that of ten packets, which
// is 11 packet times and the way there.
struct Losses {
  static constexpr Nanos kWay = 10 * kMillisecond, kRound = 2 * kWay;
  static constexpr double kFast = 10e9;

  Network network = make(2, kFast, kSecond, {.delay = kWay});
  Log log;
  Streams streams{network, {.receive_window = 0}, log};
  uint32_t connection = streams.connect(0, 1);

  void send(int packets, bool lost) {
    network.set_path(0, 1, {.delay = kWay, .loss = lost ? 1.0 : 0.0});
    for (int i = 0; i < packets; ++i) streams.write(connection, 0, kSegment, 0);
    network.set_path(0, 1, {.delay = kWay});
  }
  Nanos cost(uint64_t packets = 10) {
    streams.advance(100 * kSecond);
    return log.when(connection, 1, packets * kSegment) - kWay - 11 * took(kPacket, kFast);
  }
};

TEST(Streams, ALostPacketCostsARoundTrip) {
  Losses path;
  path.send(3, false);
  path.send(1, true);
  path.send(6, false);
  // Three later packets reveal the loss.
  EXPECT_NEAR(static_cast<double>(path.cost()), static_cast<double>(Losses::kRound),
              static_cast<double>(4 * took(kPacket, Losses::kFast)));
  auto counters = path.streams.counters();
  EXPECT_EQ(counters.retransmissions, 1u);
  EXPECT_EQ(counters.spurious + counters.probes + counters.timeouts, 0u);
  EXPECT_EQ(path.streams.window(path.connection, 0), 9u);  // 0.7 of (10 + the first 3)
}

TEST(Streams, ThreeLostPacketsCostNoMore) {
  Losses path;
  path.send(2, false);
  path.send(3, true);
  path.send(5, false);
  EXPECT_NEAR(static_cast<double>(path.cost()), static_cast<double>(Losses::kRound),
              static_cast<double>(4 * took(kPacket, Losses::kFast)));
  EXPECT_EQ(path.streams.counters().retransmissions, 3u);
}

TEST(Streams, ALostTailCostsAProbe) {
  Losses path;
  path.send(8, false);
  path.send(2, true);
  // The last acknowledgement of the eight, two round trips and two ticks. Then the probe is
  // acknowledged, and the packets before it are sent again.
  const Nanos expected = 4 * Losses::kRound + 8 * kMillisecond;
  EXPECT_NEAR(static_cast<double>(path.cost()), static_cast<double>(expected), 100e3);
  auto counters = path.streams.counters();
  EXPECT_EQ(counters.probes, 1u);
  EXPECT_EQ(counters.retransmissions, 2u);
  EXPECT_EQ(counters.spurious + counters.timeouts, 0u);
}

TEST(Streams, ALostProbeCostsATimeout) {
  Losses path;
  path.send(8, false);
  path.send(2, true);
  path.streams.advance(3 * Losses::kRound);
  path.network.set_path(0, 1, {.delay = Losses::kWay, .loss = 1});
  path.streams.advance(3 * Losses::kRound + 10 * kMillisecond);
  ASSERT_EQ(path.streams.counters().probes, 1u);
  path.network.set_path(0, 1, {.delay = Losses::kWay});
  // The timeout counts from the departure of the first of the two, and starts with one packet.
  const Nanos timeout = Losses::kRound + timeout_beyond(Losses::kRound);
  EXPECT_NEAR(static_cast<double>(path.cost()), static_cast<double>(timeout + Losses::kRound),
              100e3);
  auto counters = path.streams.counters();
  EXPECT_EQ(counters.timeouts, 1u);
  EXPECT_EQ(counters.retransmissions, 3u);
}

// A lost acknowledgement costs nothing if others follow. The last one costs a probe, and the
// receiver reports that the probe was not needed.
TEST(Streams, ALostAcknowledgementIsMadeUpFor) {
  Losses path;
  path.network.set_path(1, 0, {.delay = Losses::kWay, .loss = 1});
  path.send(10, false);
  path.streams.advance(Losses::kRound);
  path.network.set_path(1, 0, {.delay = Losses::kWay});
  EXPECT_EQ(path.cost(), 0);
  auto counters = path.streams.counters();
  EXPECT_EQ(counters.probes, 1u);
  EXPECT_EQ(counters.retransmissions, 1u);
  EXPECT_EQ(counters.spurious, 1u);
  EXPECT_EQ(counters.timeouts, 0u);
  auto info = path.streams.path_info(path.connection, 0, 100 * kSecond);
  EXPECT_EQ(info.retransmits, 1u);
  EXPECT_EQ(info.spurious, 1u);
  EXPECT_EQ(info.unacknowledged, 0u);
}

TEST(Streams, PathInfoTellsTheRoundTrip) {
  auto network = make(2, kRate, kSecond, {.delay = 2 * kMillisecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  for (int i = 0; i < 200; ++i) {
    streams.advance(i * 10 * kMillisecond);
    streams.write(connection, 0, 1000, i * 10 * kMillisecond);
    EXPECT_EQ(streams.path_info(connection, 0, i * 10 * kMillisecond).unacknowledged, 1u);
  }
  Nanos now = 199 * 10 * kMillisecond + 5 * kMillisecond;
  streams.advance(now);
  auto info = streams.path_info(connection, 0, now);
  Nanos rtt = 4 * kMillisecond + 2 * took(1066, kRate) + 2 * took(kEmpty, kRate);
  // The round trip of the connection's opening, with small packets both ways.
  EXPECT_EQ(info.min_rtt, 4 * kMillisecond + 4 * took(kEmpty, kRate));
  EXPECT_NEAR(static_cast<double>(info.rtt), static_cast<double>(rtt), 1e3);
  EXPECT_EQ(info.unacknowledged, 0u);
  EXPECT_EQ(info.acknowledged_ago, 5 * kMillisecond - rtt);
  EXPECT_EQ(info.retransmits, 0u);
}

TEST(Streams, AnAbortEndsTheOtherSide) {
  auto network = make(2, kRate, kSecond, {.delay = kMillisecond});
  Log log;
  Streams streams(network, {}, log);
  uint32_t first = streams.connect(0, 1), local = streams.connect(1, 1);
  for (uint32_t connection : {first, local}) {
    streams.write(connection, 1, 100000, 0);
    streams.abort(connection, 0, 0);
  }
  streams.advance(100 * kSecond);
  EXPECT_EQ(log.count(Happened::kAborted), 2u);
  EXPECT_EQ(log.all.size(), 2u);
  EXPECT_EQ(streams.write(first, 1, 1, 100 * kSecond), 0u);
  EXPECT_EQ(streams.next(), kNever);
}

TEST(Streams, ASilentPeerIsGivenUp) {
  auto network = make(2, kRate, kSecond, {.loss = 1});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(0, 1);
  streams.write(connection, 0, 100, 0);
  streams.advance(10000 * kSecond);
  ASSERT_EQ(log.all.size(), 1u);
  EXPECT_EQ(log.all[0].kind, Happened::kAborted);
  EXPECT_EQ(log.all[0].side, 0);
}

TEST(Streams, OnOneHostThereIsNoLink) {
  auto network = make(2, 1e6, 0, {.delay = kSecond, .loss = 1});
  Log log;
  Streams streams(network, {}, log);
  uint32_t connection = streams.connect(1, 1);
  EXPECT_EQ(streams.write(connection, 1, 1 << 20, 5), size_t{1} << 20);
  streams.finish(connection, 1, 5);
  streams.advance(kSecond);
  const Nanos there = 5 + 10 * kMicrosecond;
  std::vector<Happened> expected{
      {Happened::kReceived, connection, 0, 1 << 20, there},
      {Happened::kAcknowledged, connection, 1, 1 << 20, there},
      {Happened::kFinished, connection, 0, 0, there},
  };
  EXPECT_EQ(log.all, expected);
}

// All bytes arrive once and in order, whatever the network loses. The same seed gives the same
// times to the nanosecond.
TEST(Streams, NothingIsLostOrDoubled) {
  uint64_t retransmissions = 0, timeouts = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 random(seed);
    auto pick = [&](auto... values) {
      std::common_type_t<decltype(values)...> all[] = {values...};
      return all[random() % sizeof...(values)];
    };
    const size_t hosts = 2 + random() % 4;
    const double rate = pick(50e6, 1e9, 25e9);
    Nanos queue = pick(0, 50, 500, 5000) * kMicrosecond;
    const PathSettings path{.delay = pick(0, 5, 300, 5000) * kMicrosecond,
                            .jitter = pick(0, 0, 200) * kMicrosecond,
                            .loss = pick(0.0, 0.001, 0.02, 0.2)};
    StreamSettings settings{.mtu = pick(1500u, 9000u),
                            .control = pick(StreamSettings::Control::kCubic,
                                            StreamSettings::Control::kReno,
                                            StreamSettings::Control::kUnlimited),
                            .send_buffer = pick(size_t{1} << 14, size_t{1} << 20)};
    // Without a window, an overrun queue stays overrun.
    if (settings.control == StreamSettings::Control::kUnlimited) queue = kSecond;
    const size_t spines = pick(0u, 0u, 3u);
    settings.spread_packets = pick(false, true);
    const size_t connections = 1 + random() % 6;
    const uint64_t chosen = random();
    std::vector<Happened> found[2];
    for (auto& happened : found) {
      std::mt19937_64 choices(chosen);
      Network network(hosts, spines, seed);
      for (size_t link = 0; link < network.links(); ++link) network.link(link).set({rate, queue});
      network.set_all_paths(path);
      for (size_t one = 0; one < spines; ++one) {
        network.set_spine_path(one, {.delay = static_cast<Nanos>(one) * 20 * kMicrosecond});
      }
      Log log;
      Streams streams(network, settings, log);
      std::vector<std::array<uint64_t, 2>> left(connections), all(connections);
      auto write = [&](uint32_t connection, int side, Nanos now) {
        uint64_t& rest = left[connection][static_cast<size_t>(side)];
        // Writes pieces, the last of which may be taken only in part.
        while (rest > 0) {
          size_t piece = std::min<uint64_t>(rest, 1 + choices() % 50000);
          size_t taken = streams.write(connection, side, piece, now);
          rest -= taken;
          if (taken < piece) return;
        }
        streams.finish(connection, side, now);
      };
      log.react = [&](const Happened& one) {
        if (one.kind == Happened::kWritable) write(one.connection, one.side, one.time);
      };
      for (uint32_t i = 0; i < connections; ++i) {
        uint16_t a = choices() % hosts, b = choices() % hosts;  // sometimes the same host
        ASSERT_EQ(streams.connect(a, b), i);
        for (int side = 0; side < 2; ++side) {
          all[i][side] = left[i][side] = choices() % 400000;
          write(i, side, 0);
        }
      }
      streams.advance(1000 * kSecond);
      EXPECT_EQ(streams.next(), kNever) << "seed " << seed;
      std::vector<std::array<uint64_t, 2>> got(connections);
      std::vector<std::array<int, 2>> ended(connections);
      Nanos time = 0;
      for (const Happened& one : log.all) {
        ASSERT_GE(one.time, time) << "seed " << seed;
        time = one.time;
        size_t side = static_cast<size_t>(one.side);
        if (one.kind == Happened::kReceived) {
          ASSERT_GT(one.total, got[one.connection][side]);
          got[one.connection][side] = one.total;
        } else if (one.kind == Happened::kFinished) {
          ++ended[one.connection][side];
          ASSERT_EQ(got[one.connection][side], all[one.connection][1 - side]);
        }
        ASSERT_NE(one.kind, Happened::kAborted);
      }
      for (size_t i = 0; i < connections; ++i) {
        for (size_t side = 0; side < 2; ++side) {
          ASSERT_EQ(ended[i][side], 1) << "seed " << seed << " connection " << i;
          ASSERT_EQ(got[i][side], all[i][1 - side]) << "seed " << seed;
        }
      }
      retransmissions += streams.counters().retransmissions;
      timeouts += streams.counters().timeouts;
      happened = std::move(log.all);
    }
    ASSERT_EQ(found[0], found[1]) << "seed " << seed;
  }
  EXPECT_GT(retransmissions, 1000u);
  EXPECT_GT(timeouts, 10u);
}

}  // namespace
}  // namespace herring::transport::virtual_time
