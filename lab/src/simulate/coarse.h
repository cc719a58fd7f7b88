// The coarse model, which runs a job in virtual time window by window instead of packet by packet.
// It calls the real plan and the real credit controller. The cost of a step depends on the number
// of classes of hosts, not on the number of hosts. lab/docs/simulate.md lists the assumptions. All
// functions run on the caller's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/pace.h"
#include "simulate/scenario.h"

namespace herring::simulate {

struct Round {
  double seconds = 0;
  double goodput = 0;   // bytes per second: the scenario's size divided by `seconds`
  uint64_t window = 0;  // bytes that a flow may have outstanding at the end of the round
  Bound bound = Bound::kLink;
  uint64_t losses = 0;    // packets that the whole job lost
  uint64_t timeouts = 0;  // timeouts that held up a server
};

struct Outcome {
  std::vector<Round> rounds;
  double limit = 0, wire_limit = 0;  // least seconds of a round, see Pace
  uint64_t steps = 0;
};

// Runs at least `rounds` rounds and `least` seconds of virtual time. The same seed gives the same
// outcome.
Result<Outcome> run(const Scenario& scenario, uint64_t rounds, uint64_t seed, double least = 0);

}  // namespace herring::simulate
