#include "simulate/scenario.h"

#include <cmath>
#include <string>

#include "plan/plan.h"

namespace herring::simulate {
namespace {

constexpr double kMostBits = 100e12;      // per second
constexpr double kMostSeconds = 60;
constexpr double kMostBytes = 1e15;
constexpr double kMostBackground = 0.95;
constexpr uint64_t kMostHosts = 1 << 20;
constexpr uint64_t kMostSegments = 65535;  // the largest value of the credit's type

Status wrong(const std::string& name, double value, const std::string& allowed) {
  return {Code::kInvalidArgument, concat(name, " = ", value, "; allowed: ", allowed)};
}

Status within(const std::string& name, double value, double least, double most) {
  if (std::isfinite(value) && value >= least && value <= most) return {};
  return wrong(name, value, concat(least, " to ", most));
}

Status check_costs(const std::string& of, const Costs& costs) {
  HERRING_RETURN_IF_ERROR(within(of + ".costs.frame", costs.frame, 0, 1));
  HERRING_RETURN_IF_ERROR(within(of + ".costs.byte", costs.byte, 0, 1e-3));
  HERRING_RETURN_IF_ERROR(within(of + ".costs.wakeup", costs.wakeup, 0, 1));
  return within(of + ".costs.cores", costs.cores, 0.01, 4096);
}

Status check_port(const std::string& of, const Port& port) {
  HERRING_RETURN_IF_ERROR(within(of + ".up", port.up, 1e3, kMostBits));
  HERRING_RETURN_IF_ERROR(within(of + ".down", port.down, 1e3, kMostBits));
  HERRING_RETURN_IF_ERROR(within(of + ".rtt", port.rtt, 0, kMostSeconds));
  HERRING_RETURN_IF_ERROR(within(of + ".buffer", port.buffer, 0, kMostBytes));
  HERRING_RETURN_IF_ERROR(within(of + ".loss", port.loss, 0, 0.5));
  HERRING_RETURN_IF_ERROR(within(of + ".mtu", port.mtu, 576, 65535));
  return within(of + ".background", port.background, 0, kMostBackground);
}

Status check_settings(const Scenario& s) {
  HERRING_RETURN_IF_ERROR(within("size", static_cast<double>(s.size), 4, 1e14));
  HERRING_RETURN_IF_ERROR(within("pause", s.pause, 0, 3600));
  HERRING_RETURN_IF_ERROR(within("noise", s.noise, 0, 0.5));
  HERRING_RETURN_IF_ERROR(within("shared_cores", s.shared_cores, 0, 4096));
  if (s.segment_bytes < 1024 || s.segment_bytes > (1 << 20) ||
      s.segment_bytes % plan::kAlignment != 0) {
    return wrong("segment_bytes", static_cast<double>(s.segment_bytes),
                 concat("a multiple of ", plan::kAlignment, " from 1024 to 1048576"));
  }
  const auto segment = static_cast<double>(s.segment_bytes);
  HERRING_RETURN_IF_ERROR(within("frame_max", static_cast<double>(s.frame_max), 1024, 64 << 20));
  HERRING_RETURN_IF_ERROR(within("credit_max", static_cast<double>(s.credit_max), segment,
                                 segment * kMostSegments));
  if (s.credit != 0) {
    HERRING_RETURN_IF_ERROR(
        within("credit", static_cast<double>(s.credit), segment, segment * kMostSegments));
  }
  return {};
}

// Weights must be given for all servers or for none.
Status check_weights(const Scenario& s) {
  uint64_t dedicated = 0, colocated = 0, weighted = 0;
  for (size_t i = 0; i < s.servers.size(); ++i) {
    const ServerClass& each = s.servers[i];
    const std::string of = concat("servers[", i, "]");
    HERRING_RETURN_IF_ERROR(within(of + ".weight", each.weight, 0, 1e9));
    (each.colocated ? colocated : dedicated) += each.count;
    weighted += each.weight > 0;
    if (!each.colocated && colocated > 0) {
      return {Code::kConfiguration, concat(of, " is dedicated: put it before colocated classes")};
    }
    if (each.colocated && each.host >= s.hosts.size()) {
      return wrong(of + ".host", static_cast<double>(each.host),
                   concat("an index in hosts, 0 to ", s.hosts.size() - 1));
    }
    if (each.colocated && each.count != s.hosts[each.host].count) {
      return {Code::kConfiguration,
              concat(of, ".count = ", each.count, ": colocated servers run on every node of their "
                     "class, and hosts[", each.host, "] has ", s.hosts[each.host].count)};
    }
  }
  if (weighted == s.servers.size()) return {};
  if (weighted > 0) {
    return {Code::kConfiguration, concat("weight is given for ", weighted, " of ",
                                         s.servers.size(), " classes of servers: give it for all "
                                         "or for none")};
  }
  const uint64_t nodes = s.nodes();
  const uint64_t needed = dedicated < nodes ? nodes : 0;
  if (colocated != needed) {
    return {Code::kConfiguration,
            concat("with ", dedicated, " dedicated servers for ", nodes, " nodes ", needed,
                   " colocated ones run, not ", colocated, ": give this number, or give weights")};
  }
  return {};
}

}  // namespace

uint64_t Scenario::nodes() const {
  uint64_t all = 0;
  for (const HostClass& each : hosts) all += each.count;
  return all;
}

uint64_t Scenario::server_count() const {
  uint64_t all = 0;
  for (const ServerClass& each : servers) all += each.count;
  return all;
}

Status check(const Scenario& s) {
  if (s.hosts.empty()) return wrong("classes of hosts", 0, "1 or more");
  if (s.servers.empty()) return wrong("classes of servers", 0, "1 or more");
  for (size_t i = 0; i < s.hosts.size(); ++i) {
    const std::string of = concat("hosts[", i, "]");
    HERRING_RETURN_IF_ERROR(within(of + ".count", static_cast<double>(s.hosts[i].count), 1,
                                   kMostHosts));
    HERRING_RETURN_IF_ERROR(within(of + ".workers", s.hosts[i].workers, 1, 1024));
    if (s.hosts[i].workers != s.hosts[0].workers) {
      return {Code::kConfiguration,
              concat(of, ".workers = ", s.hosts[i].workers, ", hosts[0].workers = ",
                     s.hosts[0].workers, ": all nodes must have the same number")};
    }
    HERRING_RETURN_IF_ERROR(check_port(of, s.hosts[i].port));
    HERRING_RETURN_IF_ERROR(check_costs(of, s.hosts[i].costs));
  }
  for (size_t i = 0; i < s.servers.size(); ++i) {
    const std::string of = concat("servers[", i, "]");
    HERRING_RETURN_IF_ERROR(within(of + ".count", static_cast<double>(s.servers[i].count), 1,
                                   kMostHosts));
    HERRING_RETURN_IF_ERROR(check_port(of, s.servers[i].port));
    HERRING_RETURN_IF_ERROR(check_costs(of, s.servers[i].costs));
  }
  const auto nodes = static_cast<double>(s.nodes());
  if (nodes < 2) return wrong("nodes", nodes, "2 or more (a node alone pushes nothing)");
  HERRING_RETURN_IF_ERROR(within("nodes", nodes, 2, kMostHosts));
  HERRING_RETURN_IF_ERROR(
      within("servers", static_cast<double>(s.server_count()), 1, 2 * kMostHosts));
  HERRING_RETURN_IF_ERROR(check_settings(s));
  return check_weights(s);
}

std::vector<double> weights_of(const Scenario& s) {
  if (s.servers[0].weight == 0) {
    uint64_t dedicated = 0;
    for (const ServerClass& each : s.servers) dedicated += each.colocated ? 0 : each.count;
    return plan::server_weights(static_cast<uint32_t>(s.nodes()),
                                static_cast<uint32_t>(dedicated));
  }
  std::vector<double> weights;
  for (const ServerClass& each : s.servers) {
    weights.insert(weights.end(), each.count, each.weight);
  }
  return weights;
}

}  // namespace herring::simulate
