// Monotonic time in nanoseconds. Pure code takes times as arguments; only loops and waits read it.
#pragma once

#include <cstdint>

namespace herring {

using Nanos = int64_t;

inline constexpr Nanos kMicrosecond = 1000;
inline constexpr Nanos kMillisecond = 1000 * kMicrosecond;
inline constexpr Nanos kSecond = 1000 * kMillisecond;

Nanos monotonic_now();
inline double to_seconds(Nanos t) { return static_cast<double>(t) * 1e-9; }
inline Nanos from_seconds(double s) { return static_cast<Nanos>(s * 1e9); }

}  // namespace herring
