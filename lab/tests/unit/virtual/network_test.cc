// Compares the modelled network with the closed form, in virtual time.
#include "virtual/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "equal_links.h"

namespace herring::transport::virtual_time {
namespace {

constexpr uint32_t kBytes = 9014;

Parcel parcel(uint32_t buffer, uint16_t source, uint16_t destination, uint32_t bytes = kBytes) {
  return {.buffer = buffer, .bytes = bytes, .source = source, .destination = destination};
}

// Returns all deliveries that are still to come, in order, by stepping from event to event.
std::vector<Network::Delivery> run(Network& network, std::vector<uint32_t>* dropped) {
  std::vector<Network::Delivery> all;
  while (network.next() != kNever) {
    Nanos now = network.next();
    network.advance(now, dropped);
    while (auto delivery = network.deliver(now)) all.push_back(*delivery);
  }
  return all;
}

TEST(Network, LonePacketTakesBothLinksAndTheDelay) {
  auto network = make(2, kRate, kSecond, {.delay = 500 * kMicrosecond});
  std::vector<uint32_t> dropped;
  ASSERT_TRUE(network.enter(parcel(7, 0, 1), 1000));
  auto all = run(network, &dropped);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].parcel.buffer, 7u);
  EXPECT_EQ(all[0].due, 1000 + 2 * took(kBytes, kRate) + 500 * kMicrosecond);
  EXPECT_TRUE(dropped.empty());
}

TEST(Network, ATrainIsPipelinedOverItsTwoLinks) {
  auto network = make(2, kRate, kSecond, {.delay = 5 * kMillisecond});
  for (uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(network.enter(parcel(i, 0, 1), 0));
  std::vector<uint32_t> dropped;
  auto all = run(network, &dropped);
  ASSERT_EQ(all.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(all[i].parcel.buffer, i);
    EXPECT_EQ(all[i].due, (i + 2) * took(kBytes, kRate) + 5 * kMillisecond);
  }
}

TEST(Network, SendersShareAPortAndOneOverrunsIt) {
  // Four hosts send ten packets each to a fifth: 40 arrive within 11 packet times, one leaves per
  // packet time; a packet that would wait more than 8 packet times is dropped.
  Nanos packet = took(kBytes, kRate);
  auto network = make(5, kRate, 8 * packet, {});
  network.link(network.egress(0)).set({kRate, kSecond});
  for (uint16_t host = 0; host < 4; ++host) {
    network.link(network.egress(host)).set({kRate, kSecond});
    for (uint32_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(network.enter(parcel(10u * host + i, host, 4), 0));
    }
  }
  std::vector<uint32_t> dropped;
  auto all = run(network, &dropped);
  // The port is never idle from the first arrival (1 packet time) on, and a packet that comes last
  // (10 packet times) waits up to 8: 9 leave by then, 8 wait, one is under way.
  EXPECT_EQ(all.size(), 9u + 1u + 8u);
  EXPECT_EQ(all.size() + dropped.size(), 40u);
  EXPECT_EQ(network.link(network.port(4)).counters().drops, dropped.size());
  EXPECT_EQ(network.link(network.port(4)).counters().bytes, all.size() * kBytes);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].due, static_cast<Nanos>(i + 2) * packet);
  }
}

TEST(Network, AnIdleLinkTakesAPacketWhateverItsQueue) {
  auto network = make(2, kRate, 0, {});
  EXPECT_TRUE(network.enter(parcel(0, 0, 1), 0));
  EXPECT_FALSE(network.enter(parcel(1, 0, 1), 0));
  EXPECT_EQ(network.link(network.egress(0)).counters().drops, 1u);
  EXPECT_TRUE(network.enter(parcel(2, 0, 1), took(kBytes, kRate)));
}

TEST(Network, WithoutARateOnlyTheDelayIsLeft) {
  auto network = make(2, 0, 0, {.delay = kMillisecond});
  for (uint32_t i = 0; i < 50; ++i) ASSERT_TRUE(network.enter(parcel(i, 0, 1), 10));
  std::vector<uint32_t> dropped;
  for (auto& delivery : run(network, &dropped)) EXPECT_EQ(delivery.due, 10 + kMillisecond);
  EXPECT_TRUE(dropped.empty());
}

