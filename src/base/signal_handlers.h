// Two signals that the core handles while the program leaves them alone. Only the default is
// replaced: a program that handles a signal, or ignores it, keeps it. A handler that the program
// installs later replaces the core's. Python does not see these handlers, so libraries that look
// for handlers of others find none.
#pragma once

#include <cstdint>

namespace herring {

// SIGUSR1 asks a job for its status: rank 0 writes it to its log. Takes the signal if nobody has;
// may be called again.
void take_status_signal();
// Gives it back, unless somebody else has replaced it meanwhile.
void give_back_status_signal();
// Returns how often the signal has come. Any thread.
uint64_t status_signals();

// Lets a process finish something short before SIGTERM ends it: from now on SIGTERM is noted
// instead. May be called again.
void hold_termination();
// Ends the process if SIGTERM has come meanwhile; else SIGTERM ends it again from now on. Any
// thread; does nothing unless held.
void release_termination();

}  // namespace herring
