#include "worker/handovers.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "worker/engine_core.h"

namespace herring::worker {
namespace {

// Returns how many elements of an all-to-all this rank has for each rank.
std::vector<uint64_t> own_elements(const Call& call) {
  std::vector<uint64_t> own;
  if (const auto* alltoall = std::get_if<wire::AllToAll>(&call.what)) {
    own = alltoall->rows;
    for (uint64_t& one : own) one *= call.buffers.front().array.row_elements();
  }
  return own;
}

}  // namespace

// Returns whether the server of this home has been asked about an operation and has not answered.
bool Handovers::is_asked(const Operation& operation, const Group& group, uint32_t home) const {
  const Call& call = operation.call_;
  const bool forms = wire::is<wire::FormGroup>(call.what);
  return !operation.launched_ && !forms && call.group.get() == &group &&
         (operation.asked_.reign.home == home || wire::is<wire::Join>(call.what));
}

bool Handovers::can_move(const control::ServerSet& set) const {
  Owners next = owners_;
  next.serve(set);
  return std::ranges::none_of(named_.operations(), [&](const auto& one) {
    const Operation& operation = *one.second;
    const wire::Collective& what = operation.call_.what;
    if (operation.launched_ || operation.formed) return false;
    const std::vector<uint32_t>& owners = operation.call_.group->shards().owners;
    if (wire::is<wire::Join>(what)) {
      return std::ranges::any_of(owners, [&](uint32_t home) {
        return !set.has(owners_.of(owners, home).server);
      });
    }
    if (set.has(operation.asked_.server)) return false;
    return wire::is_message(what) || wire::is<wire::FormGroup>(what) ||
           !set.has(next.of(owners, operation.asked_.reign.home).server);
  });
}

void Handovers::serve(const control::ServerSet& set) {
  const Owners before = owners_;
  owners_.serve(set);
  for (const auto& group : engine_.membership().groups()) {
    const std::vector<uint32_t>& owners = group->shards().owners;
    for (const uint32_t home : owners) {
      const Owner owner = owners_.of(owners, home);
      if (owner == before.of(owners, home) || !set.has(owner.server)) continue;
      move(*group, owner);
      engine_.move_partial(*group, owner);
    }
  }
  // Servers that are gone need not know the groups that are being formed.
  std::vector<std::shared_ptr<Operation>> forming;
  for (const auto& [id, operation] : named_.operations()) {
    if (operation->formed) forming.push_back(operation);
  }
  for (const auto& operation : forming) {
    for (const uint32_t server : std::vector(operation->unconfirmed_)) {
      if (!set.has(server)) named_.confirmed(*operation, server);
    }
  }
}

// Everything is announced again before the hand-over, so that the new owner knows all of it when it
// has heard the last rank.
void Handovers::move(const Group& group, const Owner& owner) {
  if ((group.size() == 1 && !group.is_world()) || !group.called_off().ok()) return;
  const uint32_t home = owner.reign.home;
  std::vector<uint64_t> ids;
  for (const auto& [id, operation] : named_.operations()) {
    if (is_asked(*operation, group, home)) ids.push_back(id);
  }
  for (const auto& [id, refusal] : refusals_) {
    const bool here = refusal.group == group.id() &&
                      group.shards().owner_of(refusal.message.name) == home;
    if (here) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    if (const auto refusal = refusals_.find(id); refusal != refusals_.end()) {
      send(refusal->second, owner);
      continue;
    }
    Operation& operation = *named_.find(id);
    operation.asked_ = owner;
    operation.started_ = engine_.loop()->now();  // the new owner gives it all the time
    static_cast<void>(named_.announce(operation, owner));
  }
  hand_over(group, owner);
}

void Handovers::hand_over(const Group& group, const Owner& owner) {
  wire::FrameHeader header;
  header.type = wire::FrameType::kHandOver;
  header.group = group.id();
  header.stream = owner.reign.home;
  header.round = owner.reign.epoch;
  const auto found = answers_.find({group.id(), owner.reign.home});
  engine_.links().send_control(
      owner.server, header,
      encode(found == answers_.end() ? wire::Handover() : found->second.tell()));
}

void Handovers::begin(const Group& group) {
  for (const uint32_t home : group.shards().owners) {
    const Owner owner = owners_.of(group.shards().owners, home);
    const bool later = owner.reign != Reign{home} && owners_.has(owner.server);
    if (!later) continue;
    if (group.size() > 1) hand_over(group, owner);
    engine_.move_partial(group, owner);
  }
}

void Handovers::forget(uint32_t group) {
  std::erase_if(answers_, [group](const auto& one) { return one.first.first == group; });
  std::erase_if(refusals_, [group](const auto& one) { return one.second.group == group; });
  engine_.forget_partial(group);
}

void Handovers::refuse(const Group& group, wire::Announce refusal) {
  const Owner owner = owner_of(group, refusal.name);
  if (!engine_.options().failover) return send({group.id(), std::move(refusal)}, owner);
  refusal.id = named_.new_id();
  const uint64_t id = refusal.id;
  send(refusals_.emplace(id, Refusal{group.id(), std::move(refusal)}).first->second, owner);
}

void Handovers::send(const Refusal& refusal, const Owner& owner) {
  wire::FrameHeader header;
  header.type = wire::FrameType::kAnnounce;
  header.group = refusal.group;
  header.stream = owner.reign.home;
  header.round = owner.reign.epoch;
  engine_.links().send_control(owner.server, header, encode(refusal.message));
}

Result<bool> Handovers::receive(uint32_t server, const wire::FrameHeader& header,
                                std::string_view payload) {
  const uint64_t number = wire::answer_number(header);
  uint64_t id = 0;
  if (number == 0 || !engine_.options().failover || payload.size() < sizeof(id)) return true;
  const auto group = engine_.membership().find(header.group);
  if (!group) return true;  // it was destroyed in the meantime
  const std::vector<uint32_t>& owners = group->shards().owners;
  const uint32_t home =
      home_of(header.stream, static_cast<uint32_t>(engine_.cluster().servers.size()));
  if (std::ranges::count(owners, home) == 0) {
    return breach("answered for server ", home, group->members().suffix());
  }
  if (owners_.of(owners, home).server != server) return false;
  Answers& answers = answers_[{header.group, home}];
  std::memcpy(&id, payload.data(), sizeof(id));
  const auto operation = named_.find(id);
  if (operation && wire::is<wire::Join>(operation->call_.what) &&
      header.type == wire::FrameType::kReply) {
    answers.forget(number);  // all calls that others made without this rank are over
    return true;
  }
  if (group->joins_now) return true;
  HERRING_RETURN_IF_ERROR(answers.receive(number));
  wire::KeptAnswer kept{number, header.type, header.stream, header.round, {},
                        std::string(payload.substr(sizeof(id))), {}};
  if (operation) {
    kept.name = operation->call_.name;
    kept.own = own_elements(operation->call_);
    answers.keep(std::move(kept));
  } else if (const auto refusal = refusals_.extract(id); !refusal.empty()) {
    kept.name = refusal.mapped().message.name;
    answers.keep(std::move(kept));
  }
  return true;
}

}  // namespace herring::worker
