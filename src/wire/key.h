// The key that identifies an array on its way through workers and servers.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace herring::wire {

// Streams from this number on are those of partial all-reduces, numbered by their owners.
inline constexpr uint32_t kPartialStreams = 1u << 31;

// Partial all-reduces go on when members of their group are gone, because the contributors of a
// round are known when it begins.
inline bool outlives_members(uint32_t stream) { return stream >= kPartialStreams; }

struct Key {
  uint32_t stream = 0, round = 0, buffer = 0;
  uint32_t group = 0;  // the group to which the stream belongs; 0: all ranks
  uint32_t home = 0, epoch = 0;  // as in FrameHeader
  bool outlives_members() const { return wire::outlives_members(stream); }
  auto operator<=>(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = uint64_t{key.group} << 32 | key.stream;
    h = h * 0x9e3779b97f4a7c15 + key.round;
    h = h * 0x9e3779b97f4a7c15 + key.buffer;
    h = h * 0x9e3779b97f4a7c15 + (uint64_t{key.home} << 32 | key.epoch);
    return static_cast<size_t>(h ^ (h >> 29));
  }
};

}  // namespace herring::wire
