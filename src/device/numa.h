// Host memory for copies comes from the NUMA node next to the device, so that they do not cross the
// link between the machine's processors as well.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace herring::device {

// The node of the host's memory that a device is next to, as its driver knows it, else as the
// system does (`pci`: its folder of PCI devices); -1: neither knows.
int near_node(const Properties& properties, const std::string& pci = "/sys/bus/pci/devices");

// The nodes of a list such as "0-1,4"; nothing where it is none.
std::vector<int> parse_nodes(std::string_view list);

// What mbind() is told: a policy, and the nodes that it names, a bit each.
struct MemoryPolicy {
  int mode;
  std::vector<unsigned long> nodes;
};
// For memory near `node`, of a process that may use the memory of the `allowed` ones; none where
// there is no choice, or the node is not one of them.
std::optional<MemoryPolicy> policy_for(int node, const std::vector<int>& allowed);

// Of whole pages which nobody has touched yet. 0, or an errno.
int apply(const MemoryPolicy& policy, void* memory, size_t bytes);

// Asks for such pages on this node; -1: anywhere. Where it is full, or the system does not permit
// it (containers), they come from anywhere too.
void place_near(int node, void* memory, size_t bytes);

}  // namespace herring::device
