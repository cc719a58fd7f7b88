// How the job's credit becomes a window on each link, and a window frames. Pure: the simulator
// calls it too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "transport/transport.h"

namespace herring::worker {

// Where the time to a result goes into the network, by length or by queues, a window is cut into
// four frames: one on its way there, one on its way back, one that is summed and one that waits for
// the last of these to be whole. With fewer a part of the window would never be on its way. Where
// it goes into processors, into two, so that one is summed while another is on its way: each frame
// costs a wake-up and a few system calls on both sides.
inline constexpr size_t kFramesPerWindow = 2, kFramesInTheNetwork = 4;
// A round trip's share of the time to a result. Links that bind were measured to have 0.55 and
// more, processors that do 0.1 to 0.36.
inline constexpr double kShareInTheNetwork = 0.4;
// Lest a server with next to nothing to do makes all others flood their links.
inline constexpr double kLargestShare = 8;

// The least loaded server has one share, so that its flows keep to the credit; one with three times
// the bytes of a buffer has three on the way, or it would end three times as late.
inline double share_of(const std::vector<double>& weights, size_t server) {
  double least = 0;
  for (const double weight : weights) {
    if (weight > 0 && (least == 0 || weight < least)) least = weight;
  }
  if (least == 0 || server >= weights.size()) return 1;
  return std::clamp(weights[server] / least, 1.0, kLargestShare);
}

// A result from a server that is further away than the nearest takes longer by the difference of
// the empty paths' round trips. For it to come at the pace of the nearest server's, so much more
// must be on its way (Little's law). `response`: of the nearest, in the unit of `further`.
inline double length_of(double further, double response) {
  return 1 + std::max(further, 0.0) / std::max(response, 1.0);
}

// Segments that a flow may have outstanding.
inline size_t window_of(size_t credit, double share, double length, size_t credit_max) {
  return std::min(static_cast<size_t>(static_cast<double>(credit) * share * length + 0.5),
                  credit_max);
}

// What of a window may be used when so many segments have returned since nothing was outstanding.
// In a steady state half of it is on its way to the server and half on its way back. Where all that
// is outstanding is on its way there, half of it queues as deeply.
inline size_t opening_of(size_t window, size_t returned) {
  return std::min(window, std::max(kFramesInTheNetwork, window / 2) + returned);
}

// How many frames a window is cut into, by a packet's round trip and the time to a result.
inline size_t frames_of(double round_trip, double response) {
  return round_trip > kShareInTheNetwork * response ? kFramesInTheNetwork : kFramesPerWindow;
}

// Segments of the largest frame. `frames`: that make a window.
inline size_t frame_of(size_t window, size_t frames, size_t frame_max, size_t segment_bytes) {
  const size_t most =
      std::clamp<size_t>(frame_max / segment_bytes, 1, transport::Destinations::kMaxPieces);
  return std::clamp<size_t>(window / frames, 1, most);
}

}  // namespace herring::worker
