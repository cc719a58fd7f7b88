#include "node/imported_regions.h"

#include <utility>

namespace herring {

bool ImportedRegions::add(uint32_t region, uint64_t bytes, UniqueFd passed) {
  if (region == 0 || regions_.contains(region)) return false;
  // The kernel drops a descriptor that does not fit into this process' table.
  auto mapped = passed ? SharedRegion::map(std::move(passed), bytes)
                       : Result<std::shared_ptr<SharedRegion>>(Status(
                             Code::kInternal, "no descriptor arrived with it: the limit of open "
                                              "files is reached"));
  regions_.emplace(region, std::move(mapped));
  return true;
}

Result<std::shared_ptr<SharedRegion>> ImportedRegions::find(uint32_t region) const {
  const auto found = regions_.find(region);
  return found == regions_.end() ? std::shared_ptr<SharedRegion>() : found->second;
}

}  // namespace herring
