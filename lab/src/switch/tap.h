// Makes a TAP device in a network namespace. The device vanishes with its descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace herring::lab {

// Frames are read and written with this many bytes before them (struct virtio_net_hdr). These say
// that a checksum is still missing. As between virtual machines of one computer, nobody computes
// it.
inline constexpr size_t kTapHeader = 10;

// Makes the device `name` in the namespace /run/netns/`space`, with the Ethernet address of `host`.
Result<UniqueFd> open_tap(const std::string& space, const std::string& name, uint16_t host);

}  // namespace herring::lab
