// Lets a process finish something short before SIGTERM ends it. Only the signal's default is
// replaced: a program that handles SIGTERM, or ignores it, is left alone.
#pragma once

namespace herring {

// From now on SIGTERM is noted instead of ending the process. May be called again.
void hold_termination();
// Ends the process if SIGTERM has come meanwhile; else SIGTERM ends it again from now on. Any
// thread; does nothing unless held.
void release_termination();

}  // namespace herring
