#include "base/clock.h"

#include <ctime>

namespace herring {

Nanos monotonic_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * kSecond + t.tv_nsec;
}

}  // namespace herring
