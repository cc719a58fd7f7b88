#include "tests/random/program.h"

#include <algorithm>

namespace herring::random_test {

std::string Layout::describe() const {
  std::string text = concat(size, " ranks on ", nodes, " nodes (");
  for (uint32_t rank = 0; rank < size; ++rank) text += concat(rank > 0 ? " " : "", node_of[rank]);
  text += concat("), ", dedicated, " dedicated servers, ", lanes, " lanes, ", generations,
                 " jobs;");
  for (const auto& [name, value] : settings) text += concat(" ", name, "=", value);
  return text;
}

Layout make_layout(uint64_t seed, uint32_t features) {
  Random random({seed, 1});
  Layout layout;
  layout.size = random.chance(0.06) ? 1 : static_cast<uint32_t>(random.from_to(2, 8));
  layout.nodes = static_cast<uint32_t>(random.from_to(1, std::min(layout.size, 4u)));
  layout.node_of.resize(layout.size);
  const bool blocks = random.chance(0.6);
  for (uint32_t rank = 0; rank < layout.size; ++rank) {
    layout.node_of[rank] = blocks ? rank * layout.nodes / layout.size
                           : rank < layout.nodes ? rank
                                                 : static_cast<uint32_t>(
                                                       random.below(layout.nodes));
  }
  layout.dedicated = random.chance(0.4) ? 0 : static_cast<uint32_t>(random.from_to(1, 3));
  layout.lanes = features & kLanes ? static_cast<uint32_t>(random.from_to(1, 3)) : 1;
  layout.generations = features & kAgain ? static_cast<uint32_t>(random.from_to(1, 3)) : 1;
  auto& settings = layout.settings;
  layout.segment_bytes = random.pick({1024u, 1088u, 4096u, 8192u, 8192u, 65536u});
  layout.small_bytes = random.pick({0u, 100u, 4096u, 65536u});
  const uint64_t segment = layout.segment_bytes;
  settings["segment_bytes"] = std::to_string(segment);
  settings["small_bytes"] = std::to_string(layout.small_bytes);
  settings["proxies"] =
      std::to_string(features & kProxies ? random.pick({1u, 2u, 4u}) : 1u);
  settings["flows"] = std::to_string(random.from_to(1, 3));
  if (random.chance(0.4)) {
    settings["credit"] = std::to_string(segment * random.from_to(1, 40));
  } else {
    settings["credit_max"] = std::to_string(segment * random.pick({1u, 4u, 16u, 128u}));
  }
  settings["frame_max"] = std::to_string(segment * random.pick({1u, 2u, 7u, 64u}));
  if (random.chance(0.5)) {
    settings["buffer_bytes"] = std::to_string(segment * random.from_to(1, 40));
  }
  if (random.chance(0.08)) settings["shm"] = "false";
  // These are longer than the patience of this test: a wait that only its deadline ends counts as a
  // hang.
  settings["timeout"] = "600";
  settings["warn_after"] = "30";
  settings["connect_timeout"] = "60";
  settings["heartbeat_timeout"] = "60";
  settings["log_level"] = "error";
  if (features & kWeights && random.chance(0.2)) {
    const uint32_t nodes = settings.contains("shm") ? layout.size : layout.nodes;
    const uint32_t servers = layout.dedicated == 0    ? nodes
                             : layout.dedicated < nodes ? layout.dedicated + nodes
                                                        : layout.dedicated;
    std::string weights;
    for (uint32_t s = 0; s < servers; ++s) {
      weights += concat(s > 0 ? "," : "", s > 0 && random.chance(0.15) ? 0 : random.from_to(1, 4));
    }
    settings["server_weights"] = weights;
  }
  if (random.chance(0.2)) settings["tls"] = "psk";
  // No server dies here, but results are kept and exchanges end otherwise.
  if (random.chance(0.3)) settings["failover"] = "true";
  return layout;
}

}  // namespace herring::random_test
