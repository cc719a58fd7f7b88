#include "simulate/pace.h"

#include <algorithm>
#include <cmath>

#include "links/window.h"
#include "plan/plan.h"
#include "wire/frame.h"

namespace herring::simulate {
namespace {

constexpr double kIpTcp = 52;     // headers with time stamps
constexpr double kEthernet = 38;  // preamble, header, checksum, gap
// A sender learns of a loss from acknowledgements of so many later packets (RFC 5681).
constexpr int kDuplicates = 3;
constexpr int kBisections = 50;

double packets_of(double bytes, double mtu) {
  return std::max(std::ceil((bytes + wire::kHeaderBytes) / (mtu - kIpTcp)), 1.0);
}

double wire_bits(double bytes, double mtu) {
  return 8 * (bytes + wire::kHeaderBytes + packets_of(bytes, mtu) * (kIpTcp + kEthernet));
}

double rate(double bits, const Port& port) { return bits * (1 - port.background); }

// Returns the bytes that may be under way to a port without drops.
double room(const Port& port, double rtt) {
  return (port.down / 8 * rtt + port.buffer) * (1 - port.background);
}

double either(double one, double other) { return 1 - (1 - one) * (1 - other); }

}  // namespace

const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::kLink: return "link";
    case Bound::kProcessor: return "processor";
    case Bound::kLatency: return "latency";
    case Bound::kLoss: return "loss";
  }
  return "?";
}

double Pace::work(const Costs& costs, double frame) {
  return 2 * (costs.frame + costs.byte * frame) + costs.wakeup;
}

bool Pace::runs_on(size_t server, size_t host) const {
  return scenario_.servers[server].colocated && scenario_.servers[server].host == host;
}

Pace::Pace(const Scenario& scenario)
    : scenario_(scenario), nodes_(static_cast<double>(scenario.nodes())) {
  const std::vector<double> weights = weights_of(scenario);
  plan::Options options;
  options.segment_bytes = scenario.segment_bytes;
  options.buffer_bytes = scenario.buffer_bytes != 0
                             ? scenario.buffer_bytes
                             : plan::choose_buffer_bytes(
                                   scenario.size, static_cast<uint32_t>(scenario.nodes()),
                                   static_cast<uint32_t>(weights.size()), scenario.segment_bytes);
  const size_t buffer = std::min<size_t>(options.buffer_bytes, scenario.size);
  // Servers of a class differ by at most an alignment unit, so the first one stands for all.
  std::vector<size_t> shard_bytes(weights.size());
  for (const plan::Shard& shard : plan::shard_layout(buffer, weights)) {
    shard_bytes[shard.server] = shard.bytes;
  }
  double far = 0, least_mtu = 65535;
  for (const HostClass& host : scenario.hosts) {
    far = std::max(far, host.port.rtt);
    least_mtu = std::min<double>(least_mtu, host.port.mtu);
  }
  double all = 0;
  for (const double weight : weights) all += weight;
  const double lanes = std::max(
      1.0, scenario.hosts[0].workers / static_cast<double>(weights.size()));
  size_t first = 0;
  for (const ServerClass& server : scenario.servers) {
    const Port& port = server.colocated ? scenario.hosts[server.host].port : server.port;
    Shape shape;
    shape.servers = static_cast<double>(server.count);
    shape.remote = server.colocated ? nodes_ - 1 : nodes_;
    shape.lanes = lanes;
    shape.share = links::share_of(weights, first);
    balanced_ |= shape.share > 1;
    shape.rtt = far + port.rtt;
    shape.mtu = std::min<double>(least_mtu, port.mtu);
    shape.bytes = static_cast<double>(scenario.size) * weights[first] / all;
    const double run = std::max(static_cast<double>(shard_bytes[first]) / lanes, 1.0);
    shape.run_segments = plan::segment_count(static_cast<size_t>(run), scenario.segment_bytes);
    shape.run_bytes = run;
    shape.runs = std::max(shape.bytes / lanes / run, 1e-9);
    shapes_.push_back(shape);
    first += server.count;
  }
  // The limit is the load of the busiest link, computed for a whole round instead of a set.
  State whole;
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Shape& shape = shapes_[s];
    Chain chain;
    chain.wire = 8 * shape.bytes / lanes;
    whole.chains.push_back(chain);
    const ServerClass& server = scenario.servers[s];
    if (server.colocated) continue;
    const double slower = std::min(rate(server.port.up, server.port),
                                   rate(server.port.down, server.port));
    limit_ = std::max(limit_, nodes_ * 8 * shape.bytes / slower);
  }
  for (size_t h = 0; h < scenario.hosts.size(); ++h) {
    add_link(whole, scenario.hosts[h], h, true);
    add_link(whole, scenario.hosts[h], h, false);
  }
  for (const Resource& resource : whole.resources) {
    double load = 0;
    for (size_t s = 0; s < shapes_.size(); ++s) load += shapes_[s].servers * resource.per_set[s];
    limit_ = std::max(limit_, load);
  }
  double overhead = 1;
  for (const Shape& shape : shapes_) {
    overhead = std::max(overhead, (shape.mtu + kEthernet) / (shape.mtu - kIpTcp));
  }
  wire_limit_ = limit_ * overhead;
}

