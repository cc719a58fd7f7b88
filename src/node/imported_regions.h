// The regions that one neighbour has announced, as they are mapped here.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "node/shared_memory.h"

namespace herring {

class ImportedRegions {
 public:
  // Adds a region. Without descriptors, or if they cannot be mapped, the region is known but not
  // usable. Returns false if the region is already known or has no number.
  bool add(uint32_t region, uint64_t bytes, std::vector<UniqueFd> passed);
  void remove(uint32_t region) { regions_.erase(region); }
  void clear() { regions_.clear(); }
  // Returns null if the region is unknown, or an error that says why it is not mapped.
  Result<std::shared_ptr<SharedRegion>> find(uint32_t region) const;

 private:
  std::unordered_map<uint32_t, Result<std::shared_ptr<SharedRegion>>> regions_;
};

}  // namespace herring
