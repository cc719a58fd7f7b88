#include "observe/looks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace herring::observe {

void Looks::add(std::string cause, std::string stack, Nanos when) {
  if (looks_.size() == kMost) looks_.pop_front();
  looks_.push_back({std::move(cause), std::move(stack), when});
}

Looks::Reason Looks::reason(Nanos now, Nanos work, Nanos usual) const {
  std::map<std::string, size_t> counts;
  size_t all = 0;
  for (const Look& look : looks_) {
    if (now - look.when > kMemory) continue;
    ++counts[look.cause];
    ++all;
  }
  if (all == 0) return {};
  // The part of the time that is to be explained.
  const double longer = work > usual && work > 0 ? static_cast<double>(work - usual) /
                                                       static_cast<double>(work)
                                                 : 1;
  std::string cause;
  size_t most = 0;
  for (const auto& [one, count] : counts) {
    const bool explains = static_cast<double>(count) >= 0.5 * longer * static_cast<double>(all);
    if (one.empty() || one == "compute" || !explains || count <= most) continue;
    cause = one;
    most = count;
  }
  if (cause.empty() && counts.count("compute") != 0) cause = "compute";
  const auto seen = std::find_if(looks_.rbegin(), looks_.rend(), [&cause](const Look& look) {
    return look.cause == cause;
  });
  return {cause, seen == looks_.rend() ? std::string() : seen->stack};
}

}  // namespace herring::observe
