// How far the clock of another process is from this one's. Pure.
#pragma once

#include <algorithm>
#include <deque>

#include "base/clock.h"

namespace herring::observe {

// From exchanges of two messages, as in NTP (RFC 5905, section 8): the offset is right if both
// messages took equally long, so its error is at most half of the time that both took. The quickest
// of the last exchanges counts.
class ClockOffset {
 public:
  // `sent` and `received` are this process's times, the other two are the other process's.
  void exchanged(Nanos sent, Nanos other_received, Nanos other_sent, Nanos received) {
    const Nanos delay = (received - sent) - (other_sent - other_received);
    if (sent == 0 || delay < 0) return;
    last_.push_back({delay, ((other_received - sent) + (other_sent - received)) / 2});
    if (last_.size() > kExchanges) last_.pop_front();
  }
  bool known() const { return !last_.empty(); }
  // What must be added to this process's times to get the other's; 0 if not known.
  Nanos offset() const { return known() ? best().offset : 0; }
  // The bound of the error; -1 if not known.
  Nanos error() const { return known() ? best().delay / 2 + 1 : -1; }

 private:
  // Clocks drift apart by some 50 us per second at most; these are the exchanges of 4 s.
  static constexpr size_t kExchanges = 16;
  struct Exchange {
    Nanos delay, offset;
  };
  const Exchange& best() const {
    return *std::min_element(last_.begin(), last_.end(), [](const Exchange& a, const Exchange& b) {
      return a.delay < b.delay;
    });
  }

  std::deque<Exchange> last_;
};

}  // namespace herring::observe
