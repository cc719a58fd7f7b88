// Reads what the lab's switch needs from an Ethernet frame: the receiving host and the flow. The
// lab assigns the hosts' addresses: 02:48:45:00, followed by the host's number in two bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace herring::lab {

inline constexpr size_t kEthernetHeader = 14;
inline constexpr uint16_t kEveryone = 0xffff;
inline constexpr uint16_t kNobody = 0xfffe;

struct FrameInfo {
  uint16_t destination = kNobody;  // a host, kEveryone, or kNobody (not a host's address)
  uint32_t flow = 0;               // hash of addresses and ports; IPv4 only
  bool ip = false;
};

std::array<uint8_t, 6> host_address(uint16_t host);
FrameInfo read_frame(const uint8_t* frame, size_t size, size_t hosts);

}  // namespace herring::lab
