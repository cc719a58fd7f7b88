// What a program was seen doing while it computed: explains why it computes longer than others.
// Pure.
#pragma once

#include <deque>
#include <string>

#include "base/clock.h"

namespace herring::observe {

class Looks {
 public:
  // The program was at `stack` at this time; `cause` is what kind of code that is, such as "input".
  void add(std::string cause, std::string stack, Nanos when);

  struct Reason {
    std::string cause, stack;  // empty: nothing was seen lately
  };
  // Returns what explains best that the program computes for `work` in a step while others compute
  // for `usual`: other code than "compute" if it takes at least half of the difference, wherever in
  // the step it is. If the times are 0, they are not known.
  Reason reason(Nanos now, Nanos work, Nanos usual) const;

 private:
  struct Look {
    std::string cause, stack;
    Nanos when = 0;
  };

  static constexpr size_t kMost = 64;
  static constexpr Nanos kMemory = 2 * kSecond;

  std::deque<Look> looks_;
};

}  // namespace herring::observe
