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

// Parses a list of nodes such as "0-1,4". Returns nothing if the text is not such a list.
std::vector<int> parse_nodes(std::string_view list);

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

// Asks the system for such pages on this node; -1 means any node. If the node is full, or the
// system forbids it (as containers do), pages come from any node.
void place_near(int node, void* memory, size_t bytes);

}  // namespace herring::device
