// Types that sender, receiver and streams share: the settings of TCP and the content of a packet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transport/transport.h"

namespace herring::transport::virtual_time {

// The settings of TCP. Defaults are those of Linux unless a comment says otherwise.
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
  // A timeout is at least the round trip plus the larger of this value and
  // transport::timeout_beyond(). For systems without TCP_RTO_MIN_US, set this to kSystemTimeout.
  Nanos least_timeout = 0;
  Nanos tick = 4 * kMillisecond;  // of the system's timers; probes and waits take two more ticks
  bool linear_timeouts = true;    // TCP_THIN_LINEAR_TIMEOUTS: no back-off with few packets out
  size_t send_buffer = 4 << 20;
  Nanos delayed_ack = 40 * kMillisecond;
  bool slow_start_after_idle = true;
  bool hystart = true;          // CUBIC leaves slow start when the round trip grows
  // The room in the receive buffer at first, and its growth per received byte, as measured on Linux
  // 6.18, whose buffer grows with the bytes read in a round trip. 0: room for everything.
  uint32_t receive_window = 63488;
  double receive_growth = 0.75;
  bool spread_packets = false;  // whether paths are chosen per packet instead of per connection
  Nanos loopback_delay = 10 * kMicrosecond;  // between two ends on one host, which have no link

  uint32_t segment() const { return mtu - header_bytes; }
  Nanos timeout_beyond(Nanos rtt) const {
    return std::max(least_timeout, transport::timeout_beyond(rtt));
  }
  // Returns how long an acknowledgement may wait: less than the sender's timeout.
  Nanos ack_delay(Nanos rtt) const { return std::min(delayed_ack, timeout_beyond(rtt) - tick); }
};

// An acknowledgement. Packets of one direction are numbered from 0, and a packet that is sent again
// keeps its number. So numbers stand for bytes: a sender knows at which byte each packet ends.
struct Ack {
  static constexpr uint32_t kBlocks = 3;
  uint64_t cumulative = 0;  // all packets with smaller numbers have arrived
  Nanos echo = 0;           // send time of the packet that this answers
  // Packets that arrived out of order: [begin, end) relative to `cumulative`, latest change first.
  struct Block {
    uint32_t begin, end;
  } blocks[kBlocks];
  uint8_t count = 0;
  bool duplicate = false;  // answers a packet that had arrived before
};

// A packet that a sender wants to send.
struct Segment {
  uint64_t number = 0;
  uint64_t end = 0;    // where its bytes end, counted from the start of the stream
  uint32_t bytes = 0;
  bool push = false;  // no more bytes are written after it
  bool last = false;  // the last packet of this direction
};

}  // namespace herring::transport::virtual_time
