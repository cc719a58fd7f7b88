// What the decoders in wire/ share.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace herring::wire {

inline constexpr size_t kMaxName = 1024;  // bytes of an operation's name

inline Status malformed(const char* what) {
  return breach("malformed ", what, " message");
}

}  // namespace herring::wire
