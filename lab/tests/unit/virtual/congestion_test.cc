// Compares the windows of slow start, CUBIC and Reno with their formulas.
#include "virtual/congestion.h"

#include <gtest/gtest.h>

#include <cmath>

namespace herring::transport::virtual_time {
namespace {

using Control = StreamSettings::Control;

constexpr Nanos kRound = 100 * kMillisecond;

// An application that always has more to send, over a path without a queue.
class Transfer {
 public:
  explicit Transfer(StreamSettings settings) : settings_(settings), congestion_(settings_) {}

  void rounds(int count) {
    for (int i = 0; i < count; ++i, now_ += kRound) {
      const uint64_t end = next_;
      fill();
      while (first_ < end) {
        ++first_;
        congestion_.on_round_trip(kRound, first_, next_, now_);
        congestion_.on_acked(1, kRound, now_);
        fill();
      }
    }
  }
  void lose() {
    congestion_.begin_reduction();
    congestion_.end_reduction();
    next_ = first_;  // all packets have arrived
  }
  // Sends `packets` a round and waits for them.
  void little(uint64_t packets, int count) {
    first_ = next_;
    for (int i = 0; i < count; ++i, now_ += kRound) {
      for (uint64_t one = 0; one < packets; ++one) {
        ++next_;
        congestion_.on_sent(false, first_, next_, kTimeout, now_);
      }
      while (first_ < next_) {
        ++first_;
        congestion_.on_acked(1, kRound, now_);
      }
    }
  }
  void idle(Nanos time) {
    now_ += time;
    congestion_.on_idle(time, kTimeout, now_);
  }
  uint32_t window() const { return congestion_.window(); }
  Congestion& congestion() { return congestion_; }

 private:
  static constexpr Nanos kTimeout = 300 * kMillisecond;

  void fill() {
    next_ = first_ + congestion_.window();
    congestion_.on_sent(true, first_, next_, kTimeout, now_);
  }

  StreamSettings settings_;
  Congestion congestion_;
  uint64_t first_ = 0, next_ = 0;
  Nanos now_ = kSecond;
};

TEST(Congestion, SlowStartDoublesAndRenoAddsOne) {
  Transfer transfer({.control = Control::kReno});
  transfer.rounds(1);  // no packets were under way before
  for (uint32_t window = 10; window <= 640; window *= 2) {
    EXPECT_EQ(transfer.window(), window);
    transfer.rounds(1);
  }
  transfer.lose();
  EXPECT_EQ(transfer.window(), 640u);
  transfer.rounds(1);
  for (uint32_t more = 0; more < 20; ++more) {
    EXPECT_NEAR(transfer.window(), 640.0 + more, 1);
    transfer.rounds(1);
  }
}

// RFC 9438: W(t) = 0.4 (t - K)^3 + W_max, with K = cbrt(W_max (1 - 0.7) / 0.4).
TEST(Congestion, CubicFollowsItsCurve) {
  Transfer transfer({.control = Control::kCubic, .hystart = false});
  transfer.rounds(8);
  const double greatest = transfer.window();
  ASSERT_EQ(greatest, 1280);
  transfer.lose();
  EXPECT_EQ(transfer.window(), std::floor(0.7 * greatest));
  const double rise = std::cbrt(greatest * 0.3 / 0.4);  // 9.9 s
  transfer.rounds(1);
  for (int round = 0; round < 150; ++round) {
    // The window is computed for packets that leave now and arrive a round trip later. It lags
    // behind, because it only grows when packets arrive.
    const double since = (round + 1) * to_seconds(kRound) - rise;
    EXPECT_NEAR(transfer.window(), 0.4 * since * since * since + greatest, 0.02 * greatest)
        << round;
    transfer.rounds(1);
  }
}

// At short round trips CUBIC is no slower than Reno with the same reduction: 3 (1 - 0.7) /
// (1 + 0.7) packets a round trip.
TEST(Congestion, CubicIsNotSlowerThanReno) {
  StreamSettings settings{.control = Control::kCubic, .hystart = false};
  Congestion congestion(settings);
  uint64_t first = 0;
  Nanos now = kSecond;
  auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      now += kMillisecond;
      for (uint32_t left = congestion.window(); left > 0; --left) {
        ++first;
        congestion.on_sent(true, first, first + congestion.window(), kSecond, now);
        congestion.on_round_trip(kMillisecond, first, first + congestion.window(), now);
        congestion.on_acked(1, kMillisecond, now);
      }
    }
  };
  rounds(3);
  const double greatest = congestion.window();
  congestion.begin_reduction();
  congestion.end_reduction();
  const double begin = congestion.window();
  EXPECT_NEAR(begin, 0.7 * greatest, 1);
  rounds(40);
  EXPECT_NEAR(congestion.window(), begin + 40 * 3 * 0.3 / 1.7, 3);
}