// A node pushes to every server except its own. The results of its own server for other nodes leave
// by the same link. As many bytes come in.
void Pace::add_link(State& state, const HostClass& host, size_t host_index, bool up) const {
  Resource link{Bound::kLink, {}};
  const double bits = rate(up ? host.port.up : host.port.down, host.port);
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Shape& shape = shapes_[s];
    double frames = shape.servers;
    if (runs_on(s, host_index)) frames += shape.remote - 1;
    link.per_set.push_back(frames / shape.servers * shape.lanes * state.chains[s].wire / bits);
  }
  state.resources.push_back(std::move(link));
}

void Pace::add_processors(State& state) const {
  Resource shared{Bound::kProcessor, std::vector<double>(shapes_.size(), 0.0)};
  for (size_t h = 0; h < scenario_.hosts.size(); ++h) {
    const HostClass& host = scenario_.hosts[h];
    Resource own{Bound::kProcessor, {}};
    for (size_t s = 0; s < shapes_.size(); ++s) {
      const Shape& shape = shapes_[s];
      const double frame = shape.lanes * work(host.costs, state.chains[s].frame);
      const double frames = shape.servers + (runs_on(s, h) ? nodes_ : 0);
      own.per_set.push_back(frames / shape.servers * frame / host.costs.cores);
      shared.per_set[s] += static_cast<double>(host.count) * frames / shape.servers * frame;
    }
    state.resources.push_back(std::move(own));
  }
  if (scenario_.shared_cores <= 0) return;
  for (size_t s = 0; s < shapes_.size(); ++s) {
    if (!scenario_.servers[s].colocated) {
      shared.per_set[s] += nodes_ * shapes_[s].lanes *
                           work(scenario_.servers[s].costs, state.chains[s].frame);
    }
    shared.per_set[s] /= scenario_.shared_cores;
  }
  state.resources.push_back(std::move(shared));
}

State Pace::state(size_t credit, const std::vector<Reach>& reaches) const {
  State state;
  state.chains.resize(shapes_.size());
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Shape& shape = shapes_[s];
    Chain& chain = state.chains[s];
    const size_t most = std::max<size_t>(scenario_.credit_max / scenario_.segment_bytes, credit);
    const size_t window =
        std::max<size_t>(links::window_of(credit, shape.share, reaches[s].length, most), 1);
    const auto run = static_cast<double>(shape.run_segments);
    const auto frame = std::min(
        static_cast<double>(
            links::frame_of(window, reaches[s].frames, scenario_.frame_max,
                             scenario_.segment_bytes)), run);
    const double in_run = std::ceil(run / frame);
    chain.frame = shape.run_bytes / in_run;
    chain.frames = std::clamp(std::floor(static_cast<double>(window) / frame), 1.0,
                              std::max(std::floor(in_run * shape.runs), 1.0));
    chain.packets = chain.frames * packets_of(chain.frame, shape.mtu);
    chain.wire = wire_bits(chain.frame, shape.mtu);
  }
  for (size_t h = 0; h < scenario_.hosts.size(); ++h) {
    add_link(state, scenario_.hosts[h], h, true);
    add_link(state, scenario_.hosts[h], h, false);
  }
  add_processors(state);
  for (size_t s = 0; s < shapes_.size(); ++s) {
    fill(state.chains[s], shapes_[s], scenario_.servers[s]);
  }
  lose(state);
  return state;
}

