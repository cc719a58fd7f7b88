#include "switch/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace herring::lab {
namespace {

std::vector<uint8_t> tcp_frame(uint16_t to, uint16_t source_port, uint16_t port) {
  std::vector<uint8_t> frame(60);
  auto address = host_address(to);
  std::copy(address.begin(), address.end(), frame.begin());
  frame[12] = 0x08;
  frame[14] = 0x45;
  frame[14 + 9] = 6;
  for (size_t i = 0; i < 8; ++i) frame[14 + 12 + i] = static_cast<uint8_t>(i);
  frame[34] = static_cast<uint8_t>(source_port >> 8);
  frame[35] = static_cast<uint8_t>(source_port);
  frame[36] = static_cast<uint8_t>(port >> 8);
  frame[37] = static_cast<uint8_t>(port);
  return frame;
}

TEST(Frame, FindsTheHost) {
  for (uint16_t host : {0, 1, 255, 256, 999}) {
    auto frame = tcp_frame(host, 1, 2);
    FrameInfo info = read_frame(frame.data(), frame.size(), 1000);
    EXPECT_EQ(info.destination, host);
    EXPECT_TRUE(info.ip);
  }
  auto frame = tcp_frame(5, 1, 2);
  EXPECT_EQ(read_frame(frame.data(), frame.size(), 5).destination, kNobody);
  frame[1] ^= 1;
  EXPECT_EQ(read_frame(frame.data(), frame.size(), 6).destination, kNobody);
  std::fill_n(frame.begin(), 6, 0xff);
  EXPECT_EQ(read_frame(frame.data(), frame.size(), 6).destination, kEveryone);
}

TEST(Frame, OfAnySizeIsReadWithinItsBounds) {
  auto whole = tcp_frame(1, 1, 2);
  for (uint8_t header : {0x45, 0x4f, 0x40}) {
    whole[14] = header;
    for (size_t size = 0; size <= whole.size(); ++size) {
      std::vector<uint8_t> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
      FrameInfo info = read_frame(part.data(), size, 2);
      EXPECT_EQ(info.destination, size < kEthernetHeader ? kNobody : 1);
    }
  }
}

TEST(Frame, PortsChooseTheFlowAndSpreadOverSpines) {
  std::vector<int> counts(4);
  for (uint16_t port = 40000; port < 42000; ++port) {
    auto frame = tcp_frame(1, port, 5000);
    uint32_t flow = read_frame(frame.data(), frame.size(), 2).flow;
    ++counts[flow % 4];
    auto again = tcp_frame(1, port, 5000);
    again[50] = 77;
    EXPECT_EQ(read_frame(again.data(), again.size(), 2).flow, flow);
  }
  for (int count : counts) EXPECT_NEAR(count, 500, 120);
}

TEST(Frame, FragmentsOfAPacketGoTheSameWay) {
  std::set<uint32_t> flows;
  for (uint16_t port : {1, 2, 3}) {
    auto frame = tcp_frame(1, port, 5000);
    frame[14 + 6] = 0x20;  // more fragments: what looks like ports may be data
    flows.insert(read_frame(frame.data(), frame.size(), 2).flow);
  }
  EXPECT_EQ(flows.size(), 1u);
}

}  // namespace
}  // namespace herring::lab
