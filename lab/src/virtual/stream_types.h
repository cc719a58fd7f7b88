// What sender, receiver and streams share: how TCP is set, and what travels in a packet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transport/transport.h"

namespace herring::transport::virtual_time {

// As Linux has them, where nothing else is said.
struct StreamSettings {
  uint32_t mtu = 9000;
  uint32_t header_bytes = 52;  // of IP and TCP with timestamps, inside the MTU
  uint32_t link_header = 14;   // Ethernet's, on the wire beside the MTU
  uint32_t initial_window = 10;  // packets
  enum class Control {
    kCubic,
    kReno,
    kUnlimited,  // no window: for fabrics that lose nothing and hold senders back themselves
  } control = Control::kCubic;
  // A time-out is the round trip and transport::timeout_beyond(), or more; where the system knows
  // no TCP_RTO_MIN_US, this is kSystemTimeout.
  Nanos least_timeout = 0;
  Nanos tick = 4 * kMillisecond;  // of the system's timers: probes and waits have two more
  bool linear_timeouts = true;    // TCP_THIN_LINEAR_TIMEOUTS: with few packets out, no back-off
  size_t send_buffer = 4 << 20;
  Nanos delayed_ack = 40 * kMillisecond;
  bool slow_start_after_idle = true;
  bool hystart = true;          // cubic leaves slow start when the round trip grows
  // What a receiver has room for at first, and how that grows with the bytes it has got: measured
  // on Linux 6.18, whose buffer grows with what is read in a round trip. 0: room for everything.
  uint32_t receive_window = 63488;
  double receive_growth = 0.75;
  bool spread_packets = false;  // a packet chooses its path, not a connection
  Nanos loopback_delay = 10 * kMicrosecond;  // between two ends on one host, which have no link

  uint32_t segment() const { return mtu - header_bytes; }
  Nanos timeout_beyond(Nanos rtt) const {
    return std::max(least_timeout, transport::timeout_beyond(rtt));
  }
  // An acknowledgement does not wait longer than the sender does.
  Nanos ack_delay(Nanos rtt) const { return std::min(delayed_ack, timeout_beyond(rtt) - tick); }
};

// Packets of one direction are numbered from 0; one that is sent again keeps its number. So the
// numbers stand for the bytes: a sender knows which number ends at which byte.
struct Ack {
  static constexpr uint32_t kBlocks = 3;
  uint64_t cumulative = 0;  // numbers below it have arrived
  Nanos echo = 0;           // when the packet was sent that this answers
  // Of what has arrived beyond: [begin, end) above `cumulative`, the latest change first.
  struct Block {
    uint32_t begin, end;
  } blocks[kBlocks];
  uint8_t count = 0;
  bool duplicate = false;  // answers a packet that had arrived before
};

// A packet that a sender wants on its way.
struct Segment {
  uint64_t number = 0;
  uint64_t end = 0;    // of its bytes, from the beginning
  uint32_t bytes = 0;
  bool push = false;  // nothing is written behind it
  bool last = false;  // ends the direction
};

}  // namespace herring::transport::virtual_time
