#include "links/window.h"

#include <gtest/gtest.h>

#include <random>

namespace herring::links {
namespace {

TEST(Window, SharesAreCountedInTheLeastLoadedServers) {
  EXPECT_EQ(share_of({1, 3, 0}, 0), 1);
  EXPECT_EQ(share_of({1, 3, 0}, 1), 3);
  EXPECT_EQ(share_of({2, 6, 4}, 2), 2);
  // A server with next to nothing to do does not make the others flood their links.
  EXPECT_EQ(share_of({0.001, 1}, 1), kLargestShare);
  // A server with nothing to do, an unknown server, and a server in a set where none has anything
  // get a share of 1.
  EXPECT_EQ(share_of({1, 0}, 1), 1);
  EXPECT_EQ(share_of({1, 1}, 2), 1);
  EXPECT_EQ(share_of({0, 0}, 0), 1);
  EXPECT_EQ(share_of({}, 0), 1);
}

TEST(Window, IsLongerWhereThePathIs) {
  EXPECT_EQ(length_of(0, 1000), 1);
  EXPECT_EQ(length_of(1000, 1000), 2);
  EXPECT_EQ(length_of(20e6, 1e6), 21);
  // A path that is measured as shorter than the nearest counts as near. A response time of 0 counts
  // as 1.
  EXPECT_EQ(length_of(-500, 1000), 1);
  EXPECT_EQ(length_of(5, 0), 6);
}

TEST(Window, KeepsToTheMaximum) {
  EXPECT_EQ(window_of(4, 1, 1, 128), 4U);
  EXPECT_EQ(window_of(4, 1.5, 2, 128), 12U);
  EXPECT_EQ(window_of(1, 1.4, 1, 128), 1U);
  EXPECT_EQ(window_of(1, 1.5, 1, 128), 2U);
  EXPECT_EQ(window_of(64, 8, 21, 128), 128U);
}

TEST(Window, OpensByHalfAndThenByWhatReturns) {
  EXPECT_EQ(opening_of(1, 0), 1U);
  EXPECT_EQ(opening_of(4, 0), 4U);
  EXPECT_EQ(opening_of(64, 0), 32U);
  EXPECT_EQ(opening_of(64, 31), 63U);
  EXPECT_EQ(opening_of(64, 1000), 64U);
  for (size_t window = 1; window < 300; ++window) {
    for (size_t returned = 0; returned < 300; ++returned) {
      ASSERT_LE(opening_of(window, returned), window);
      ASSERT_GE(opening_of(window, returned + 1), opening_of(window, returned));
      ASSERT_GE(opening_of(window, returned), std::min<size_t>(window, returned));
    }
  }
}

TEST(Window, IsCutIntoFourFramesInTheNetworkAndTwoInProcessors) {
  EXPECT_EQ(frames_of(0.55, 1), kFramesInTheNetwork);
  EXPECT_EQ(frames_of(0.36, 1), kFramesPerWindow);
  EXPECT_EQ(frames_of(0, 0), kFramesPerWindow);
}

TEST(Window, FramesHoldWholeSegmentsAndKeepToTheirMaximum) {
  constexpr size_t kSegment = 8192;
  EXPECT_EQ(frame_of(1, 4, 256 << 10, kSegment), 1U);
  EXPECT_EQ(frame_of(16, 4, 256 << 10, kSegment), 4U);
  EXPECT_EQ(frame_of(128, 2, 256 << 10, kSegment), 32U);
  // Settings may make a frame smaller than a segment, or larger than the number of pieces in a
  // message.
  EXPECT_EQ(frame_of(128, 2, 4096, kSegment), 1U);
  EXPECT_EQ(frame_of(1 << 20, 2, size_t{1} << 30, 1024), transport::Destinations::kMaxPieces);
  std::mt19937 random(7);
  for (int i = 0; i < 10000; ++i) {
    const size_t window = 1 + random() % 4096, frames = random() % 2 ? 2 : 4;
    const size_t most = size_t{1024} << random() % 16, segment = 64 * (1 + random() % 1024);
    const size_t frame = frame_of(window, frames, most, segment);
    ASSERT_GE(frame, 1U);
    ASSERT_LE(frame, std::max<size_t>(window / frames, 1));
    ASSERT_LE(frame * segment, std::max(most, segment));
  }
}

}  // namespace
}  // namespace herring::links