void Pace::fill(Chain& chain, const Shape& shape, const ServerClass& server) const {
  const HostClass* on = server.colocated ? &scenario_.hosts[server.host] : nullptr;
  const Port& port = on != nullptr ? on->port : server.port;
  const Costs& costs = on != nullptr ? on->costs : server.costs;
  const double frames = shape.remote * shape.lanes;
  const double in = frames * chain.wire / rate(port.down, port);
  const double out = frames * chain.wire / rate(port.up, port);
  const double work_of_set = nodes_ * shape.lanes * work(costs, chain.frame) / costs.cores;
  chain.set = std::max({in, out, work_of_set});
  chain.bound = work_of_set > std::max(in, out) ? Bound::kProcessor : Bound::kLink;

  // The last frame of a set has arrived when the server's port has received all its frames, and
  // when the slowest node has sent a frame to each server. Results take the same way back.
  double there = std::max(in, work_of_set / 2), back = std::max(out, work_of_set / 2);
  double handling = 0;
  for (const HostClass& host : scenario_.hosts) {
    const double bits = shape.servers * shape.lanes * chain.wire;
    const double busy = shape.servers * shape.lanes * work(host.costs, chain.frame) /
                        host.costs.cores / 2;
    there = std::max({there, bits / rate(host.port.up, host.port), busy});
    back = std::max({back, bits / rate(host.port.down, host.port), busy});
    handling = std::max(handling, work(host.costs, chain.frame));
  }
  chain.response = shape.rtt + there + back + handling + work(costs, chain.frame);
  chain.queue = port.buffer * 8 / port.down;
  chain.queueing = std::min(there / 2, chain.queue);
}

// Half of a window is on the way there and half on the way back, plus at most one frame of each
// flow. Senders' TCP sends again what a port has no room for, in portions that the port has room
// for. In each portion, too few packets of a flow may get through for the flow to notice a loss.
Overrun Pace::overrun(double bytes, double flows, double room, double mtu) const {
  Overrun overrun;
  overrun.portions = std::max(bytes / room - 1, 0.0);
  const double through = room / flows / mtu;  // mean packets of a flow; Poisson distributed
  double term = std::exp(-through);
  for (int k = 0; k < kDuplicates; ++k) {
    overrun.timeout += term;
    term *= through / (k + 1);
  }
  return overrun;
}

