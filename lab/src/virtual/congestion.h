// Decides how many packets a connection may have under way. It has slow start, CUBIC (RFC 9438) and
// Reno, proportional rate reduction (RFC 6937), and the rules for unused windows (RFC 7661 in
// Linux's form). The class is pure: its caller passes the time.
#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "virtual/stream_types.h"

namespace herring::transport::virtual_time {

class Congestion {
 public:
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

  explicit Congestion(const StreamSettings& settings)
      : settings_(&settings), window_(unlimited() ? kNoLimit : settings.initial_window) {}

  uint32_t window() const { return window_; }
  uint32_t threshold() const { return threshold_; }
  bool in_slow_start() const { return window_ < threshold_; }
  // Returns whether no loss has set a threshold yet.
  bool untouched() const { return threshold_ == kNoLimit; }

  // Handles a round trip time from an acknowledgement; packets [first, next) are under way.
  void on_round_trip(Nanos rtt, uint64_t first, uint64_t next, Nanos now);
  // Handles `acked` packets that have arrived without a loss.
  void on_acked(uint32_t acked, Nanos rtt, Nanos now);
  // Handles packets that have been sent; `limited`: more could not be sent, as the window was full.
  void on_sent(bool limited, uint64_t first, uint64_t next, Nanos timeout, Nanos now);
  // Handles the first packet after a pause of `idle`.
  void on_idle(Nanos idle, Nanos timeout, Nanos now);

  // Handles a loss. Until end_reduction() the window shrinks to its new size as packets arrive.
  void begin_reduction();
  void reduce(uint32_t in_flight, uint32_t delivered, bool advanced_without_loss);
  void count_sent() { ++reduction_sent_; }
  void end_reduction();
  // Handles a timeout: all packets under way count as lost. `again`: in the same episode.
  void on_timeout(bool again);
  // Takes back the last reduction or timeout, which was not needed.
  void undo();

 private:
  bool unlimited() const { return settings_->control == StreamSettings::Control::kUnlimited; }
  bool is_limited() const;
  void remember();
  uint32_t smaller();  // returns the window after a loss
  void grow(double packets_per_increase, uint32_t acked);
  double cubic_interval(uint32_t acked, Nanos rtt, Nanos now);
  void look_for_queue(Nanos rtt, uint64_t first, uint64_t next, Nanos now);

  const StreamSettings* settings_;
  uint32_t window_;
  uint32_t threshold_ = kNoLimit;
  double grown_ = 0;  // packets acknowledged towards the next increase
  uint32_t window_before_ = 0, threshold_before_ = 0;

  // State of the proportional rate reduction.
  uint32_t reduction_from_ = 0;
  uint64_t reduction_delivered_ = 0, reduction_sent_ = 0;

  // How much of the window was used in this round trip, and since it was last full.
  bool limited_ = false;
  uint64_t most_out_ = 0, usage_end_ = 0;
  uint64_t used_ = 0;
  Nanos full_at_ = 0;

  // State of CUBIC: windows in packets, times in seconds.
  double greatest_ = 0;  // the window before the last loss
  double origin_ = 0, rise_ = 0;
  Nanos epoch_ = -1;
  double reno_ = 0, reno_acked_ = 0;
  Nanos least_rtt_ = 0;
  // State of HyStart in this round.
  bool queue_found_ = false;
  uint64_t round_end_ = 0;
  Nanos round_start_ = 0, train_last_ = 0, round_rtt_ = 0;
  uint32_t samples_ = 0;
};

}  // namespace herring::transport::virtual_time
