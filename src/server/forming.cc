// How the coordinator forms groups: each one gets a number that no other group of the job has.
//
// A server may be lost when it has told the number to some members only. None of these uses the
// group before all servers that are left, and replacements that come meanwhile, know it from all
// members. Until then, they announce the number to the server that answers instead, which gives it
// to the others. Members that use the group already announce nothing: nobody lacks the number.
#include <limits>

#include <algorithm>

#include "server/coordinator.h"

namespace herring::server {
namespace {

using control::Group;
using wire::Announce;

// Numbers of groups that are formed in later reigns, and how many there may be in each.
constexpr uint64_t kLaterGroups = uint64_t{1} << 31;
constexpr uint32_t kMostFormed = 1 << 12;

}  // namespace

// Returns the group that the call is for. For a call that forms a group, that is the future group.
Result<std::shared_ptr<JobGroup>> Coordinator::group_of(uint32_t group, const Announce& message,
                                                        uint32_t rank) const {
  const auto wrong = [&](const std::string& what) {
    return breach("rank ", rank, " announced '", message.name, "' ", what);
  };
  const auto* const forms = std::get_if<wire::FormGroup>(&message.what);
  if (forms == nullptr) {
    auto found = groups_.find(group);
    if (!found) return wrong(concat("in group ", group, ", which it did not define"));
    if (!found->members.has(rank)) return wrong(concat("in group ", group, " as a non-member"));
    return found;
  }
  if (Status fits = control::Group::check(cluster_, forms->ranks); !fits.ok()) {
    return wrong(concat("with an impossible group: ", fits.message()));
  }
  auto formed = std::make_shared<JobGroup>(
      cluster_, control::Group(Group::kForming, cluster_, forms->ranks, message.name), 1);
  if (!formed->members.has(rank)) return wrong("without being a member");
  groups_.note_gone(*formed);
  return formed;
}

// Returns the place of a call. A group is known by its ranks, too, until it is formed. One member
// may form the next group of that name while others still wait for this one.
Coordinator::Name Coordinator::name_of(const Home& home, const Announce& message) {
  const auto* const forms = std::get_if<wire::FormGroup>(&message.what);
  if (forms == nullptr) return {home, message.name};
  return {home, concat(message.name, '\n', list_ranks(forms->ranks), '\n', forms->turn)};
}

// Notes that a member has the group's number from a server that is lost, and gives it to members
// that wait.
Status Coordinator::note_number(const Name& name, uint32_t number, uint32_t rank, uint32_t index,
                                std::vector<Answer>& out) {
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
  const auto found = names_.find(name);
  if (found == names_.end()) return {};
  Calls& calls = found->second;
  count_numbered(name, calls.front());
  advance(calls, calls.begin(), out);
  if (calls.empty()) names_.erase(found);
  return {};
}

// Members that have the number need not call again.
void Coordinator::count_numbered(const Name& name, Pending& pending) const {
  const auto found = numbered_.find(name);
  if (found == numbered_.end()) return;
  for (const uint32_t index : found->second.by) pending.count(index);
}

// Every server forms groups, so each reign has numbers of its own.
void Coordinator::form(const Pending& pending, const Announces& calls, std::vector<Answer>& out) {
  const Reign& reign = pending.reign;
  const auto known = numbered_.extract(name_of({Group::kForming, reign.home}, first_of(calls)));
  uint64_t number = 0;
  bool possible = true;
  if (!known.empty()) {
    number = known.mapped().number;
  } else {
    const uint32_t formed = formed_[reign]++;
    const bool later = reign.epoch != 0;
    const uint64_t place = later ? uint64_t{reign.epoch} * kMostFormed + formed : formed;
    number = (later ? kLaterGroups : 1) + place * servers_ + reign.home;
    possible = number < (later ? Group::kForming : kLaterGroups) &&
               (!later || formed < kMostFormed);
  }
  for (uint32_t index = 0; index < calls.size(); ++index) {
    if (calls[index] == nullptr) continue;
    const uint32_t rank = pending.group->members.ranks()[index];
    if (!possible) {
      out.push_back(error_answer(rank, calls[index]->id,
                                 {Code::kInvalidArgument, "this job has formed too many groups"}));
      continue;
    }
    wire::FrameHeader header;
    header.type = wire::FrameType::kReply;
    out.push_back({rank, header, encode(wire::Go{calls[index]->id, {number}})});
  }
}

}  // namespace herring::server
