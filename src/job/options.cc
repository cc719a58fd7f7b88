#include "job/options.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "control/group.h"
#include "transport/tcp/socket.h"

namespace herring::job {
namespace {

// The window of a flow that no path of today's short networks needs to exceed.
constexpr size_t kLadder = 1 << 20;
// Slots per segment of credit: one fills while the other drains.
constexpr size_t kSlotsPerSegment = 2;
constexpr uint64_t kRatePerProxy = 7'000'000'000;
constexpr uint32_t kProxiesOfUnknownLink = 8, kMostProxies = 16;
constexpr uint32_t kMostNodeThreads = 4;

}  // namespace

control::Settings shared_settings(const Settings& settings) {
  control::Settings shared;
  for (const SettingSpec& spec : setting_specs()) {
    if (spec.scope != SettingScope::kJob) continue;
    shared[std::string(spec.name)] = settings.text(spec.name);
  }
  return shared;
}

Result<Settings> adopt(const control::Settings& shared) {
  std::map<std::string, std::string> overrides(shared.begin(), shared.end());
  return Settings::load(overrides, [](const char*) -> const char* { return nullptr; });
}

ServingHost serving_host(const std::string& address) {
  return {std::max(1u, std::thread::hardware_concurrency()),
          transport::tcp::link_rate(address)};
}

uint32_t proxies_for(const ServingHost& host, uint32_t nodes) {
  const uint64_t wanted = host.rate == 0
                              ? kProxiesOfUnknownLink
                              : std::min<uint64_t>((host.rate + kRatePerProxy - 1) / kRatePerProxy,
                                                   kMostProxies);
  return std::max(std::min({static_cast<uint32_t>(wanted), host.cores / 2, nodes}), 1u);
}

uint32_t usable_cores() {
  cpu_set_t cores;
  // The call fails on machines with more cores than the set has room for.
  if (::sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1u, std::thread::hardware_concurrency());
}

uint32_t node_threads_for(uint32_t cores, uint32_t workers) {
  return std::clamp(cores / (2 * std::max(workers, 1u)), 1u, kMostNodeThreads);
}

server::DataPlaneOptions data_plane(const Settings& settings, const control::Cluster& cluster,
                                    const ServingHost& host) {
  server::DataPlaneOptions options;
  const auto asked = static_cast<uint32_t>(settings.get_int("proxies"));
  options.proxies = asked != 0 ? asked : proxies_for(host, cluster.nodes);
  options.segment_bytes = settings.get_bytes("segment_bytes");
  options.frame_max = settings.get_bytes("frame_max");
  options.credit = settings.get_bytes("credit");
  options.credit_max = settings.get_bytes("credit_max");
  options.small_bytes = settings.get_bytes("small_bytes");
  options.flows = static_cast<uint32_t>(settings.get_int("flows"));
  options.observe = settings.get_bool("observe");
  // What others may lack of results is bounded by the window, and every worker keeps that.
  if (options.credit_max == 0 && settings.get_bool("failover")) options.credit_max = kLadder;
  if (options.credit_max == 0) {
    const size_t flows = size_t{std::max(cluster.size, 1u)} * options.flows;
    options.credit_max =
        std::max(static_cast<size_t>(settings.get_bytes("server_memory")) /
                     (kSlotsPerSegment * flows),
                 kLadder);
    options.credit_ladder = kLadder;
  }
  return options;
}

engine::EngineOptions engine_options(const control::Cluster& cluster, uint32_t rank,
                                     const server::DataPlaneOptions& plane,
                                     const Settings& shared) {
  engine::EngineOptions engine;
  engine.rank = rank;
  engine.links.segment_bytes = plane.segment_bytes;
  engine.links.frame_max = plane.frame_max;
  engine.links.credit_initial = plane.credit_segments(plane.credit);
  engine.links.credit_max = plane.credit_segments(std::max(plane.credit, plane.credit_max));
  engine.links.credit_fixed = plane.credit != 0;
  if (plane.credit_ladder != 0) {
    engine.links.credit_ladder = plane.credit_segments(plane.credit_ladder);
  }
  engine.links.steers = rank == 0;
  engine.links.failover = shared.get_bool("failover");
  engine.links.flows = plane.flows;
  engine.links.even = control::Group(cluster).even();
  for (const control::ServerInfo& server : cluster.servers) {
    engine.links.weights.push_back(server.weight);
  }
  engine.links.first_server = static_cast<uint32_t>(
      uint64_t{cluster.workers[rank].node} * cluster.servers.size() / cluster.nodes);
  engine.mesh.rank = rank;
  engine.mesh.size = cluster.size;
  engine.mesh.incarnation = cluster.incarnation;
  engine.small_bytes = plane.small_bytes;
  engine.buffer_bytes = shared.get_bytes("buffer_bytes");
  engine.failover = shared.get_bool("failover");
  engine.observe = shared.get_bool("observe");
  return engine;
}

Result<std::vector<Door>> doors_of(const control::Cluster& cluster, uint32_t rank,
                                   uint32_t flows_per_server) {
  std::vector<Door> doors;
  for (const control::ServerInfo& server : cluster.servers) {
    auto address = transport::parse_address(server.address, "a server's address");
    if (!address.ok()) return address.status();
    for (uint32_t flow = 0; flow < flows_per_server; ++flow) {
      doors.push_back({server.index, *address,
                       {wire::Role::kWorker, rank, flow, cluster.incarnation}});
    }
  }
  return doors;
}

}  // namespace herring::job
