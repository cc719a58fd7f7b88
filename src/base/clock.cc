#include "base/clock.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace herring {

Nanos monotonic_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

std::string in_seconds(Nanos t) {
  const bool milliseconds = t != 0 && t < 100 * kMillisecond && t > -100 * kMillisecond;
  const double value = to_seconds(t) * (milliseconds ? 1e3 : 1);
  char text[32];
  // %g would print 1800 as 1.8e+03.
  std::snprintf(text, sizeof(text), std::fabs(value) < 10 ? "%.2g" : "%.0f", value);
  return std::string(text) + (milliseconds ? " ms" : " s");
}

}  // namespace herring
