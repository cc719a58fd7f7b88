#include "device/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <fstream>

#include "base/log.h"

namespace herring::device {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
constexpr int kMostNodes = 1024;
constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

// Returns the nodes that cpusets allow this process to use.
std::vector<int> allowed_nodes() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kField = "Mems_allowed_list:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kField)) return parse_nodes(std::string_view(line).substr(kField.size()));
  }
  return {};
}

}  // namespace

int near_node(const Properties& properties, const std::string& pci) {
  if (properties.numa_node >= 0) return properties.numa_node;
  std::string bus = properties.bus;
  std::ranges::transform(bus, bus.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(concat(pci, "/", bus, "/numa_node"));
  int node = -1;
  return file >> node ? node : -1;
}

std::vector<int> parse_nodes(std::string_view list) {
  std::vector<int> nodes;
  const char* at = list.data();
  const char* const end = at + list.size();
  const auto number = [&](int& value) {
    while (at != end && (*at == ' ' || *at == '\t')) ++at;
    const auto [after, error] = std::from_chars(at, end, value);
    at = after;
    return error == std::errc() && value >= 0 && value < kMostNodes;
  };
  for (;;) {
    int first = 0;
    if (!number(first)) return {};
    int last = first;
    if (at != end && *at == '-' && (++at, !number(last))) return {};
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    if (at == end || *at != ',') return nodes;
    ++at;
  }
}

std::optional<MemoryPolicy> policy_for(int node, const std::vector<int>& allowed) {
  if (node < 0 || allowed.size() < 2) return std::nullopt;
  if (std::ranges::find(allowed, node) == allowed.end()) return std::nullopt;
  const auto place = static_cast<size_t>(node);
  MemoryPolicy policy{kPreferred, std::vector<unsigned long>(place / kWordBits + 1)};
  policy.nodes.back() = 1ul << place % kWordBits;
  return policy;
}

int apply(const MemoryPolicy& policy, void* memory, size_t bytes) {
  // The kernel reads one bit less than it is told to.
  const unsigned long bits = policy.nodes.size() * kWordBits + 1;
  return ::syscall(SYS_mbind, memory, bytes, policy.mode, policy.nodes.data(), bits, 0u) == 0
             ? 0
             : errno;
}

void place_near(int node, void* memory, size_t bytes) {
  static const auto* const allowed = new std::vector<int>(allowed_nodes());
  const auto policy = policy_for(node, *allowed);
  if (!policy) return;
  if (const int error = apply(*policy, memory, bytes); error != 0) {
    log(LogLevel::kDebug, "memory for a GPU comes from any NUMA node, not from node ", node,
        " next to it: mbind failed: ", std::strerror(error));
  }
}

}  // namespace herring::device
