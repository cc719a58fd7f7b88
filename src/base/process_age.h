#pragma once

#include "base/clock.h"

namespace herring {

// Returns for how long this process has been running; 0 if the system does not tell.
Nanos process_age();

}  // namespace herring
