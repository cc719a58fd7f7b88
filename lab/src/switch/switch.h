// The lab's switch. It reads frames from the hosts' TAP devices, takes them through a Network in
// virtual time, and writes each frame to its receiver when it is due. It has one thread with one
// epoll loop.
//
// The switch executes lines from its input. Times are in nanoseconds, rates in bits per second; a
// rate of 0 means no limit:
//
//   network HOSTS SPINES SEED FRAME LATE  must be the first line; FRAME is the longest frame in
//                                         bytes; a delivery later than LATE counts as late
//   tap HOST NAMESPACE                    makes eth0 in this namespace
//   link NUMBER RATE QUEUE                sets a link (see Network for numbers), at any time
//   path DELAY JITTER LOSS                sets the path between any two hosts
//   pair SOURCE DESTINATION DELAY JITTER LOSS
//                                         sets the path from one host to another
//   spine NUMBER DELAY JITTER LOSS        sets the path of a spine
//   sync                                  answers "ok" when all lines before are done
//   reset                                 resets the statistics of lateness
//   report                                answers a line of JSON
//
// The switch ends at the end of its input.
#pragma once

#include "base/status.h"

namespace herring::lab {

// Runs the switch until `input` ends. Returns an error if a line was wrong or could not be
// executed.
Status run_switch(int input, int output);

}  // namespace herring::lab