TEST(Congestion, AWindowThatIsNotUsedDoesNotGrow) {
  Transfer transfer({.control = Control::kCubic});
  // In slow start the window may be up to twice what is used.
  transfer.little(4, 100);
  EXPECT_EQ(transfer.window(), 10u);
  transfer.little(8, 100);
  EXPECT_GE(transfer.window(), 10u);
  EXPECT_LE(transfer.window(), 17u);
}

TEST(Congestion, AWindowThatIsNotUsedShrinks) {
  Transfer transfer({.control = Control::kReno});
  transfer.rounds(6);
  ASSERT_EQ(transfer.window(), 320u);
  // Half of the excess is given up for each timeout of three rounds.
  transfer.little(10, 12);
  EXPECT_LT(transfer.window(), 60u);
  EXPECT_GE(transfer.window(), 10u);
  EXPECT_GE(transfer.congestion().threshold(), 240u);
}

TEST(Congestion, AfterAPauseItStartsSlowly) {
  Transfer transfer({.control = Control::kReno});
  transfer.rounds(6);
  ASSERT_EQ(transfer.window(), 320u);
  transfer.idle(250 * kMillisecond);
  EXPECT_EQ(transfer.window(), 320u);
  transfer.idle(700 * kMillisecond);  // two timeouts of 300 ms
  EXPECT_EQ(transfer.window(), 80u);
  transfer.idle(100 * kSecond);
  EXPECT_EQ(transfer.window(), 10u);
}

TEST(Congestion, ATimeoutLeavesOnePacketAndCanBeUndone) {
  Transfer transfer({.control = Control::kCubic, .hystart = false});
  transfer.rounds(4);
  ASSERT_EQ(transfer.window(), 80u);
  transfer.congestion().on_timeout(false);
  EXPECT_EQ(transfer.window(), 1u);
  EXPECT_EQ(transfer.congestion().threshold(), 56u);
  transfer.congestion().undo();
  EXPECT_EQ(transfer.window(), 80u);
  EXPECT_EQ(transfer.congestion().threshold(), Congestion::kNoLimit);
}

// RFC 6937: for the packets that arrive, packets leave in the ratio of the new window to the old
// one.
TEST(Congestion, AReductionIsSpreadOverARoundTrip) {
  Transfer transfer({.control = Control::kReno});
  transfer.rounds(5);
  ASSERT_EQ(transfer.window(), 160u);
  Congestion& congestion = transfer.congestion();
  congestion.begin_reduction();
  uint32_t in_flight = 159, sent = 0;  // one is lost
  for (uint32_t arrived = 1; arrived <= 159; ++arrived) {
    --in_flight;
    congestion.reduce(in_flight, 1, false);
    for (; in_flight < congestion.window(); ++in_flight, ++sent) congestion.count_sent();
    EXPECT_NEAR(sent, arrived / 2.0, 1.0) << arrived;
  }
  congestion.end_reduction();
  EXPECT_EQ(congestion.window(), 80u);
}

TEST(Congestion, WithoutControlThereIsNoWindow) {
  Transfer transfer({.control = Control::kUnlimited});
  Congestion& congestion = transfer.congestion();
  congestion.begin_reduction();
  congestion.reduce(5, 1, false);
  congestion.end_reduction();
  congestion.on_timeout(false);
  congestion.on_idle(100 * kSecond, kSecond, 100 * kSecond);
  EXPECT_EQ(congestion.window(), Congestion::kNoLimit);
}

}  // namespace
}  // namespace herring::transport::virtual_time
