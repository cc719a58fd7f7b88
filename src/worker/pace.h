// A group's share of the credit on a worker's links: what it may have outstanding, and what it has.
// One of its members steers it by what comes back; the others are told with the results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "wire/frame.h"
#include "worker/credit.h"
#include "worker/links_options.h"

namespace herring::worker {

struct Pace {
  // `options`: live longer. `initial`: segments of a flow.
  Pace(const LinksOptions& options, uint16_t initial, bool steers);

  uint16_t credit() const { return steers ? controller.credit() : told; }  // segments
  // Another transfer, where there may have been none.
  void begin(Nanos now);
  void sent(size_t segments, Nanos now);
  void answered(const wire::FrameHeader& result, uint32_t server, uint32_t flow, Nanos now);
  // The server is dead: nothing of it comes back.
  void forget(uint32_t server);

  const LinksOptions& options;
  const bool steers;
  CreditController controller;         // if it steers
  uint16_t told;                       // else; as results say
  size_t transfers = 0;                // in flight
  size_t outstanding = 0;              // segments, on all links
  Nanos busy_since = 0;
  Nanos whole_answered_at = 0;         // the latest result of what needs all members
  bool called_off = false, called_off_there = false;  // here; as a server says
  struct OnLink {
    size_t returned = 0;               // segments answered since the group was idle
    std::vector<size_t> outstanding;   // segments, by flow
    uint32_t signals = 0;              // losses as last heard
  };
  std::vector<OnLink> links;           // by server

 private:
  void steer(const wire::FrameHeader& result, uint32_t server, size_t before, Nanos now);
  void log_progress();

  size_t rungs_ = 0;      // as logged
  uint32_t trials_ = 0;
};

}  // namespace herring::worker
