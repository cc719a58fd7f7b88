// What the lab's switch reads in an Ethernet frame: for which host it is, and to which flow it
// belongs. Hosts' addresses are given by the lab: 02:48:45:00 and the host's number, two bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace herring::lab {

inline constexpr size_t kEthernetHeader = 14;
inline constexpr uint16_t kEveryone = 0xffff;
inline constexpr uint16_t kNobody = 0xfffe;

struct FrameInfo {
  uint16_t destination = kNobody;  // a host, kEveryone, or kNobody (an address of no host)
  uint32_t flow = 0;               // of IPv4: hash of addresses and ports
  bool ip = false;
};

std::array<uint8_t, 6> host_address(uint16_t host);
FrameInfo read_frame(const uint8_t* frame, size_t size, size_t hosts);

}  // namespace herring::lab
