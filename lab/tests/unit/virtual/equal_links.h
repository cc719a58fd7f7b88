// A network whose links are all equal, and how long they take for a packet.
#pragma once

#include <cmath>

#include "virtual/network.h"

namespace herring::transport::virtual_time {

inline constexpr double kRate = 200e6;

inline Nanos took(uint32_t bytes, double rate) { return std::llround(bytes * 8e9 / rate); }

// `hosts` hosts on one switch, or under `spines` of them.
inline Network make(size_t hosts, double rate, Nanos queue, PathSettings path,
                    size_t spines = 0) {
  Network network(hosts, spines, 1);
  for (size_t link = 0; link < network.links(); ++link) network.link(link).set({rate, queue});
  network.set_all_paths(path);
  return network;
}

}  // namespace herring::transport::virtual_time
