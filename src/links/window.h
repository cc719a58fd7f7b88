// Turns the job's credit into a window on each link, and a window into frames. Pure; the simulator
// calls it, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "transport/transport.h"

namespace herring::links {

// If the time to a result is spent in the network (distance or queues), a window is cut into four
// frames. One frame is on its way to the server, one is on its way back, and one is being summed.
// The fourth waits until the last of these has arrived in full. With fewer frames, part of the
// window would never be on its way. If the time is spent in processors, the window is cut into two
// frames: one is summed while the other is on its way. Each frame costs a wake-up and a few system
// calls on both sides.
inline constexpr size_t kFramesPerWindow = 2, kFramesInTheNetwork = 4;
// The share of a round trip in the time to a result above which the network counts as the limit.
// The measured shares were at least 0.55 where links are the limit and 0.1 to 0.36 where processors
// are.
inline constexpr double kShareInTheNetwork = 0.4;
// Bounds the share of a server. Otherwise one server with next to nothing to do would make all
// others flood their links.
inline constexpr double kLargestShare = 8;

// Returns how many times the credit a server may have outstanding. The least loaded server has one
// share, so its flows keep to the credit. A server with three times the bytes of a buffer has three
// shares; otherwise it would take three times as long.
inline double share_of(const std::vector<double>& weights, size_t server) {
  double least = 0;
  for (const double weight : weights) {
    if (weight > 0 && (least == 0 || weight < least)) least = weight;
  }
  if (least == 0 || server >= weights.size()) return 1;
  return std::clamp(weights[server] / least, 1.0, kLargestShare);
}

// Returns how many times longer the window of a more distant server must be. Its results take
// longer than those of the nearest server by the difference of the round trips on empty paths. To
// deliver results at the same pace, proportionally more must be on its way (Little's law).
// `response`: time to a result of the nearest server, in the unit of `further`.
inline double length_of(double further, double response) {
  return 1 + std::max(further, 0.0) / std::max(response, 1.0);
}

// Returns the number of segments that a flow may have outstanding.
inline size_t window_of(size_t credit, double share, double length, size_t credit_max) {
  return std::min(static_cast<size_t>(static_cast<double>(credit) * share * length + 0.5),
                  credit_max);
}

// Returns how much of a window may be used after `returned` segments have returned since nothing
// was outstanding. In a steady state, half of a window is on its way to the server and half on its
// way back. At a start, everything outstanding is on its way to the server. So half a window then
// queues as deeply as a whole one does later.
inline size_t opening_of(size_t window, size_t returned) {
  return std::min(window, std::max(kFramesInTheNetwork, window / 2) + returned);
}

// Returns how many frames a window is cut into, given the round trip of a packet and the time to a
// result.
inline size_t frames_of(double round_trip, double response) {
  return round_trip > kShareInTheNetwork * response ? kFramesInTheNetwork : kFramesPerWindow;
}

// Returns the size of the largest frame in segments. `frames`: number of frames in a window.
inline size_t frame_of(size_t window, size_t frames, size_t frame_max, size_t segment_bytes) {
  const size_t most =
      std::clamp<size_t>(frame_max / segment_bytes, 1, transport::Destinations::kMaxPieces);
  return std::clamp<size_t>(window / frames, 1, most);
}

}  // namespace herring::links
