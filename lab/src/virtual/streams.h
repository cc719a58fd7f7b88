// All TCP connections of a modelled network, in virtual time. They are reliable streams of bytes
// over packets that queue, are dropped and get lost. Streams carry only counts of bytes; their
// users keep the contents. The code is pure: it uses no clock and no thread, and the same calls
// give the same times.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/transport.h"
#include "virtual/network.h"
#include "virtual/receiver.h"
#include "virtual/sender.h"
#include "virtual/stream_types.h"
#include "virtual/time_heap.h"

namespace herring::transport::virtual_time {

// Receives events in the order of time, from inside Streams::advance(). Handlers may call all
// functions of Streams except advance().
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // `total` bytes since the start of the stream have arrived in order at `side`. They count as
  // read.
  virtual void on_received(uint32_t connection, int side, uint64_t total, Nanos now) = 0;
  // write() has taken less than it was given, and now a third of the buffer is free.
  virtual void on_writable(uint32_t connection, int side, Nanos now) = 0;
  // `total` of the bytes that `side` has written are known to have arrived.
  virtual void on_acknowledged(uint32_t, int /*side*/, uint64_t /*total*/, Nanos) {}
  // The other side has finished, and `side` has received all its bytes.
  virtual void on_finished(uint32_t connection, int side, Nanos now) = 0;
  // The other side has given up the connection, or no longer answers.
  virtual void on_aborted(uint32_t, int /*side*/, Nanos) {}
};

struct StreamCounters {
  uint64_t packets = 0;  // packets with data
  uint64_t acks = 0;     // packets without data
  uint64_t retransmissions = 0, spurious = 0, probes = 0, timeouts = 0;
};

class Streams {
 public:
  // `network` must carry nothing else, and must outlive the streams.
  Streams(Network& network, StreamSettings settings, StreamEvents& events);

  // Makes a connection, which is open at once. Side 0 is on host a, side 1 on host b.
  uint32_t connect(uint16_t host_a, uint16_t host_b, Nanos now = 0);
  // Returns how many bytes were taken, which is limited by the room in the send buffer. Times must
  // not go back, so call advance() with `now` first.
  size_t write(uint32_t connection, int side, size_t bytes, Nanos now);
  // Ends the direction from `side`. Bytes that were written before still arrive.
  void finish(uint32_t connection, int side, Nanos now);
  // Gives up the connection at once. The other side learns this from a packet.
  void abort(uint32_t connection, int side, Nanos now);

  PathInfo path_info(uint32_t connection, int side, Nanos now) const;
  StreamCounters counters(uint32_t connection) const;
  StreamCounters counters() const;
  // Returns how many packets a side may have under way.
  uint32_t window(uint32_t connection, int side) const;
  const StreamSettings& settings() const { return settings_; }

  // Returns when advance() has something to do; kNever if nothing is to be done.
  Nanos next() const;
  // Executes everything that happens until `now`, in the order of time.
  void advance(Nanos now);

 private:
  struct End {
    Sender sender;
    Receiver receiver;
    uint16_t host;
    bool wants_room = false;
    bool gone = false;
    bool told_end = false;  // whether on_finished() was called
    uint64_t acks = 0;
  };
  struct Connection {
    Nanos due;  // the time of its entry in the heap, which may hold older entries too
    std::array<Nanos, 2> ends_due;
    bool local;
    std::array<End, 2> ends;
  };
  struct Packet {
    Ack ack;
    uint64_t number;
    uint64_t end;  // where its bytes end
    Nanos sent;
    uint32_t connection;
    uint8_t from;  // side
    bool data, push, last, reset;
  };
  // Bytes on the way between two ends on one host.
  struct Local {
    Nanos time;
    uint64_t total;
    uint32_t connection;
    uint8_t from;
    bool last;
  };

  End& end(uint32_t connection, int side) {
    return connections_[connection].ends[static_cast<size_t>(side)];
  }
  const End& end(uint32_t connection, int side) const {
    return connections_[connection].ends[static_cast<size_t>(side)];
  }
  // Sends what `side` has written, as far as possible. `last`: the side has finished.
  void send_written(uint32_t connection, int side, bool last, Nanos now);
  void pump(uint32_t id, int side, Nanos now);
  void send(uint32_t id, int side, const Segment* segment, bool reset, Nanos now);
  void arrive(uint32_t place, Nanos now);
  void arrive_locally(const Local& local, Nanos now);
  void tell(uint32_t id, int side, uint64_t acknowledged, uint64_t received, Nanos now);
  void lose(uint32_t id, int side, Nanos now);
  void schedule(uint32_t id, int side);
  void prefetch(uint32_t place) const;
  void on_due(uint32_t id, Nanos now);

  Network& network_;
  const StreamSettings settings_;
  StreamEvents& events_;
  std::deque<Connection> connections_;  // a deque keeps addresses when a connection is added
  std::vector<Packet> packets_;
  std::vector<uint32_t> owners_;  // for packets_: twice the connection plus the receiving side
  std::vector<uint32_t> free_;    // free places in packets_
  std::vector<uint32_t> dropped_;
  std::deque<Local> locals_;
  TimeHeap due_;
  uint64_t sent_ = 0;  // number of packets, from which paths are chosen
};

}  // namespace herring::transport::virtual_time
