// How fast a job moves at a given credit: the closed form of the coarse model. Pure.
//
// A chain is what one server does for all nodes: windows of frames come in, sums go out, and what
// has been answered lets the next frames go. A set is one frame of each window at that server. Sets
// follow each other at the pace of the slowest of three: the window, turned around once per
// response; the server's own link and processors; and links and processors of the nodes, which all
// chains share.
#pragma once

#include <vector>

#include "simulate/scenario.h"
#include "worker/window.h"

namespace herring::simulate {

enum class Bound { kLink, kProcessor, kLatency, kLoss };
inline constexpr size_t kBounds = 4;
const char* name_of(Bound bound);

// What does not depend on credit, of a class of servers.
struct Shape {
  double servers = 0;
  double remote = 0;      // nodes whose frames come over the network
  double lanes = 1;       // windows of each node at each server
  double share = 1;       // of the credit, see worker/window.h
  double rtt = 0;         // to the furthest node
  double mtu = 0;         // the least on the way
  double bytes = 0;       // of a node for one of the servers in a round
  double run_bytes = 0;   // of a lane in one fusion buffer
  uint64_t run_segments = 0;
  double runs = 1;        // in a round
};

// Of one class of servers, at one credit.
struct Chain {
  double frame = 0;    // bytes
  double frames = 1;   // of a window
  double packets = 1;  // of a window, one way
  double wire = 0;     // bits of a frame
  double set = 0;      // seconds that the server is busy with a set
  Bound bound = Bound::kLink;  // with what
  double response = 0;  // from a frame's push to its result if no other turn is in the way
  double queueing = 0;  // of packets on the way to the server then: they come in bursts
  double queue = 0;     // that the server's port holds at most, seconds
  double lost = 0;      // packets of a turn, expected
  double recovery = 0, timeout = 0;  // that hold up a turn, expected
};

// Something that all chains share.
struct Resource {
  Bound bound;
  std::vector<double> per_set;  // seconds that a set of each class of servers takes
};

// More comes to a port than it has room for.
struct Overrun {
  double portions = 0;  // that come again, in a turn
  double timeout = 0;   // probability that it takes a time-out
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
  // Servers have different loads, so that none gets ahead of the others.
  bool balanced() const { return balanced_; }
  // Seconds that the links need for a round at least: for the payload, with headers.
  double limit() const { return limit_; }
  double wire_limit() const { return wire_limit_; }

  // How the links to a class of servers are used, see worker/window.h.
  struct Reach {
    double length = 1;
    size_t frames = worker::kFramesPerWindow;
    bool operator==(const Reach&) const = default;
  };
  // `credit`: segments. `reaches`: by class of servers.
  State state(size_t credit, const std::vector<Reach>& reaches) const;
  // `active`: share of the servers of each class that nothing holds up.
  Turns turns(const State& state, const std::vector<double>& active) const;

 private:
  void add_link(State& state, const HostClass& host, size_t host_index, bool up) const;
  void add_processors(State& state) const;
  Turns together(const State& state) const;
  void fill(Chain& chain, const Shape& shape, const ServerClass& server) const;
  Overrun overrun(double bytes, double flows, double room, double mtu) const;
  void lose(State& state) const;
  // Seconds of a processor for a frame that comes and one that goes.
  static double work(const Costs& costs, double frame);
  bool runs_on(size_t server, size_t host) const;

  const Scenario& scenario_;
  std::vector<Shape> shapes_;
  bool balanced_ = false;
  double nodes_ = 0;
  double limit_ = 0, wire_limit_ = 0;
};

}  // namespace herring::simulate
