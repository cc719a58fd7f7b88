// Binds the coarse model of a job, see lab/src/simulate/coarse.h.
#include "simulate/coarse.h"

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "module.h"

namespace herring::bindings {
namespace {

// Returns a value of a dictionary. An error names the key, the value and the allowed type.
template <typename T>
T value_of(nb::dict from, const char* key, const std::string& where) {
  if (!from.contains(key)) {
    raise({Code::kInvalidArgument, concat(where, key, " is missing")});
  }
  nb::handle found = from[key];
  T value{};
  const bool number = !PyBool_Check(found.ptr()) || std::is_same_v<T, bool>;
  if (!number || !nb::try_cast<T>(found, value)) {
    const char* allowed = std::is_same_v<T, bool>       ? "True or False"
                          : std::is_integral_v<T>       ? "a whole number that is not negative"
                          : std::is_same_v<T, nb::dict> ? "a dictionary"
                                                        : "a number";
    raise({Code::kInvalidArgument,
           concat(where, key, " = ", nb::cast<std::string>(nb::str(nb::repr(found))),
                  "; allowed: ", allowed)});
  }
  return value;
}

simulate::Costs costs_of(nb::dict host, const std::string& where) {
  const auto from = value_of<nb::dict>(host, "costs", where);
  const std::string inner = where + "costs.";
  simulate::Costs costs;
  costs.frame = value_of<double>(from, "frame", inner);
  costs.byte = value_of<double>(from, "byte", inner);
  costs.wakeup = value_of<double>(from, "wakeup", inner);
  costs.cores = value_of<double>(from, "cores", inner);
  return costs;
}

simulate::Port port_of(nb::dict host, const std::string& where) {
  simulate::Port port;
  port.up = value_of<double>(host, "up", where);
  port.down = value_of<double>(host, "down", where);
  port.rtt = value_of<double>(host, "rtt", where);
  port.buffer = value_of<double>(host, "buffer", where);
  port.loss = value_of<double>(host, "loss", where);
  port.mtu = value_of<uint32_t>(host, "mtu", where);
  port.background = value_of<double>(host, "background", where);
  return port;
}

template <typename Each>
void each_of(nb::dict from, const char* key, Each&& each) {
  if (!from.contains(key) || !nb::isinstance<nb::sequence>(from[key])) {
    raise({Code::kInvalidArgument, concat(key, ": expected a sequence of dictionaries")});
  }
  size_t i = 0;
  for (nb::handle item : from[key]) {
    const std::string where = concat(key, "[", i++, "].");
    if (!nb::isinstance<nb::dict>(item)) {
      raise({Code::kInvalidArgument, concat(where, " is not a dictionary")});
    }
    each(nb::cast<nb::dict>(item), where);
  }
}

simulate::Scenario scenario_of(nb::dict from) {
  simulate::Scenario scenario;
  each_of(from, "hosts", [&](nb::dict host, const std::string& where) {
    simulate::HostClass& each = scenario.hosts.emplace_back();
    each.count = value_of<uint64_t>(host, "count", where);
    each.workers = value_of<uint32_t>(host, "workers", where);
    each.port = port_of(host, where);
    each.costs = costs_of(host, where);
  });
  each_of(from, "servers", [&](nb::dict host, const std::string& where) {
    simulate::ServerClass& each = scenario.servers.emplace_back();
    each.count = value_of<uint64_t>(host, "count", where);
    each.weight = value_of<double>(host, "weight", where);
    each.colocated = value_of<bool>(host, "colocated", where);
    each.host = value_of<uint64_t>(host, "host", where);
    each.port = port_of(host, where);
    each.costs = costs_of(host, where);
  });
  scenario.size = value_of<uint64_t>(from, "size", "");
  scenario.pause = value_of<double>(from, "pause", "");
  scenario.noise = value_of<double>(from, "noise", "");
  scenario.shared_cores = value_of<double>(from, "shared_cores", "");
  scenario.segment_bytes = value_of<uint64_t>(from, "segment_bytes", "");
  scenario.frame_max = value_of<uint64_t>(from, "frame_max", "");
  scenario.credit_max = value_of<uint64_t>(from, "credit_max", "");
  scenario.buffer_bytes = value_of<uint64_t>(from, "buffer_bytes", "");
  scenario.credit = value_of<uint64_t>(from, "credit", "");
  return scenario;
}

nb::dict simulate_coarse(nb::dict from, uint64_t rounds, uint64_t seed, double least) {
  using namespace nb::literals;
  const simulate::Scenario scenario = scenario_of(from);
  const simulate::Outcome outcome =
      take(without_gil([&] { return simulate::run(scenario, rounds, seed, least); }));
  nb::list all;
  for (const simulate::Round& round : outcome.rounds) {
    all.append(nb::make_tuple(round.seconds, round.goodput, round.window,
                              simulate::name_of(round.bound), round.losses, round.timeouts));
  }
  return dict_of("rounds"_a = all, "limit"_a = outcome.limit,
                 "wire_limit"_a = outcome.wire_limit, "steps"_a = outcome.steps);
}

}  // namespace

void register_simulate(nb::module_& module) {
  using namespace nb::literals;
  module.def("coarse", &simulate_coarse, "scenario"_a, "rounds"_a, "seed"_a,
             "least"_a = 0.0);
}

}  // namespace herring::bindings
