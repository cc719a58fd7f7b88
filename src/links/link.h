// A worker's connections to one server, and what waits to be pushed there. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ring.h"
#include "links/pace.h"
#include "links/paths.h"
#include "links/route.h"
#include "links/window.h"
#include "transport/silence.h"
#include "transport/transport.h"

namespace herring::links {

struct LinkFlow {
  std::unique_ptr<transport::Flow> flow;
  uint32_t server = 0, index = 0;
  transport::Silence silence;
  // Segments of lent results that were read here, and how many of them the server knows; modulo
  // 2^32.
  uint32_t taken = 0, taken_told = 0;
  // Payload being received of a control frame, or of a result that is not used.
  std::string control;
  Transfer* transfer = nullptr;  // of the result frame being received
  Pace* pace = nullptr;
  uint32_t run = 0;
  plan::Range range;           // of the contributions
  transport::LossCounter losses;
  uint32_t signals = 0;        // losses so far, modulo 2^32
};

// A run that waits to be pushed, as a whole or the rest of it.
struct Item {
  Transfer* transfer = nullptr;
  uint32_t run = 0;
  uint32_t next = 0;           // segment of the shard
  uint64_t number = 0;         // of the transfer in its stream, if servers have different loads
};

struct Stream {
  Ring<Item> queue;
  size_t outstanding = 0;
  Pace* pace = nullptr;
};

struct Link {
  using Streams = std::map<StreamId, Stream>;

  void count(Nanos now) {
    waited += static_cast<double>(outstanding) * static_cast<double>(now - counted_at);
    counted_at = now;
  }
  // Returns the first stream of the group, or where it would be.
  Streams::iterator first_of(uint32_t group) { return streams.lower_bound({group, 0, 0, 0}); }
  bool has(uint32_t group) {
    const auto first = first_of(group);
    return first != streams.end() && first->first.group == group;
  }
  Stream& stream_of(const StreamId& id, Pace& pace) {
    groups += !has(id.group);
    Stream& stream = streams[id];
    stream.pace = &pace;
    return stream;
  }
  // Every pump visits all streams of a link, so finished streams are removed.
  Streams::iterator erase(Streams::iterator stream) {
    const uint32_t group = stream->first.group;
    const auto next = streams.erase(stream);
    groups -= !has(group);
    return next;
  }
  void forget_streams() {
    streams.clear();
    groups = 0;
  }
  // The server is dead: nothing on its flows comes back.
  void drop(Nanos now) {
    for (auto& flow : flows) flow->flow->abandon();
    for (Path& path : paths) path.outstanding = 0;
    count(now);
    outstanding = 0;
    forget_streams();
  }

  double share = 1;   // of the credit: more for a server with more of the bytes
  double length = 1;  // window length relative to the nearest server's
  Nanos shortest = 0, round_trip = 0;  // round trips: shortest, latest; 0: unknown
  size_t frames = kFramesPerWindow;
  size_t outstanding = 0;
  // Sums since the last measurement: segments outstanding times duration, and segments answered.
  Nanos counted_at = 0;
  double waited = 0, answered = 0;
  std::vector<std::unique_ptr<LinkFlow>> flows;
  std::vector<Path> paths;  // one per flow
  Streams streams;
  uint32_t groups = 0;       // number of groups with streams here
};

}  // namespace herring::links
