// The coarse model: a job in virtual time, window by window instead of packet by packet. It calls
// the real plan and the real credit controller. The cost of a step depends on how many classes of
// hosts there are, not on how many hosts. Assumptions: lab/docs/simulate.md.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/pace.h"
#include "simulate/scenario.h"

namespace herring::simulate {

struct Round {
  double seconds = 0;
  double goodput = 0;   // bytes per second: the scenario's size over `seconds`
  uint64_t window = 0;  // bytes that a flow may have outstanding, at its end
  Bound bound = Bound::kLink;
  uint64_t losses = 0;    // packets, in the whole job
  uint64_t timeouts = 0;  // that held up a server
};

struct Outcome {
  std::vector<Round> rounds;
  double limit = 0, wire_limit = 0;  // seconds of a round, see Pace
  uint64_t steps = 0;
};

// Runs at least `rounds` rounds and `least` seconds of virtual time. Deterministic by seed.
Result<Outcome> run(const Scenario& scenario, uint64_t rounds, uint64_t seed, double least = 0);

}  // namespace herring::simulate
