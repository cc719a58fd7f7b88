#include "wire/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace herring::wire {
namespace {

TEST(Frame, TheHeaderTravelsInThisLayout) {
  FrameHeader header;
  header.type = FrameType::kResult;
  header.flags = 0x11;
  header.segments = 0x2233;
  header.payload = 0x44556677;
  header.group = 6;
  header.stream = 0x8899aabb;
  header.round = 1;
  header.buffer = 2;
  header.first_segment = 3;
  header.credit = 4;
  header.home = 5;
  header.epoch = 7;
  header.signals = 0x50000;
  header.workers = 0x66778899;
  header.check = 0xaabbccdd;
  const uint8_t expected[kHeaderBytes] = {3,    0x11, 0x33, 0x22, 0x77, 0x66, 0x55, 0x44,
                                          6,    0,    0,    0,    0xbb, 0xaa, 0x99, 0x88,
                                          1,    0,    0,    0,    2,    0,    0,    0,
                                          3,    0,    0,    0,    4,    0,    5,    0,
                                          7,    0,    0,    0,    0,    0,    5,    0,
                                          0x99, 0x88, 0x77, 0x66, 0xdd, 0xcc, 0xbb, 0xaa};
  EXPECT_EQ(std::memcmp(&header, expected, sizeof(expected)), 0);
}

// It is what other implementations must compute.
TEST(Frame, TheCheckCoversTheHeaderAndItsNumber) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.segments = 2;
  header.payload = 100;
  header.round = 7;
  EXPECT_EQ(check_of(header, 1), 0x52b3cffau);
  EXPECT_NE(check_of(header, 1), check_of(header, 2));
  EXPECT_EQ(check_of(header, 1), check_of(header, 1 + (uint64_t{1} << 32)));
  const uint32_t before = check_of(header, 5);
  header.check = 99;
  EXPECT_EQ(check_of(header, 5), before);
}

TEST(Frame, EveryTypeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int type = 0; type <= static_cast<int>(FrameType::kLast); ++type) {
    names.insert(name_of(static_cast<FrameType>(type)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(FrameType::kLast) + 1);
  EXPECT_STREQ(name_of(FrameType::kOpen), "open");
  EXPECT_STREQ(name_of(FrameType::kRegister), "register");
  EXPECT_STREQ(name_of(FrameType::kAbort), "abort");
  EXPECT_STREQ(name_of(static_cast<FrameType>(200)), "unknown");
}

TEST(Frame, OnlyWhatAPeerWouldSendIsPlausible) {
  FrameHeader header;
  EXPECT_TRUE(plausible(header));
  for (int type = 0; type < 256; ++type) {
    header = {};
    header.type = static_cast<FrameType>(type);
    const bool counted = header.type == FrameType::kData || header.type == FrameType::kResult;
    const bool known = type >= 1 && type <= static_cast<int>(FrameType::kLast);
    EXPECT_EQ(plausible(header), known && !counted) << type;
    header.segments = 1;
    EXPECT_EQ(plausible(header), known && counted) << type;
    header.payload = kMaxPayload;
    EXPECT_EQ(plausible(header), known && counted) << type;
    header.payload = kMaxPayload + 1;
    EXPECT_FALSE(plausible(header)) << type;
    header.payload = UINT32_MAX;
    EXPECT_FALSE(plausible(header)) << type;
  }
  header = {};
  header.type = FrameType::kData;
  header.segments = 3;
  header.flags = kFlagEmpty;
  EXPECT_TRUE(plausible(header));
  header.payload = 1;
  EXPECT_FALSE(plausible(header)) << "empty, yet with a payload";
}

}  // namespace
}  // namespace herring::wire