TEST(Network, AFarHostDoesNotHoldTheNearOnesUp) {
  auto network = make(3, kRate, kSecond, {.delay = 200 * kMicrosecond});
  for (size_t host : {0u, 2u}) {
    network.set_path(host, 1, {.delay = 10 * kMillisecond});
    network.set_path(1, host, {.delay = 10 * kMillisecond});
  }
  ASSERT_TRUE(network.enter(parcel(0, 1, 0), 0));
  ASSERT_TRUE(network.enter(parcel(1, 2, 0), 1));
  std::vector<uint32_t> dropped;
  auto all = run(network, &dropped);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].parcel.source, 2u);
  EXPECT_EQ(all[0].due, 1 + 2 * took(kBytes, kRate) + 200 * kMicrosecond);
  EXPECT_EQ(all[1].due, 2 * took(kBytes, kRate) + 10 * kMillisecond);
}

TEST(Network, LossIsAsOftenAsAskedAndTheSameEveryTime) {
  constexpr uint32_t kPackets = 200000;
  constexpr double kLoss = 0.01;
  std::vector<uint32_t> lost[2];
  for (auto& one : lost) {
    auto network = make(2, 0, 0, {.loss = kLoss});
    for (uint32_t i = 0; i < kPackets; ++i) {
      if (!network.enter(parcel(i, 0, 1), 0)) one.push_back(i);
    }
    EXPECT_EQ(network.lost(), one.size());
    Parcel arp = parcel(0, 0, 1);
    arp.safe = true;
    for (uint32_t i = 0; i < 10000; ++i) ASSERT_TRUE(network.enter(arp, 0));
  }
  EXPECT_EQ(lost[0], lost[1]);
  double deviation = std::sqrt(kPackets * kLoss * (1 - kLoss));
  EXPECT_NEAR(static_cast<double>(lost[0].size()), kPackets * kLoss, 5 * deviation);
}

TEST(Network, JitterIsEvenAndPacketsDoNotOvertake) {
  // Without a rate only the order keeps packets apart.
  auto network = make(3, 0, 0, {.delay = kMillisecond, .jitter = 100 * kMicrosecond});
  constexpr Nanos kApart = kMillisecond;  // more than the jitter, so packets do not meet
  for (uint32_t i = 0; i < 2000; ++i) ASSERT_TRUE(network.enter(parcel(i, 0, 1), i * kApart));
  std::vector<uint32_t> dropped;
  double sum = 0;
  for (auto& delivery : run(network, &dropped)) {
    Nanos extra = delivery.due - delivery.parcel.buffer * kApart - kMillisecond;
    ASSERT_GE(extra, 0);
    ASSERT_LE(extra, 100 * kMicrosecond);
    sum += static_cast<double>(extra);
  }
  EXPECT_NEAR(sum / 2000, 50e3, 4e3);
  Nanos later = 3 * kSecond;
  for (uint32_t i = 0; i < 500; ++i) ASSERT_TRUE(network.enter(parcel(i, 0, 1), later + i));
  uint32_t expected = 0;
  for (auto& delivery : run(network, &dropped)) EXPECT_EQ(delivery.parcel.buffer, expected++);
  EXPECT_EQ(expected, 500u);
}

