#include "node/imported_regions.h"

#include <utility>

namespace herring {

bool ImportedRegions::add(uint32_t region, uint64_t bytes, std::vector<UniqueFd> passed) {
  if (region == 0 || regions_.contains(region)) return false;
  // The kernel drops descriptors that do not fit into this process' table.
  auto mapped = passed.empty()
                    ? Result<std::shared_ptr<SharedRegion>>(Status(
                          Code::kInternal, "no descriptor arrived with it: the limit of open "
                                           "files is reached"))
                    : SharedRegion::map(std::move(passed), bytes);
  regions_.emplace(region, std::move(mapped));
  return true;
}

Result<std::shared_ptr<SharedRegion>> ImportedRegions::find(uint32_t region) const {
  const auto found = regions_.find(region);
  return found == regions_.end() ? std::shared_ptr<SharedRegion>() : found->second;
}

}  // namespace herring
