// Monotonic time in nanoseconds. Pure code takes times as arguments; only loops and waits read the
// clock.
#pragma once

#include <cstdint>
#include <string>

namespace herring {

using Nanos = int64_t;

inline constexpr Nanos kMicrosecond = 1000;
inline constexpr Nanos kMillisecond = 1000 * kMicrosecond;
inline constexpr Nanos kSecond = 1000 * kMillisecond;

Nanos monotonic_now();
inline double to_seconds(Nanos t) { return static_cast<double>(t) * 1e-9; }

// The longest possible wait: 100 years, which can be added to the current time without overflow.
inline constexpr Nanos kEndless = 36500LL * 24 * 3600 * kSecond;
// Treats values that are too large or NaN as endless: callers that mean "for ever" pass infinity or
// their largest number.
inline Nanos from_seconds(double s) {
  const double nanos = s * 1e9;
  if (!(nanos < static_cast<double>(kEndless))) return kEndless;
  return nanos > -static_cast<double>(kEndless) ? static_cast<Nanos>(nanos) : -kEndless;
}

// Formats a duration for messages: "60 s", "4.1 s", "0.25 s", "20 ms". Rounds to two digits, or to
// whole units from 10 on.
std::string in_seconds(Nanos t);

}  // namespace herring
