#include "server/group_numbers.h"

#include <algorithm>

#include "base/lists.h"

namespace herring::server {
namespace {

using control::Group;

// Numbers of groups that are formed in later reigns, and how many there may be in each.
constexpr uint64_t kLaterGroups = uint64_t{1} << 31;
constexpr uint32_t kMostFormed = 1 << 12;

}  // namespace

Name name_of(const Home& home, const wire::Announce& message) {
  const auto* const forms = std::get_if<wire::FormGroup>(&message.what);
  if (forms == nullptr) return {home, message.name};
  return {home, concat(message.name, '\n', list_ranks(forms->ranks), '\n', forms->turn)};
}

Status GroupNumbers::note(const Name& name, uint32_t number, uint32_t rank, uint32_t index) {
  const auto wrong = [&](const auto&... what) {
    return breach("rank ", rank, " says that a group has number ", number, what...);
  };
  if (number >= Group::kForming) return wrong(", which is impossible");
  if (numbered_.size() >= GroupTable::kMost && !numbered_.contains(name)) {
    return wrong(", and there are too many such groups");
  }
  Numbered& known = numbered_[name];
  if (known.number != 0 && known.number != number) return wrong("; others say ", known.number);
  if (std::ranges::count(known.by, index) > 0) return wrong(" twice");
  known.number = number;
  known.by.push_back(index);
  return {};
}

void GroupNumbers::count(const Name& name, Pending& pending) const {
  const auto found = numbered_.find(name);
  if (found == numbered_.end()) return;
  for (const uint32_t index : found->second.by) pending.count(index);
}

// Every server forms groups, so each reign has numbers of its own.
std::optional<uint32_t> GroupNumbers::take(const Name& name, const Reign& reign) {
  if (const auto known = numbered_.extract(name)) return known.mapped().number;
  const uint32_t formed = formed_[reign]++;
  const bool later = reign.epoch != 0;
  const uint64_t place = later ? uint64_t{reign.epoch} * kMostFormed + formed : formed;
  const uint64_t number = (later ? kLaterGroups : 1) + place * servers_ + reign.home;
  const bool possible = number < (later ? Group::kForming : kLaterGroups) &&
                        (!later || formed < kMostFormed);
  return possible ? std::optional(static_cast<uint32_t>(number)) : std::nullopt;
}

}  // namespace herring::server
