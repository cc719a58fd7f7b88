// For how long a thread that should look at deadlines regularly has lately not run: the machine, or
// the process, stood still. Deadlines are longer by this time, because whoever should have answered
// stood still as well. Pure.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace herring::engine {

class Pauses {
 public:
  // `now`: a period before the thread looks for the first time.
  Pauses(Nanos period, Nanos now) : period_(period), looked_(now) {}

  // Called each time the thread looks, which should be a period after its last look. Returns by how
  // much deadlines are longer now. On time, this falls by a tenth of the time that passes.
  Nanos at(Nanos now) {
    const Nanos late = std::max<Nanos>(now - looked_ - period_, 0);
    looked_ = now;
    paused_ = std::min(std::max<Nanos>(paused_ - period_ / 10, 0) + late, kLongest);
    return paused_;
  }

 private:
  // If there were no limit, a thread that is always late would never see a deadline.
  static constexpr Nanos kLongest = 60 * kSecond;

  const Nanos period_;
  Nanos looked_;
  Nanos paused_ = 0;
};

}  // namespace herring::engine
