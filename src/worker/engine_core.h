// The roof of the engine, on the engine thread: puts the parts together, gives what servers say to
// the part that it is for, and looks regularly after what nobody else would notice.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "calls/calls.h"
#include "engine/core.h"
#include "engine/pauses.h"
#include "rounds/rounds.h"
#include "rounds/series_list.h"
#include "worker/coming_servers.h"
#include "worker/engine.h"
#include "worker/held_up.h"
#include "worker/keeping.h"
#include "worker/membership.h"

namespace herring::worker {

class EngineCore {
 public:
  EngineCore(const control::Cluster& cluster, engine::EngineOptions options,
             transport::Transport& transport, std::unique_ptr<LocalBus> bus,
             std::vector<ServerFlow> flows);
  ~EngineCore();

  engine::Core& core() { return core_; }
  calls::Calls& calls() { return calls_; }
  rounds::Rounds& rounds() { return rounds_; }
  rounds::SeriesList& series() { return series_; }
  Membership& membership() { return membership_; }
  ComingServers& coming_servers() { return coming_servers_; }
  // See Engine::Counters.
  size_t kept_bytes() const { return keeping_.bytes(); }
  uint64_t notice_bytes() const { return notice_bytes_ + held_up_.bytes_sent(); }
  // Returns whether nothing goes on here until something comes from another process, or the program
  // makes a call.
  bool stands_still() const;

 private:
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  void check_deadlines(Nanos now);
  void tick();
  void look_at_devices(Nanos now);

  engine::Core core_;
  calls::Calls calls_;
  rounds::Rounds rounds_;
  rounds::SeriesList series_;
  HeldUp held_up_;
  ComingServers coming_servers_;
  Membership membership_;
  Keeping keeping_;
  engine::Pauses pauses_;
  Nanos looked_ = 0;  // when nobody had to look at devices, or they were looked at
  uint64_t notice_bytes_ = 0;  // of warnings; see Engine::Counters
};

}  // namespace herring::worker
