// Computes how fast a job moves at a given credit, as the closed form of the coarse model. The code
// is pure: it has no state beside its inputs.
//
// A chain is the work of one server for all nodes: windows of frames come in, sums go out, and
// answers allow the next frames to be sent. A set is one frame of each window at that server. Sets
// follow each other at the pace of the slowest of three things: the window, which is turned around
// once per response; the server's own link and processors; and the links and processors of the
// nodes, which all chains share.
#pragma once

#include <vector>

#include "links/window.h"
#include "simulate/scenario.h"

namespace herring::simulate {

enum class Bound { kLink, kProcessor, kLatency, kLoss };
inline constexpr size_t kBounds = 4;
const char* name_of(Bound bound);

// The values of a class of servers that do not depend on credit.
struct Shape {
  double servers = 0;
  double remote = 0;      // nodes whose frames come over the network
  double lanes = 1;       // windows of each node at each server
  double share = 1;       // of the credit, see links/window.h
  double rtt = 0;         // seconds to the furthest node and back
  double mtu = 0;         // the smallest MTU on the way
  double bytes = 0;       // bytes of a node for one of the servers in a round
  double run_bytes = 0;   // bytes of a lane in one fusion buffer
  uint64_t run_segments = 0;
  double runs = 1;        // runs in a round
};

// The values of a class of servers at one credit.
struct Chain {
  double frame = 0;    // bytes of a frame
  double frames = 1;   // frames of a window
  double packets = 1;  // packets of a window, one way
  double wire = 0;     // bits of a frame on the wire
  double set = 0;      // seconds for which a set keeps the server busy
  Bound bound = Bound::kLink;  // what a set keeps busy: the link or the processors
  double response = 0;  // seconds from a frame's push to its result, without other turns in the way
  double queueing = 0;  // mean seconds that a burst's packets wait on the way to the server
  double queue = 0;     // the longest queue at the server's port, in seconds
  double lost = 0;      // expected number of packets that a turn loses
  double recovery = 0, timeout = 0;  // expected number of these that hold up a turn
};

// A link or processors that all chains share.
struct Resource {
  Bound bound;
  std::vector<double> per_set;  // seconds that a set of each class of servers takes
};

// What happens if more comes to a port than it has room for.
struct Overrun {
  double portions = 0;  // portions that are sent again in a turn
  double timeout = 0;   // probability that a portion takes a timeout
  bool operator<(const Overrun& other) const {
    return portions * timeout < other.portions * other.timeout ||
           (portions * timeout == other.portions * other.timeout && portions < other.portions);
  }
};

struct State {
  std::vector<Chain> chains;
  std::vector<Resource> resources;
};

struct Turns {
  std::vector<double> turn;  // seconds in which a window is answered once, by class of servers
  Bound bound = Bound::kLatency;
};

class Pace {
 public:
  explicit Pace(const Scenario& scenario);

  const std::vector<Shape>& shapes() const { return shapes_; }
  // Returns whether servers have different loads. Then none gets ahead of the others.
  bool balanced() const { return balanced_; }
  // Return the least seconds of a round that the links allow: for payload alone, and with headers.
  double limit() const { return limit_; }
  double wire_limit() const { return wire_limit_; }

  // How flows to a class of servers use their credit, see links/window.h.
  struct Reach {
    double length = 1;
    size_t frames = links::kFramesPerWindow;
    bool operator==(const Reach&) const = default;
  };
  // `credit` is in segments; `reaches` has an entry per class of servers.
  State state(size_t credit, const std::vector<Reach>& reaches) const;
  // `active` is the share of each class of servers that nothing holds up.
  Turns turns(const State& state, const std::vector<double>& active) const;

 private:
  void add_link(State& state, const HostClass& host, size_t host_index, bool up) const;
  void add_processors(State& state) const;
  Turns together(const State& state) const;
  void fill(Chain& chain, const Shape& shape, const ServerClass& server) const;
  Overrun overrun(double bytes, double flows, double room, double mtu) const;
  void lose(State& state) const;
  // Returns the processor seconds of a frame that comes and of a frame that goes.
  static double work(const Costs& costs, double frame);
  bool runs_on(size_t server, size_t host) const;

  const Scenario& scenario_;
  std::vector<Shape> shapes_;
  bool balanced_ = false;
  double nodes_ = 0;
  double limit_ = 0, wire_limit_ = 0;
};

}  // namespace herring::simulate
