// The receiving end of one direction of a connection. It knows what has arrived and when to
// acknowledge it. Acknowledgements are delayed as in Linux. They are sent for every second full
// packet, and at once at the start, for packets out of order, and when data was read to which no
// data goes back soon. The class is pure: its caller passes the time.
#pragma once

#include <cstdint>

#include "virtual/bit_ring.h"
#include "virtual/stream_types.h"
#include "virtual/time_heap.h"

namespace herring::transport::virtual_time {

class Receiver {
 public:
  Receiver(const StreamSettings& settings, Nanos ack_delay)
      : settings_(&settings), ack_delay_(ack_delay) {}

  // Handles a packet that was sent at `stamp`. Returns whether more packets are in order now.
  bool on_packet(uint64_t number, bool push, Nanos stamp, Nanos now);
  // Sets the number of bytes that are in order.
  void set_total(uint64_t total) { total_ = total; }
  // Sets the number of packets of the whole stream.
  void set_all(uint64_t packets) { all_ = packets; }
  bool has_all() const { return expected_ == all_; }
  // Returns whether to send an acknowledgement at once.
  bool wants_ack(Nanos now);
  // The application has read everything. Returns whether to send an acknowledgement at once.
  bool on_read() const { return pending_ && pushed_ && !answers_; }
  // Fills in the acknowledgement of a packet, which may carry data of the other direction.
  void fill(Ack* ack);
  void acknowledged(bool with_data, Nanos now);
  // Returns when an acknowledgement must be sent at the latest.
  Nanos deadline() const { return deadline_; }
  void on_deadline();

  uint64_t packets() const { return expected_; }
  uint64_t total() const { return total_; }

 private:
  static constexpr uint32_t kKept = 4;    // runs of out-of-order packets that are remembered
  static constexpr uint32_t kEager = 16;  // acknowledgements that are sent at once at the start

  void add_run(uint64_t number);

  const StreamSettings* settings_;
  Nanos ack_delay_;
  uint64_t expected_ = 0;  // all packets below have arrived
  uint64_t end_ = 0;       // one more than the last packet that has arrived
  uint64_t all_ = ~uint64_t{0};  // number of packets, once it is known
  BitRing arrived_;        // packets that arrived out of order
  struct Run {
    uint64_t begin, end;
  } runs_[kKept];  // the latest change first
  uint32_t run_count_ = 0;

  uint64_t total_ = 0, acknowledged_ = 0;  // bytes in order, and acknowledged bytes
  uint64_t acknowledged_packets_ = 0;
  Nanos stamp_ = 0;
  Nanos last_arrival_ = 0;
  bool any_arrived_ = false;
  bool pending_ = false;    // something has arrived that is not acknowledged yet
  bool at_once_ = false;
  bool pushed_ = false;
  bool answers_ = false;  // data usually goes back soon after data has come
  bool came_again_ = false;  // a packet has arrived a second time
  uint32_t eager_ = kEager;
  Nanos deadline_ = kNever;
};

}  // namespace herring::transport::virtual_time
