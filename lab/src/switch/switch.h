// The lab's switch: reads frames from the hosts' TAP devices, takes them through a Network in
// virtual time, and writes each to its receiver when it is due. One thread, one epoll loop.
//
// It is told what to do by lines on its input; times are in nanoseconds, rates in bits per second,
// 0 for no limit:
//
//   network HOSTS SPINES SEED FRAME LATE  first of all; FRAME: bytes of the longest frame;
//                                         a delivery counts as late if it is more than LATE late
//   tap HOST NAMESPACE                    makes eth0 there
//   link NUMBER RATE QUEUE                see Network for numbers; may change at any time
//   path DELAY JITTER LOSS                between any two hosts
//   pair SOURCE DESTINATION DELAY JITTER LOSS
//   spine NUMBER DELAY JITTER LOSS
//   sync                                  answers "ok": all before is done
//   reset                                 forgets how late it was
//   report                                answers a line of JSON
//
// It ends when the input does.
#pragma once

#include "base/status.h"

namespace herring::lab {

// Serves until `input` ends. An error means that a command was wrong, or that it could not be done.
Status run_switch(int input, int output);

}  // namespace herring::lab
