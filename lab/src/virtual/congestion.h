// How many packets a connection may have on its way: slow start, CUBIC (RFC 9438) and Reno, the
// proportional rate reduction (RFC 6937), and the rules for windows that nobody uses (RFC 7661 in
// Linux's form). Pure.
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
  // No loss has set a threshold yet.
  bool untouched() const { return threshold_ == kNoLimit; }

  // An acknowledgement brought a round trip time; [first, next) is on its way.
  void on_round_trip(Nanos rtt, uint64_t first, uint64_t next, Nanos now);
  // `acked` packets have arrived, nothing was lost, [first, next) is on its way.
  void on_acked(uint32_t acked, Nanos rtt, Nanos now);
  // Packets have been sent, or could not be as the window was full (`limited`).
  void on_sent(bool limited, uint64_t first, uint64_t next, Nanos timeout, Nanos now);
  // Sends again after so long.
  void on_idle(Nanos idle, Nanos timeout, Nanos now);

  // A loss: until end_reduction() the window shrinks to its new size as packets arrive.
  void begin_reduction();
  void reduce(uint32_t in_flight, uint32_t delivered, bool advanced_without_loss);
  void count_sent() { ++reduction_sent_; }
  void end_reduction();
  // Everything on its way counts as lost. `again`: in the same episode.
  void on_timeout(bool again);
  // The last reduction or time-out was for nothing.
  void undo();

 private:
  bool unlimited() const { return settings_->control == StreamSettings::Control::kUnlimited; }
  bool is_limited() const;
  void remember();
  uint32_t smaller();  // the window after a loss
  void grow(double packets_per_increase, uint32_t acked);
  double cubic_interval(uint32_t acked, Nanos rtt, Nanos now);
  void look_for_queue(Nanos rtt, uint64_t first, uint64_t next, Nanos now);

  const StreamSettings* settings_;
  uint32_t window_;
  uint32_t threshold_ = kNoLimit;
  double grown_ = 0;  // packets acknowledged towards the next increase
  uint32_t window_before_ = 0, threshold_before_ = 0;

  // Proportional rate reduction.
  uint32_t reduction_from_ = 0;
  uint64_t reduction_delivered_ = 0, reduction_sent_ = 0;

  // How much of the window was used, in this round trip and since it was last full.
  bool limited_ = false;
  uint64_t most_out_ = 0, usage_end_ = 0;
  uint64_t used_ = 0;
  Nanos full_at_ = 0;

  // CUBIC: windows in packets, times in seconds.
  double greatest_ = 0;  // the window before the last loss
  double origin_ = 0, rise_ = 0;
  Nanos epoch_ = -1;
  double reno_ = 0, reno_acked_ = 0;
  Nanos least_rtt_ = 0;
  // HyStart: of this round.
  bool queue_found_ = false;
  uint64_t round_end_ = 0;
  Nanos round_start_ = 0, train_last_ = 0, round_rtt_ = 0;
  uint32_t samples_ = 0;
};

}  // namespace herring::transport::virtual_time