void Pace::lose(State& state) const {
  const auto peak = [](const Chain& chain) { return chain.wire / 8 * (chain.frames + 1) / 2; };
  Overrun nodes;  // at the ports of the worst class of nodes
  for (size_t h = 0; h < scenario_.hosts.size(); ++h) {
    const HostClass& host = scenario_.hosts[h];
    double bytes = 0, flows = 0, rtt = 0;
    for (size_t s = 0; s < shapes_.size(); ++s) {
      const Shape& shape = shapes_[s];
      const double frames =
          shape.lanes * (shape.servers + (runs_on(s, h) ? shape.remote - 1 : 0));
      bytes += frames * peak(state.chains[s]);
      flows += frames;
      rtt = std::max(rtt, shape.rtt);
    }
    nodes = std::max(nodes, overrun(bytes, flows, room(host.port, rtt), host.port.mtu));
  }
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Shape& shape = shapes_[s];
    const ServerClass& server = scenario_.servers[s];
    Chain& chain = state.chains[s];
    Overrun worst = nodes;
    if (!server.colocated) {
      const double flows = shape.remote * shape.lanes;
      worst = std::max(worst, overrun(flows * peak(chain), flows, room(server.port, shape.rtt),
                                      shape.mtu));
    }
    double none = 0, no_tail = 0;  // logarithms of probabilities
    const Port& port = server.colocated ? scenario_.hosts[server.host].port : server.port;
    const double tail = std::min(static_cast<double>(kDuplicates) / chain.packets, 1.0);
    for (const HostClass& host : scenario_.hosts) {
      const double loss = either(host.port.loss, port.loss);
      const double packets = static_cast<double>(host.count) * shape.lanes * 2 * chain.packets;
      chain.lost += packets * loss;
      none += packets * std::log1p(-loss);
      no_tail += packets * std::log1p(-loss * tail);
    }
    // A dropped packet counts as lost at least once.
    chain.lost += std::min(worst.portions, 1.0) * shape.remote * shape.lanes * chain.packets / 2;
    chain.timeout = -std::expm1(no_tail) + worst.portions * worst.timeout;
    chain.recovery = -std::expm1(none) + std::expm1(no_tail) + worst.portions * (1 - worst.timeout);
  }
}

// No server gets ahead of another: all go through a round at one pace, which the tightest limit
// sets.
Turns Pace::together(const State& state) const {
  Turns turns;
  double slowest = 0;  // seconds of a round
  const auto limit = [&](double seconds, Bound bound) {
    if (seconds <= slowest) return;
    slowest = seconds;
    turns.bound = bound;
  };
  std::vector<double> sets;  // number of sets of each server in a round
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Chain& chain = state.chains[s];
    sets.push_back(shapes_[s].bytes / (shapes_[s].lanes * chain.frame));
    limit(sets[s] * chain.set, chain.bound);
    limit(sets[s] / chain.frames * chain.response, Bound::kLatency);
  }
  for (const Resource& resource : state.resources) {
    double load = 0;
    for (size_t s = 0; s < shapes_.size(); ++s) {
      load += shapes_[s].servers * resource.per_set[s] * sets[s];
    }
    limit(load, resource.bound);
  }
  for (size_t s = 0; s < shapes_.size(); ++s) {
    turns.turn.push_back(slowest * state.chains[s].frames / sets[s]);
  }
  return turns;
}

// If a shared resource is overloaded, all chains wait for it equally, just long enough that the
// load fits.
Turns Pace::turns(const State& state, const std::vector<double>& active) const {
  const auto turn_of = [&](size_t s, double wait) {
    const Chain& chain = state.chains[s];
    return std::max(chain.frames * chain.set, chain.response + wait);
  };
  const auto load = [&](const Resource& resource, double wait) {
    double all = 0;
    for (size_t s = 0; s < shapes_.size(); ++s) {
      all += active[s] * shapes_[s].servers * resource.per_set[s] * state.chains[s].frames /
             turn_of(s, wait);
    }
    return all;
  };
  if (balanced_) return together(state);
  Turns turns;
  double wait = 0;
  for (const Resource& resource : state.resources) {
    if (load(resource, wait) <= 1) continue;
    double low = wait, high = 1e-6 + 2 * wait;
    while (load(resource, high) > 1) high *= 4;
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (low + high) / 2;
      (load(resource, middle) > 1 ? low : high) = middle;
    }
    wait = high;
    turns.bound = resource.bound;
  }
  double slowest = 0;
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const Chain& chain = state.chains[s];
    turns.turn.push_back(turn_of(s, wait));
    const double left = shapes_[s].bytes / (chain.frames * chain.frame) * turns.turn.back();
    if (active[s] > 0 && left > slowest) {  // the chain that ends last counts
      slowest = left;
      const bool own = chain.frames * chain.set >= chain.response + wait;
      if (wait == 0) turns.bound = own ? chain.bound : Bound::kLatency;
    }
  }
  return turns;
}

}  // namespace herring::simulate
