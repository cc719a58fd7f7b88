// Describes a simulated job: classes of equal hosts, links, costs and settings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/settings.h"
#include "base/status.h"

namespace herring::simulate {

// The time that a host's processors take, in seconds.
struct Costs {
  double frame = 5e-6;   // for each frame sent or received
  double byte = 1e-10;   // for each byte of payload sent or received
  double wakeup = 5e-6;  // from a frame's arrival to its handling
  double cores = 1;      // number of processors that work at the same time
};

struct Port {
  double up = 100e9, down = 100e9;  // bits per second, away from the host and towards it
  double rtt = 25e-6;               // seconds of the round trip on this side
  double buffer = 1e6;              // bytes that the switch port towards the host holds
  double loss = 0;                  // probability that a packet is lost, each way
  uint32_t mtu = 9000;
  double background = 0;            // share of the link that other traffic takes
};

struct HostClass {
  uint64_t count = 0;
  uint32_t workers = 1;
  Port port;
  Costs costs;
};

struct ServerClass {
  uint64_t count = 0;
  double weight = 0;       // 0 in all classes: weights are those of plan::server_weights()
  bool colocated = false;  // a server on each node of hosts[host], with its port and processors
  uint64_t host = 0;
  Port port;
  Costs costs;
};

struct Scenario {
  std::vector<HostClass> hosts;
  std::vector<ServerClass> servers;  // dedicated servers first
  uint64_t size = 0;                 // bytes that a worker contributes in a round
  double pause = 0;                  // seconds between rounds
  double noise = 0.01;               // standard deviation of the pace in each stretch of time
  double shared_cores = 0;           // processors that all hosts share; 0: each has its own
  uint64_t segment_bytes = default_of("segment_bytes").integer;
  uint64_t frame_max = default_of("frame_max").integer, credit_max = 1 << 20;
  uint64_t buffer_bytes = 0;         // 0: the plan chooses
  uint64_t credit = 0;               // fixed, in bytes; 0: self-controlled

  uint64_t nodes() const;
  uint64_t server_count() const;
};

// Returns an error for the first value that is impossible or contradicts another. The error names
// the value and what is allowed.
Status check(const Scenario& scenario);

// Returns the weight of each server, in the order of the classes. The scenario must be checked.
std::vector<double> weights_of(const Scenario& scenario);

}  // namespace herring::simulate
