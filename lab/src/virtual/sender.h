// The sending end of one direction of a connection. It cuts bytes into packets, keeps account of
// what has arrived (SACK), finds losses by time (RACK, RFC 8985), probes for a lost tail, and times
// out. The class is pure: its caller passes the time and asks for packets.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.h"
#include "virtual/bit_ring.h"
#include "virtual/congestion.h"
#include "virtual/stream_types.h"
#include "virtual/time_heap.h"

namespace herring::transport::virtual_time {

struct SenderCounters {
  uint64_t packets = 0;  // all packets, including retransmissions
  uint64_t retransmissions = 0;
  uint64_t spurious = 0;  // retransmissions of packets that the receiver had already
  uint64_t probes = 0;
  uint64_t timeouts = 0;
};

class Sender {
 public:
  // `rtt` is the round trip of the packets that opened the connection.
  Sender(const StreamSettings& settings, Nanos rtt, Nanos now);

  // Takes as many bytes as the buffer has room for; returns their number.
  size_t write(size_t bytes);
  void finish() { finishing_ = true; }
  void stop();  // from now on nothing is sent
  // Marks all bytes below `total` as arrived; for connections within a host.
  void hand_over(uint64_t total, Nanos now);

  // Returns the next packet to send at `now`; false if there is none. Callers must call next()
  // until it returns false, and then sent().
  bool next(Nanos now, Segment* out);
  void sent(Nanos now);
  void on_ack(const Ack& ack, Nanos now);
  Nanos deadline() const { return timer_; }
  // Handles the deadline. Callers must then call next() and sent().
  void on_deadline(Nanos now);

  uint64_t written() const { return written_; }
  uint64_t acknowledged() const { return acknowledged_; }
  bool finishing() const { return finishing_; }
  size_t buffered() const { return static_cast<size_t>(written_ - acknowledged_); }
  // Returns where the bytes of a packet end. The packet must be under way.
  uint64_t end_of(uint64_t number) const { return at(number).end; }
  // Returns the number of timeouts since the last answer.
  uint32_t timeouts() const { return timeouts_in_row_; }
  const SenderCounters& counters() const { return counters_; }
  const Congestion& congestion() const { return congestion_; }
  PathInfo path_info(Nanos now) const;

 private:
  enum class State { kOpen, kRecovery, kLoss };
  enum class Timer { kNone, kProbe, kReorder, kTimeout };
  // kLost: the packet counts as lost. kResent: it was sent again, and the copy counts as under way.
  // kEver: it was sent again at least once.
  enum Flag : uint8_t { kLost = 1, kResent = 2, kEver = 4 };
  struct Sent {
    uint64_t end;
    Nanos time;  // when it was sent last
    uint8_t flags;
  };
  struct Again {
    uint64_t number;
    Nanos time;
  };
  // What one acknowledgement tells.
  struct News {
    uint64_t highest;  // one more than the last packet that had arrived before
    uint32_t delivered = 0;
    Nanos oldest = kNever, newest = kNever;  // send times of packets that were sent only once
    bool advanced = false;
  };

  Sent& at(uint64_t number) { return ring_[number & (ring_.size() - 1)]; }
  const Sent& at(uint64_t number) const { return ring_[number & (ring_.size() - 1)]; }
  uint64_t unsent() const { return written_ - cut_ + (finishing_ && !ended_); }
  bool has_new() const;  // whether there is new data for which the receiver has room
  uint32_t in_flight() const;
  Nanos timeout() const;

  void reserve();
  void cut(Nanos now, Segment* out);
  void send_again(uint64_t number, Nanos now, Segment* out);
  void delivered(uint64_t number, News* news, Nanos now);
  void measure(const News& news, Nanos echo, Nanos now);
  void answer_probe(const Ack& ack, bool advanced);
  void steer(const News& news, uint32_t lost, Nanos now);
  void undo(Nanos now);
  void mark_lost(uint64_t number);
  uint32_t find_losses(Nanos now);
  bool is_overdue(Nanos time, uint64_t number, Nanos window, Nanos now);
  Nanos reorder_window() const;
  void start_recovery();
  void time_out(Nanos now);
  void set_timer(bool advanced, Nanos now);

  const StreamSettings* settings_;
  Nanos least_timeout_;
  Congestion congestion_;
  SenderCounters counters_;
  State state_ = State::kOpen;
  bool finishing_ = false, ended_ = false;

  // Numbers of bytes. Written bytes are cut into packets and then acknowledged.
  uint64_t written_ = 0, cut_ = 0, acknowledged_ = 0;
  // Packets: [first_, next_) have been sent and not been acknowledged in order.
  uint64_t first_ = 0, next_ = 0;
  std::vector<Sent> ring_;
  BitRing arrived_;  // packets that arrived out of order
  uint32_t arrived_count_ = 0, lost_count_ = 0, resent_count_ = 0, to_resend_ = 0;
  uint64_t highest_ = 0;    // one more than the last packet that has arrived
  uint64_t unmarked_ = 0;   // all packets below have arrived, are lost, or were sent again
  uint64_t look_from_ = 0;  // no packet below must be sent again
  std::vector<Again> again_;  // retransmissions in the order of sending, from again_begin_ on
  size_t again_begin_ = 0;

  // The packet that was sent last among those that have arrived (RACK).
  Nanos rack_time_ = -1, rack_rtt_ = 0;
  uint64_t rack_number_ = 0;
  bool rack_moved_ = false;
  bool reordered_ = false;
  uint32_t reorder_steps_ = 1;

  uint64_t high_ = 0;  // recovery ends when all packets below have arrived
  Nanos first_again_ = kNever;  // when this episode's first retransmission was sent
  bool may_undo_ = false;
  uint64_t probe_end_ = 0;  // > 0: a probe is out, and packets below had been sent with it
  bool probe_is_copy_ = false, probe_due_ = false;

  Nanos srtt_, variation_, least_rtt_;
  uint32_t backoff_ = 0, timeouts_in_row_ = 0;
  Timer kind_ = Timer::kNone;
  Nanos timer_ = kNever, reorder_at_ = kNever;
  bool sent_any_ = false, limited_ = false;
  Nanos last_sent_, heard_;
};

}  // namespace herring::transport::virtual_time
