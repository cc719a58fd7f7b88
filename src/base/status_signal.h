// SIGUSR1 asks a job for its status: rank 0 writes it to its log. The signal is taken only if the
// program has left it alone, when it would end the process. A handler that the program installs
// later replaces this one, and Python does not see it, so libraries that look for handlers of
// others find none.
#pragma once

#include <cstdint>

namespace herring {

// Takes the signal if nobody has. May be called again.
void take_status_signal();
// Gives it back, unless somebody else has replaced it meanwhile.
void give_back_status_signal();
// Returns how often the signal has come. Any thread.
uint64_t status_signals();

}  // namespace herring
