// The place where the processes of a job meet: registration, the cluster's description, heartbeats,
// deaths and aborts. It has one thread, in the process of rank 0 or of another chosen host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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
  bool failover = false;                    // whether the job survives the loss of a server
  std::string job;                          // its name, for people
  std::string label;                        // what status and metrics call it; empty: its name
  bool observe = true;                      // whether members report and are compared
  Nanos report_every = 300 * kSecond;       // see observe::Monitor::Options
  // Values of settings.
  std::string status = "off", flight_folder = "off", timeline;
};

class Rendezvous {
 public:
  static Result<std::unique_ptr<Rendezvous>> start(GuardedFd listener, RendezvousOptions options);
  ~Rendezvous();  // calls stop()
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const transport::Address& address() const;
  // Begin and end a timeline; see Watch. Any thread but that of the rendezvous.
  Status begin_timeline(const std::string& path);
  Status end_timeline();
  // Writes the flight record of all members. Returns where, or why not.
  Result<std::string> write_record(const std::string& why);
  // Waits, for at most `most`, until all processes know the error that keeps the job from forming,
  // including those that have yet to come.
  void tell_all(Nanos most);
  // Waits for a bounded time (about a second) for members that are still saying goodbye. Members
  // that remain are told that the rendezvous has ended.
  void stop();

 private:
  class Impl;
  explicit Rendezvous(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace herring::control
