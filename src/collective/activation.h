// Activation: how the first ranks to come set a collective going on all others, as in the paper on
// partial collectives (4.1). Pure; nobody counts who has come.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collective/instance.h"

namespace herring::collective {

// A schedule that does nothing until its rank is active: until its caller has come and may
// initiate, or another rank's signal has arrived.
struct Activated {
  Schedule schedule;
  uint32_t initiate = kNoOperation;  // the NOP that the caller fires
  uint32_t active = kNoOperation;    // the NOP that is complete when the rank is active
};

// Returns the collective of `rank` among `size` ranks, to begin when the rank is active. Any rank
// may initiate, and any number of them at the same time.
//
// Signals follow recursive doubling. A rank that initiates signals to the ranks at distance 1, 2,
// 4 ..., in numbers of PowerOfTwo. One that hears a signal of a distance signals to the ranks at
// all larger distances. So there is a binomial tree from each rank, and a rank sends each of its
// signals once, whichever trees it is in. The farthest rank is lg(power) signals away. Each surplus
// rank at either end adds one.
Activated activate(uint32_t rank, uint32_t size, const Schedule& collective);

// Returns the rank that initiates a round of a majority: the same on all ranks, and each rank with
// the same probability.
uint32_t initiator_of(uint64_t seed, uint64_t round, uint32_t size);

// One rank's part of a collective that runs again and again. Instance n + 1 is ready when instance
// n is done, and may be activated by others before this rank's caller comes to it.
//
// No rank may be done with an instance before all ranks are active in it; this holds for
// all-reduces. So ranks are at most one instance apart.
class Persistent {
 public:
  // Returns whether this rank's caller initiates the instance: always (solo), or if the rank is the
  // initiator (majority).
  using Initiates = std::function<bool(uint64_t instance)>;

  // Instances run ahead of this rank's caller by at most `most_ahead`: instance n is ready only
  // when the caller has come n + 1 - most_ahead times. The schedule must outlive this object.
  Persistent(const Activated& schedule, uint32_t most_ahead, Initiates initiates);

  // Returns the number of the instance that runs or runs next.
  uint64_t number() const { return number_; }
  // Returns the instance that may run, or null if this rank's caller has fallen too far behind.
  Instance* instance() { return instance_.get(); }
  bool is_active() const;

  // Says that the caller has come, the nth time to instance n - 1. It may come early or late.
  void call();
  uint64_t calls() const { return calls_; }
  // Says that the signal has arrived that the operation receives. One for an instance that is not
  // ready is kept; one for an instance that is done changes nothing.
  Status on_signal(uint64_t instance, uint32_t receive);
  // Says that an operation of the instance is complete. Goes on to the next instance if it is done.
  void complete(uint32_t operation);

  // Makes the next instance ready, if it may be, and sets it going if the caller is there for it
  // and initiates. The functions above call it.
  void go_on();

 private:
  const Activated& schedule_;
  const uint32_t most_ahead_;
  const Initiates initiates_;
  uint64_t number_ = 0, calls_ = 0;
  std::unique_ptr<Instance> instance_;
  std::map<uint64_t, std::vector<uint32_t>> kept_;  // signals, by instance
};

}  // namespace herring::collective
