// A member's side of what a job tells about itself: sends reports, records and entries of a
// timeline to the rendezvous, with what this process knows of its clock. Runs on the member's
// thread.
#pragma once

#include <string>
#include <string_view>

#include "control/channel.h"
#include "control/member.h"
#include "control/messages.h"
#include "observe/clock_offset.h"

namespace herring::control {

class Teller {
 public:
  // Both must outlive the Teller.
  Teller(const transport::EventLoop& loop, Channel& channel) : loop_(loop), channel_(channel) {}

  void observe(Member::Observer observer);
  // Compares the clocks, with the times of a heartbeat.
  void heartbeat(const Rhythm& rhythm);
  // Handles a kRankTexts, kRecord or kTimeline.
  Status on_message(wire::FrameType type, uint8_t flags, std::string_view payload);
  // Tells nothing any more.
  void silence() { silent_ = true; }

  void report(observe::Report report);
  void timeline(observe::ProcessRecord entries, bool last);
  void failed(const std::string& why);

 private:
  bool may_tell() const;
  void tell(wire::FrameType type, observe::ProcessRecord record, uint8_t flags);
  void send_held();

  const transport::EventLoop& loop_;
  Channel& channel_;
  Member::Observer observer_;
  observe::ClockOffset clock_;  // of the rendezvous
  bool silent_ = false;
  bool timeline_wanted_ = false;
  observe::ProcessRecord held_;  // entries of the timeline that wait
  Nanos held_since_ = 0;
  Nanos fails_again_at_ = 0;     // when a further failure may be told
};

}  // namespace herring::control
