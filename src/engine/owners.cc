#include "engine/owners.h"

namespace herring::engine {
namespace {

constexpr size_t kMostFound = 1000;  // a program may form and destroy any number of groups

}  // namespace

void Owners::serve(const control::ServerSet& set) {
  serving_.resize(set.serving.size(), true);
  for (uint32_t server = 0; server < serving_.size(); ++server) {
    if (serving_[server] != set.has(server)) changes_.push_back({set.epoch, server});
  }
  serving_ = set.serving;
  found_.clear();
}

Owner Owners::of(const std::vector<uint32_t>& owners, uint32_t home) const {
  if (changes_.empty()) return {{home}, home};
  if (found_.size() > kMostFound) found_.clear();
  const auto [place, added] = found_[owners].try_emplace(home);
  if (added) place->second = find(owners, home);
  return place->second;
}

Owner Owners::find(const std::vector<uint32_t>& owners, uint32_t home) const {
  Owner owner{{home}, home};
  control::ServerSet set = control::ServerSet::all(serving_.size());
  for (size_t next = 0; next < changes_.size();) {
    // All changes of a version come together.
    set.epoch = changes_[next].epoch;
    for (; next < changes_.size() && changes_[next].epoch == set.epoch; ++next) {
      set.serving[changes_[next].server] = !set.serving[changes_[next].server];
    }
    if (set.has(owner.server)) continue;
    const uint32_t server = set.stand_in(home, 0, owners).server;
    if (server != control::ServerSet::kNone) owner = {{home, set.epoch}, server};
  }
  return owner;
}

}  // namespace herring::engine
