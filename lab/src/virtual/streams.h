// All TCP connections of a modelled network, in virtual time: reliable streams of bytes over
// packets that queue, are dropped and get lost. Only counts of bytes travel; who uses the streams
// keeps what they stand for. Pure: no clock, no thread; the same calls give the same times.
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

// What happens, in the order of time, from inside Streams::advance(). Every call to Streams but
// advance() is allowed in here.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // So many bytes have arrived in order at `side`, from the beginning. They count as read.
  virtual void on_received(uint32_t connection, int side, uint64_t total, Nanos now) = 0;
  // write() took less than it was given, and a third of the buffer is free now.
  virtual void on_writable(uint32_t connection, int side, Nanos now) = 0;
  // So many bytes that `side` has written are known to have arrived.
  virtual void on_acknowledged(uint32_t, int /*side*/, uint64_t /*total*/, Nanos) {}
  // The other side has finished, and `side` has all its bytes.
  virtual void on_finished(uint32_t connection, int side, Nanos now) = 0;
  // The other side has given the connection up, or does not answer any more.
  virtual void on_aborted(uint32_t, int /*side*/, Nanos) {}
};

struct StreamCounters {
  uint64_t packets = 0;  // with data
  uint64_t acks = 0;     // packets without
  uint64_t retransmissions = 0, spurious = 0, probes = 0, timeouts = 0;
};

class Streams {
 public:
  // `network` carries nothing else, and must outlive the streams.
  Streams(Network& network, StreamSettings settings, StreamEvents& events);

  // A connection that is open at once. Side 0 is on host a, side 1 on host b.
  uint32_t connect(uint16_t host_a, uint16_t host_b, Nanos now = 0);
  // Returns how many bytes were taken: what the send buffer has room for. Times never go back:
  // advance() to `now` first.
  size_t write(uint32_t connection, int side, size_t bytes, Nanos now);
  // Nothing follows; what was written still arrives.
  void finish(uint32_t connection, int side, Nanos now);
  // Gives up at once. The other side learns of it when a packet gets there.
  void abort(uint32_t connection, int side, Nanos now);

  PathInfo path_info(uint32_t connection, int side, Nanos now) const;
  StreamCounters counters(uint32_t connection) const;
  StreamCounters counters() const;
  // Packets that a side may have on its way.
  uint32_t window(uint32_t connection, int side) const;
  const StreamSettings& settings() const { return settings_; }

  // When advance() has something to do; kNever: nothing.
  Nanos next() const;
  // Does all that happens until `now`, in the order of time.
  void advance(Nanos now);

 private:
  struct End {
    Sender sender;
    Receiver receiver;
    uint16_t host;
    bool wants_room = false;
    bool gone = false;
    bool told_end = false;  // that the other side has finished
    uint64_t acks = 0;
  };
  struct Connection {
    Nanos due;  // when the heap has it; there may be older entries
    std::array<Nanos, 2> ends_due;
    bool local;
    std::array<End, 2> ends;
  };
  struct Packet {
    Ack ack;
    uint64_t number;
    uint64_t end;  // of its bytes
    Nanos sent;
    uint32_t connection;
    uint8_t from;  // side
    bool data, push, last, reset;
  };
  // Bytes between two ends on one host.
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
  std::deque<Connection> connections_;  // keep their places when one is added
  std::vector<Packet> packets_;
  std::vector<uint32_t> owners_;  // of packets_: twice the connection, and the side it goes to
  std::vector<uint32_t> free_;    // places in packets_
  std::vector<uint32_t> dropped_;
  std::deque<Local> locals_;
  TimeHeap due_;
  uint64_t sent_ = 0;  // packets, to choose paths
};

}  // namespace herring::transport::virtual_time
