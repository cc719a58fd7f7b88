// The numbers of the streams of named operations. Streams of plans and of partial all-reduces have
// other numbers.
#pragma once

#include <compare>
#include <cstdint>

namespace herring {

// The time in which one server answers for the names of a home: from the version of the set of
// servers with this epoch until it dies. No server has two reigns over one home.
struct Reign {
  uint32_t home = 0;
  uint32_t epoch = 0;  // 0: from the start of the job on; then the server is the home itself
  auto operator<=>(const Reign&) const = default;
};

// Streams from this number on are those of later reigns; fewer plans than this are ever made.
inline constexpr uint32_t kReignStreams = 1u << 30;

// Returns the stream of all-reduces that were announced in a reign. Other operations have the
// stream with this number plus the number of servers. Every reign has streams of its own. So no
// ticket is ever given twice, and the calls of a stream keep their order if they move to another
// server.
inline uint32_t stream_of(const Reign& reign, uint32_t servers) {
  if (reign.epoch == 0) return reign.home;
  const uint32_t reigns = kReignStreams / (2 * servers);
  return kReignStreams + reign.epoch % reigns * (2 * servers) + reign.home;
}

// Returns the home of a stream that stream_of() has returned.
inline uint32_t home_of(uint32_t stream, uint32_t servers) {
  return stream % kReignStreams % (2 * servers);
}

// Returns whether the stream is one of named operations.
inline bool is_of_calls(uint32_t stream, uint32_t servers) {
  return stream < 2 * servers || (stream >= kReignStreams && stream < 2 * kReignStreams);
}

}  // namespace herring
