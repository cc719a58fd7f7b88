// One direction of a connection, at the end that receives: what has arrived, and when to say so
// (delayed acknowledgements as in Linux: every second full packet, at once at the start, for what
// is out of order and for what was read and is not answered with data soon).
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

  // A packet sent at `stamp` is here. Returns whether there is more in order.
  bool on_packet(uint64_t number, bool push, Nanos stamp, Nanos now);
  // In order are so many bytes.
  void set_total(uint64_t total) { total_ = total; }
  // There are so many packets.
  void set_all(uint64_t packets) { all_ = packets; }
  bool has_all() const { return expected_ == all_; }
  // Whether to send an acknowledgement at once.
  bool wants_ack(Nanos now);
  // The application has read everything. Returns whether to send an acknowledgement at once.
  bool on_read() const { return pending_ && pushed_ && !answers_; }
  // What goes with a packet, which may carry data of the other direction.
  void fill(Ack* ack);
  void acknowledged(bool with_data, Nanos now);
  // When to send an acknowledgement at the latest.
  Nanos deadline() const { return deadline_; }
  void on_deadline();

  uint64_t packets() const { return expected_; }
  uint64_t total() const { return total_; }

 private:
  static constexpr uint32_t kKept = 4;    // runs of packets that are remembered
  static constexpr uint32_t kEager = 16;  // acknowledgements sent at once at the start

  void add_run(uint64_t number);

  const StreamSettings* settings_;
  Nanos ack_delay_;
  uint64_t expected_ = 0;  // all below have arrived
  uint64_t end_ = 0;       // behind the last that has
  uint64_t all_ = ~uint64_t{0};  // how many there are, once that is known
  BitRing arrived_;        // beyond
  struct Run {
    uint64_t begin, end;
  } runs_[kKept];  // the latest change first
  uint32_t run_count_ = 0;

  uint64_t total_ = 0, acknowledged_ = 0;  // bytes in order, and of these said to be here
  uint64_t acknowledged_packets_ = 0;
  Nanos stamp_ = 0;
  Nanos last_arrival_ = 0;
  bool any_arrived_ = false;
  bool pending_ = false;    // something has arrived that nothing was said about
  bool at_once_ = false;
  bool pushed_ = false;
  bool answers_ = false;  // data goes back soon after data has come
  bool came_again_ = false;  // a packet has
  uint32_t eager_ = kEager;
  Nanos deadline_ = kNever;
};

}  // namespace herring::transport::virtual_time