TEST(Network, TwoSitesAreJoinedByAThinLongLink) {
  auto network = make(4, kRate, kSecond, {.delay = 50 * kMicrosecond}, 1);
  for (size_t leaf : {0u, 1u}) network.link(network.spine(0, leaf)).set({kRate / 4, kSecond});
  network.set_spine_path(0, {.delay = 10 * kMillisecond});
  // Hosts 0 and 2 are on one site, so the thin link is not between them.
  ASSERT_TRUE(network.enter(parcel(0, 0, 2), 0));
  std::vector<uint32_t> dropped;
  auto near = run(network, &dropped);
  ASSERT_EQ(near.size(), 1u);
  EXPECT_EQ(near[0].due, 2 * took(kBytes, kRate) + 50 * kMicrosecond);
  // From hosts 0 and 2 to hosts 1 and 3 the thin link decides, whichever host sends.
  Nanos start = kSecond;
  for (uint32_t i = 0; i < 20; ++i) {
    uint16_t source = i % 2 == 0 ? 0 : 2, destination = i % 4 < 2 ? 1 : 3;
    ASSERT_TRUE(network.enter(parcel(i, source, destination), start));
  }
  auto far = run(network, &dropped);
  ASSERT_EQ(far.size(), 20u);
  Nanos thin = took(kBytes, kRate / 4);
  for (size_t i = 0; i < far.size(); ++i) {
    Nanos expected = start + 2 * took(kBytes, kRate) + static_cast<Nanos>(i + 1) * thin +
                     10 * kMillisecond + 50 * kMicrosecond;
    EXPECT_EQ(far[i].due, expected) << i;
  }
  EXPECT_EQ(network.link(network.spine(0, 0)).counters().packets, 20u);
  EXPECT_EQ(network.link(network.spine(0, 1)).counters().packets, 0u);
}

TEST(Network, FlowsKeepToTheirSpine) {
  auto network = make(2, kRate, kSecond, {}, 3);
  for (uint32_t flow = 0; flow < 9; ++flow) {
    Parcel one = parcel(flow, 0, 1);
    one.flow = flow;
    ASSERT_TRUE(network.enter(one, 0));
  }
  std::vector<uint32_t> dropped;
  run(network, &dropped);
  for (size_t spine = 0; spine < 3; ++spine) {
    EXPECT_EQ(network.link(network.spine(spine, 0)).counters().packets, 3u);
  }
}

TEST(Network, ARateMayChangeWhilePacketsWait) {
  auto network = make(2, kRate, kSecond, {});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(network.enter(parcel(i, 0, 1), 0));
  for (size_t link = 0; link < network.links(); ++link) {
    network.link(link).set({kRate / 2, kSecond});
  }
  ASSERT_TRUE(network.enter(parcel(4, 0, 1), 0));
  std::vector<uint32_t> dropped;
  auto all = run(network, &dropped);
  ASSERT_EQ(all.size(), 5u);
  // Four packets leave at the old rate, and come to a port with half of this rate.
  Nanos packet = took(kBytes, kRate), slow = took(kBytes, kRate / 2);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all[i].due, packet + static_cast<Nanos>(i + 1) * slow);
  }
  network.link(network.egress(0)).set({0, 0});
  network.link(network.port(1)).set({0, 0});
  ASSERT_TRUE(network.enter(parcel(5, 0, 1), kSecond));
  EXPECT_EQ(run(network, &dropped).back().due, kSecond);
}

// Late calls (only at the end, or only when packets enter) compute the same times as calls that are
// always in time.
TEST(Network, TimesDoNotDependOnWhenItIsCalled) {
  std::vector<Nanos> found[3];
  for (size_t way = 0; way < 3; ++way) {
    auto network = make(6, kRate, 3 * kMillisecond,
                        {.delay = 70 * kMicrosecond, .jitter = 30 * kMicrosecond, .loss = 0.02});
    std::mt19937 random(3);
    std::vector<uint32_t> dropped;
    Nanos now = 0;
    auto take = [&](Nanos until) {
      network.advance(until, &dropped);
      while (auto delivery = network.deliver(until)) found[way].push_back(delivery->due);
    };
    for (uint32_t i = 0; i < 3000; ++i) {
      now += random() % 200000;
      uint16_t source = random() % 6, destination = (source + 1 + random() % 5) % 6;
      uint32_t bytes = 60 + random() % 9000;
      while (way == 1 && network.next() <= now) take(network.next());
      if (way == 2) take(now);
      network.enter(parcel(i, source, destination, bytes), now);
    }
    for (auto& delivery : run(network, &dropped)) found[way].push_back(delivery.due);
    std::sort(found[way].begin(), found[way].end());
    ASSERT_GT(found[way].size(), 2000u);
  }
  EXPECT_EQ(found[0], found[2]);
  EXPECT_EQ(found[1], found[2]);
}

}  // namespace
}  // namespace herring::transport::virtual_time
