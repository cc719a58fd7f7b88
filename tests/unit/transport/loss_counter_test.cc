#include <gtest/gtest.h>

#include "transport/transport.h"

namespace herring::transport {
namespace {

PathInfo path(uint64_t retransmits, uint64_t spurious) {
  PathInfo info;
  info.retransmits = retransmits;
  info.spurious = spurious;
  return info;
}

TEST(LossCounter, ALossCountsOnceAndOnePollLater) {
  LossCounter losses;
  EXPECT_EQ(losses.poll(path(0, 0)), 0u);
  EXPECT_EQ(losses.poll(path(3, 0)), 0u);
  EXPECT_EQ(losses.poll(path(3, 0)), 3u);
  EXPECT_EQ(losses.poll(path(3, 0)), 0u);
  EXPECT_EQ(losses.poll(path(4, 0)), 0u);
  EXPECT_EQ(losses.poll(path(4, 0)), 1u);
}

TEST(LossCounter, WhatThePeerDisownsIsNone) {
  LossCounter losses;
  losses.poll(path(2, 0));
  EXPECT_EQ(losses.poll(path(2, 2)), 0u);
  EXPECT_EQ(losses.poll(path(2, 2)), 0u);
  losses.poll(path(5, 2));
  EXPECT_EQ(losses.poll(path(5, 3)), 2u);
  // A loss that is disowned after it was counted never makes the count negative, and is not counted
  // again.
  EXPECT_EQ(losses.poll(path(5, 5)), 0u);
  EXPECT_EQ(losses.poll(path(5, 5)), 0u);
}

}  // namespace
}  // namespace herring::transport
