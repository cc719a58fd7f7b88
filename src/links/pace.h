// A group's share of the credit on a worker's links: how much it may have outstanding, and how much
// it has. One member steers the credit according to the results it receives. The other members
// learn it from the headers of results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "links/credit.h"
#include "links/options.h"
#include "wire/frame.h"

namespace herring::links {

struct Pace {
  // `options` must outlive this object. `initial`: credit of a flow in segments.
  Pace(const LinksOptions& options, uint16_t initial, bool steers);

  uint16_t credit() const { return steers ? controller.credit() : told; }  // segments
  // Counts another transfer in flight. If it is the only one, the controller observes a new start.
  void begin(Nanos now);
  void sent(size_t segments, Nanos now);
  void answered(const wire::FrameHeader& result, uint32_t server, uint32_t flow, Nanos now);
  // The server is dead: no results will come from it.
  void forget(uint32_t server);

  const LinksOptions& options;
  const bool steers;
  CreditController controller;         // used if this rank steers
  uint16_t told;                       // otherwise: the credit that results carry
  size_t transfers = 0;                // in flight
  size_t outstanding = 0;              // segments, on all links
  Nanos busy_since = 0;
  Nanos whole_answered_at = 0;         // latest result of an operation that needs all members
  bool called_off = false, called_off_there = false;  // by this worker; by a server
  bool abandoned = false;              // no server of the group is left
  bool removed = false;                // and what is on its way has yet to be answered
  struct OnLink {
    size_t returned = 0;               // segments answered since the group was idle
    std::vector<size_t> outstanding;   // segments, by flow
    uint32_t signals = 0;              // loss counter as last received
    uint16_t said = 0;                 // if this rank steers: the credit that the server knows
  };
  std::vector<OnLink> links;           // by server

 private:
  void steer(const wire::FrameHeader& result, uint32_t server, size_t before, Nanos now);
  void log_progress();

  size_t rungs_ = 0;      // as last logged
  uint32_t trials_ = 0;
};

}  // namespace herring::links
