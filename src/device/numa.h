// Takes host memory for copies from the NUMA node next to the device, so that copies do not also
// cross the link between the machine's processors.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace herring::device {

// Returns the NUMA node of the host memory next to a device: as the driver knows it, else as the
// system does (`pci` is its folder of PCI devices). Returns -1 if neither knows.
int near_node(const Properties& properties, const std::string& pci = "/sys/bus/pci/devices");

// Parses a list of nodes or CPUs such as "0-1,4". Returns nothing if the text is not such a list.
std::vector<int> parse_list(std::string_view list);

// The arguments of mbind(): a policy, and the nodes as a bit mask.
struct MemoryPolicy {
  int mode;
  std::vector<unsigned long> nodes;
};
// Returns the policy for memory near `node`, for a process that may use the memory of the `allowed`
// nodes. Returns nothing if there is no choice, or if `node` is not allowed.
std::optional<MemoryPolicy> policy_for(int node, const std::vector<int>& allowed);

// Applies the policy to whole pages that nobody has touched yet. Returns 0 or an errno.
int apply(const MemoryPolicy& policy, void* memory, size_t bytes);

// Touches whole pages that nobody has touched yet in a short-lived thread on these CPUs, so that
// the system takes the pages from the memory next to them. Returns 0 or an errno.
int touch_on(const std::vector<int>& cpus, void* memory, size_t bytes);

// What place_near() needs of the system.
struct NodeSystem {
  std::vector<int> allowed;  // nodes whose memory this process may use
  int (*bind)(const MemoryPolicy& policy, void* memory, size_t bytes) = apply;
  std::string folder = "/sys/devices/system/node";

  static const NodeSystem& of_this_process();
};

enum class Placed { kAnywhere, kByPolicy, kByTouch };

// Takes pages that nobody has touched yet from this node; -1 means any node. The system is told a
// policy. If it forbids that (as containers do), a thread on the node's CPUs touches the pages. If
// that is not possible either, or the node is full, pages come from any node.
Placed place_near(int node, void* memory, size_t bytes,
                  const NodeSystem& system = NodeSystem::of_this_process());

}  // namespace herring::device
