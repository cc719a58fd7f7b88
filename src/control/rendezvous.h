// Where the processes of a job meet: registration, the cluster's description, heartbeats, deaths,
// aborts. One thread, hosted by rank 0 (or by whoever was told to).
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "control/cluster.h"
#include "transport/tcp/handshake.h"

namespace herring::control {

struct RendezvousOptions : Timings {
  using Timings::Timings;

  transport::Credentials credentials;
  uint32_t size = 1;
  uint32_t dedicated_servers = 0;
};

class Rendezvous {
 public:
  static Result<std::unique_ptr<Rendezvous>> start(GuardedFd listener, RendezvousOptions options);
  ~Rendezvous();  // stop()
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const transport::Address& address() const;
  // Waits, up to `most`, until an error that keeps the job from forming is known to everybody, also
  // to those who have yet to come.
  void tell_all(Nanos most);
  // Waits a bounded moment (about a second) for members that are still saying goodbye; members that
  // remain learn that the rendezvous has ended.
  void stop();

 private:
  class Impl;
  explicit Rendezvous(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace herring::control
