// How much each group may have outstanding on each of a worker's links, and how much it has. Engine
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "links/link.h"
#include "links/pace.h"
#include "links/route.h"

namespace herring::links {

class Credits {
 public:
  // All must outlive this object.
  Credits(const LinksOptions& options, const Route& route, std::vector<Link>& links)
      : options_(options), route_(route), links_(links),
        world_(options, options.credit_initial, options.steers) {}

  Pace& of(uint32_t group) { return group == 0 ? world_ : groups_.find(group)->second; }
  const Pace& world() const { return world_; }
  bool has(uint32_t group) const { return group == 0 || groups_.contains(group); }
  void add_group(uint32_t group, const std::vector<uint32_t>& servers, bool steers);
  void remove_group(uint32_t group) { groups_.erase(group); }
  // A link has another flow.
  void add_flow();
  // The server is dead: no results will come from it.
  void forget(uint32_t server);
  // Another server is in its place, on which nothing is outstanding.
  void begin_anew(uint32_t server);

  // Returns how many segments a flow may have outstanding in a group. Groups that push here at the
  // same time divide the most that it may ever have outstanding.
  size_t window(uint32_t server, const Pace& pace) const;
  void sent(Link& link, Pace& pace, size_t segments, Nanos now);
  // The segments are answered, so their credit is back. `tells`: and other servers may be told.
  void answered(LinkFlow& flow, const wire::FrameHeader& header, const StreamId& id, Pace& pace,
                Nanos now, bool tells);
  // Tells the server which lent results were read. Data frames carry this number; if nothing is
  // left to push, a frame of its own does.
  void give_back(LinkFlow& flow);
  // Polls the transport's path information about congestion.
  void poll_paths(Nanos now);

 private:
  void fit(Pace& pace) const;
  void tell(uint32_t group, Pace& pace);
  void measure_paths();
  template <typename Action>
  void for_all(const Action& action) {
    action(world_);
    for (auto& [group, pace] : groups_) action(pace);
  }

  const LinksOptions& options_;
  const Route& route_;
  std::vector<Link>& links_;
  Pace world_;
  std::map<uint32_t, Pace> groups_;  // all but the world
};

}  // namespace herring::links
