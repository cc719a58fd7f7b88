#include "switch/frame.h"

#include <cstring>

namespace herring::lab {
namespace {

constexpr uint8_t kPrefix[4] = {0x02, 0x48, 0x45, 0x00};
constexpr size_t kIpHeader = 20;

uint16_t big_endian(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

// FNV-1a. read_frame() mixes the result again, because its low bits depend only on the ports' low
// bits.
uint32_t mix(uint32_t hash, const uint8_t* at, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 16777619u;
  return hash;
}

}  // namespace

std::array<uint8_t, 6> host_address(uint16_t host) {
  return {kPrefix[0], kPrefix[1], kPrefix[2], kPrefix[3], static_cast<uint8_t>(host >> 8),
          static_cast<uint8_t>(host)};
}

FrameInfo read_frame(const uint8_t* frame, size_t size, size_t hosts) {
  FrameInfo info;
  if (size < kEthernetHeader) return info;
  if (frame[0] & 1) {
    info.destination = kEveryone;
  } else if (std::memcmp(frame, kPrefix, sizeof kPrefix) == 0) {
    uint16_t host = big_endian(frame + 4);
    if (host < hosts) info.destination = host;
  }
  const uint8_t* ip = frame + kEthernetHeader;
  size_t left = size - kEthernetHeader;
  info.ip = big_endian(frame + 12) == 0x0800 && left >= kIpHeader && ip[0] >> 4 == 4;
  if (!info.ip) return info;
  uint32_t hash = mix(2166136261u, ip + 12, 8);
  size_t header = (ip[0] & 15u) * 4;
  bool ports = ip[9] == 6 || ip[9] == 17;
  bool whole = (big_endian(ip + 6) & 0x3fff) == 0;  // fragments have no ports
  if (ports && whole && header >= kIpHeader && left >= header + 4) hash = mix(hash, ip + header, 4);
  hash ^= hash >> 15;
  hash *= 0x85ebca6bu;
  info.flow = hash ^ hash >> 13;
  return info;
}

}  // namespace herring::lab
