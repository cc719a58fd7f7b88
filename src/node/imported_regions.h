// The regions that one neighbour has announced, mapped here.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/fd.h"
#include "base/status.h"
#include "node/shared_memory.h"

namespace herring {

class ImportedRegions {
 public:
  // Without a descriptor, or where it cannot be mapped, the region is known and not usable. False:
  // it is known already, or has no number.
  bool add(uint32_t region, uint64_t bytes, UniqueFd passed);
  void remove(uint32_t region) { regions_.erase(region); }
  void clear() { regions_.clear(); }
  // Null: unknown. An error says why it is not mapped.
  Result<std::shared_ptr<SharedRegion>> find(uint32_t region) const;

 private:
  std::unordered_map<uint32_t, Result<std::shared_ptr<SharedRegion>>> regions_;
};

}  // namespace herring
