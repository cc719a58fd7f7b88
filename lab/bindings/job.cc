// Binds whole jobs in virtual time, see lab/src/simulate/job.h.
#include "simulate/job.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bindings.h"
#include "module.h"

namespace herring::bindings {
namespace {

using transport::virtual_time::Network;
using transport::virtual_time::PathSettings;
using transport::virtual_time::Simulation;

// Times are in seconds. A change also has the number of its link.
using Path = std::tuple<double, double, double>;  // delay, jitter, loss
using Link = std::tuple<double, double>;          // bits per second, queue
using Change = std::tuple<double, size_t, double, double>;  // when, link, bits per second, queue

PathSettings settings_of(const Path& path) {
  return {from_seconds(std::get<0>(path)), from_seconds(std::get<1>(path)), std::get<2>(path)};
}

// The links and paths of a network. herring_lab.simulate.job has checked all values.
struct Model {
  std::vector<Link> links;  // by their numbers in Network
  Path path;
  std::map<std::tuple<size_t, size_t>, Path> pairs;
  std::vector<Path> spines;

  void apply(Network& network) const {
    for (size_t i = 0; i < links.size() && i < network.links(); ++i) {
      network.link(i).set({std::get<0>(links[i]), from_seconds(std::get<1>(links[i]))});
    }
    network.set_all_paths(settings_of(path));
    for (const auto& [pair, settings] : pairs) {
      network.set_path(std::get<0>(pair), std::get<1>(pair), settings_of(settings));
    }
    for (size_t i = 0; i < spines.size(); ++i) network.set_spine_path(i, settings_of(spines[i]));
  }
};

nb::dict simulate_job(uint32_t nodes, uint32_t servers, size_t size, uint32_t rounds,
                      std::vector<Link> links, Path path,
                      std::map<std::tuple<size_t, size_t>, Path> pairs, std::vector<Path> spines,
                      const std::vector<Change>& changes,
                      std::map<std::string, std::string> settings, uint32_t mtu, size_t cores,
                      bool shared_cores, const std::map<std::string, double>& costs, double pause,
                      bool data, uint64_t seed, double patience) {
  using namespace nb::literals;
  simulate::JobOptions options;
  options.nodes = nodes;
  options.dedicated_servers = servers;
  options.settings = std::move(settings);
  options.pause = from_seconds(pause);
  options.simulation.spines = spines.size();
  options.simulation.streams.mtu = mtu;
  options.simulation.cores = cores;
  options.simulation.shared_cores = shared_cores;
  options.simulation.carries_data = data;
  options.simulation.seed = seed;
  const std::map<std::string, double*> known = {
      {"wakeup", &options.simulation.costs.wakeup},
      {"call", &options.simulation.costs.call},
      {"byte_received", &options.simulation.costs.byte_received},
      {"byte_sent", &options.simulation.costs.byte_sent},
      {"packet", &options.simulation.costs.packet}};
  for (const auto& [name, seconds] : costs) {
    const auto found = known.find(name);
    if (found == known.end()) {
      raise({Code::kInvalidArgument, concat("unknown name in costs: ", name)});
    }
    *found->second = seconds * 1e9;
  }
  const Model model{std::move(links), path, std::move(pairs), std::move(spines)};
  options.prepare = [&model](Network& network) { model.apply(network); };

  std::unique_ptr<simulate::SimulatedJob> job;
  const std::vector<simulate::JobRound> all = take(without_gil([&] {
    auto created = simulate::SimulatedJob::create(options);
    if (!created.ok()) return Result<std::vector<simulate::JobRound>>(created.status());
    job = std::move(*created);
    for (const auto& [when, link, rate, queue] : changes) {
      Simulation& simulation = job->simulation();
      simulation.call_at(from_seconds(when), [&simulation, link, rate, queue] {
        simulation.network().link(link).set({rate, from_seconds(queue)});
      });
    }
    return job->allreduce(size, rounds, from_seconds(patience));
  }));
  nb::list times;
  for (const simulate::JobRound& round : all) {
    times.append(nb::make_tuple(round.began, round.seconds, round.credit_bytes));
  }
  Simulation& simulation = job->simulation();
  uint64_t drops = 0;
  for (size_t i = 0; i < simulation.network().links(); ++i) {
    drops += simulation.network().link(i).counters().drops;
  }
  const auto counted = simulation.streams().counters();
  return dict_of("rounds"_a = times, "packets"_a = counted.packets,
                 "retransmissions"_a = counted.retransmissions, "timeouts"_a = counted.timeouts,
                 "drops"_a = drops, "events"_a = simulation.events());
}

}  // namespace

void register_simulate_job(nb::module_& module) {
  using namespace nb::literals;
  module.def("job", &simulate_job, "nodes"_a, "servers"_a, "size"_a, "rounds"_a,
             "links"_a, "path"_a, "pairs"_a, "spines"_a, "changes"_a, "settings"_a, "mtu"_a,
             "cores"_a, "shared_cores"_a, "costs"_a, "pause"_a, "data"_a, "seed"_a, "patience"_a);
}

}  // namespace herring::bindings
