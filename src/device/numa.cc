#include "device/numa.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/signals.h"

namespace herring::device {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
constexpr int kMost = 8192;    // of nodes or CPUs; Linux has no more of either
constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

// Returns the nodes that cpusets allow this process to use.
std::vector<int> allowed_nodes() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kField = "Mems_allowed_list:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kField)) return parse_list(std::string_view(line).substr(kField.size()));
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

std::vector<int> parse_list(std::string_view list) {
  std::vector<int> numbers;
  const char* at = list.data();
  const char* const end = at + list.size();
  const auto number = [&](int& value) {
    while (at != end && (*at == ' ' || *at == '\t')) ++at;
    const auto [after, error] = std::from_chars(at, end, value);
    at = after;
    return error == std::errc() && value >= 0 && value < kMost;
  };
  for (;;) {
    int first = 0;
    if (!number(first)) return {};
    int last = first;
    if (at != end && *at == '-' && (++at, !number(last))) return {};
    for (int one = first; one <= last; ++one) numbers.push_back(one);
    if (at == end || *at != ',') return numbers;
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

int touch_on(const std::vector<int>& cpus, void* memory, size_t bytes) {
  if (cpus.empty()) return ENODEV;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
      CPU_ALLOC(kMost), [](cpu_set_t* all) { CPU_FREE(all); });
  if (!set) return ENOMEM;
  const size_t set_bytes = CPU_ALLOC_SIZE(kMost);
  CPU_ZERO_S(set_bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(cpu, set_bytes, set.get());
  int error = 0;
  const auto touch = [&] {
    // Only this thread moves. The system returns when it runs there.
    if (::sched_setaffinity(0, set_bytes, set.get()) != 0) {
      error = errno;
      return;
    }
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    auto* const bytes_there = static_cast<volatile char*>(memory);
    for (size_t at = 0; at < bytes; at += page) bytes_there[at] = 0;
  };
  try {
    const WithoutSignals mask;
    std::thread(touch).join();
  } catch (const std::system_error& none_left) {
    return none_left.code().value();
  }
  return error;
}

const NodeSystem& NodeSystem::of_this_process() {
  static const auto* const system = new NodeSystem{allowed_nodes()};
  return *system;
}

Placed place_near(int node, void* memory, size_t bytes, const NodeSystem& system) {
  const auto policy = policy_for(node, system.allowed);
  if (!policy) return Placed::kAnywhere;
  const int forbidden = system.bind(*policy, memory, bytes);
  if (forbidden == 0) return Placed::kByPolicy;
  std::string list;
  std::getline(std::ifstream(concat(system.folder, "/node", node, "/cpulist")), list);
  const int refused = touch_on(parse_list(list), memory, bytes);
  if (refused == 0) {
    log(LogLevel::kDebug, "memory for a GPU was touched first on NUMA node ", node,
        " next to it, because mbind failed: ", std::strerror(forbidden));
    return Placed::kByTouch;
  }
  log(LogLevel::kDebug, "memory for a GPU comes from any NUMA node, not from node ", node,
      " next to it: mbind failed: ", std::strerror(forbidden),
      "; no thread of this process can run there: ", std::strerror(refused));
  return Placed::kAnywhere;
}

}  // namespace herring::device
