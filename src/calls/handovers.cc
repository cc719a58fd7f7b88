#include "calls/handovers.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "calls/calls.h"

namespace herring::calls {
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

control::ShardMap shards_of(const wire::FormGroup& forms, const control::Cluster& cluster) {
  return control::shard_map(
      cluster, control::Group(control::Group::kForming, cluster, forms.ranks, ""));
}

}  // namespace

Owner Handovers::owner_of(const wire::FormGroup& forms, const std::string& name) const {
  const control::ShardMap shards = shards_of(forms, core_.cluster);
  return core_.owners.of(shards.owners, shards.owner_of(name));
}

// Returns the homes of the group's names. For a call that forms a group, that is the future group.
std::vector<uint32_t> Handovers::owners_of(const Call& call) const {
  const auto* const forms = std::get_if<wire::FormGroup>(&call.what);
  if (forms == nullptr) return call.group->shards().owners;
  return shards_of(*forms, core_.cluster).owners;
}

// Returns whether the server of this home has been asked about an operation and has not answered.
bool Handovers::is_asked(const Underway& operation, const Group& group, uint32_t home) const {
  const Call& call = operation.call;
  const bool forms = wire::is<wire::FormGroup>(call.what);
  return !operation.launched && !forms && call.group.get() == &group &&
         (wire::is<wire::Join>(call.what)
              ? std::ranges::count(operation.unconfirmed, home) > 0
              : operation.asked.reign.home == home);
}

bool Handovers::can_move(const control::ServerSet& set) const {
  engine::Owners next = core_.owners;
  next.serve(set);
  return std::ranges::none_of(calls_.operations(), [&](const auto& one) {
    const Underway& operation = *one.second;
    const wire::Collective& what = operation.call.what;
    if (operation.launched || operation.handle->formed) return false;
    const std::vector<uint32_t> owners = owners_of(operation.call);
    if (wire::is<wire::Join>(what)) {
      return std::ranges::any_of(operation.unconfirmed, [&](uint32_t home) {
        return !set.has(next.of(owners, home).server);
      });
    }
    if (set.has(operation.asked.server)) return false;
    return !set.has(next.of(owners, operation.asked.reign.home).server);
  });
}

std::vector<std::shared_ptr<Underway>> Handovers::forming() const {
  std::vector<std::shared_ptr<Underway>> found;
  for (const auto& [id, operation] : calls_.operations()) {
    if (wire::is<wire::FormGroup>(operation->call.what)) found.push_back(operation);
  }
  return found;
}

// Members of a group that is being formed may lack its number. They get it before this rank uses
// the group, also if of its servers the replacement is the last.
uint64_t Handovers::confirms(uint32_t server, const Group& group) {
  for (const auto& operation : forming()) {
    if (operation->handle->formed.get() != &group || !group.is_known_to(server)) continue;
    operation->unconfirmed.push_back(server);
    return operation->id;
  }
  return 0;
}

void Handovers::drop(uint32_t server) {
  for (const auto& operation : forming()) calls_.confirmed(*operation, server);
}

// Servers that are gone need not know the groups. Members that have their group's number say it to
// the new owner, because others may lack it.
void Handovers::serve(const control::ServerSet& set) {
  for (const auto& operation : forming()) {
    for (const uint32_t server : std::vector(operation->unconfirmed)) {
      if (!set.has(server) && !core_.presence.comes(server)) {
        calls_.confirmed(*operation, server);
      }
    }
    const Owner owner = core_.owners.of(owners_of(operation->call), operation->asked.reign.home);
    const bool moves = calls_.find(operation->id) && owner != operation->asked;
    if (!moves || !set.has(owner.server)) continue;
    operation->asked = owner;
    operation->started = core_.loop->now();  // the new owner gives it all the time
    static_cast<void>(calls_.announce(*operation, owner));
  }
}

// Everything is announced again before the hand-over, so that the new owner knows all of it when it
// has heard the last rank.
void Handovers::move(const Group& group, const Owner& owner) {
  if ((group.size() == 1 && !group.is_world()) || !group.called_off().ok()) return;
  const uint32_t home = owner.reign.home;
  std::vector<uint64_t> ids;
  for (const auto& [id, operation] : calls_.operations()) {
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
    Underway& operation = *calls_.find(id);
    // A join is asked of all owners; one of them says which rank was last.
    if (operation.asked.reign.home == home) operation.asked = owner;
    operation.started = core_.loop->now();  // the new owner gives it all the time
    static_cast<void>(calls_.announce(operation, owner));
  }
  hand_over(group, owner);
}

void Handovers::hand_over(const Group& group, const Owner& owner) {
  wire::FrameHeader header{.type = wire::FrameType::kHandOver, .group = group.id(),
                           .stream = owner.reign.home, .round = owner.reign.epoch};
  const auto found = answers_.find({group.id(), owner.reign.home});
  wire::Handover told = found == answers_.end() ? wire::Handover() : found->second.tell();
  tell_met(group, owner.reign.home, told.met);
  core_.links->send_control(owner.server, header, encode(told));
}

// Bytes of a message move only when both ranks have heard that it has met its counterpart. So what
// is over here concerns nobody else, unless it failed at once.
void Handovers::tell_met(const Group& group, uint32_t home, std::vector<wire::Met>& met) {
  const auto servers = static_cast<uint32_t>(core_.cluster.servers.size());
  for (const auto& [id, operation] : calls_.operations()) {
    const bool here = operation->met && operation->call.group.get() == &group &&
                      home_of(operation->met->stream, servers) == home;
    if (!here) continue;
    wire::Met& one = met.emplace_back(*operation->met);
    const uint64_t tag = operation->handle->counts.at(1);
    one.text = encode(wire::Go{0, {group.index(), tag}}).substr(sizeof(wire::Go::id)) +
               *calls_.meeting().own_address();
  }
  const auto found = mismatches_.find({group.id(), home});
  if (found != mismatches_.end()) met.insert(met.end(), found->second.begin(), found->second.end());
}

void Handovers::forget(uint32_t group) {
  std::erase_if(answers_, [group](const auto& one) { return one.first.first == group; });
  std::erase_if(mismatches_, [group](const auto& one) { return one.first.first == group; });
  std::erase_if(refusals_, [group](const auto& one) { return one.second.group == group; });
}

void Handovers::join(const Group& group) {
  for (const uint32_t home : group.shards().owners) answers_[{group.id(), home}].join();
}

std::vector<Handovers::Complete> Handovers::complete() const {
  std::vector<Complete> all;
  for (const auto& [where, answers] : answers_) {
    const uint64_t number = answers.complete();
    if (number > 0) all.push_back({where.first, where.second, number});
  }
  return all;
}

void Handovers::settle(const Complete& all) {
  const auto found = answers_.find({all.group, all.home});
  if (found != answers_.end()) found->second.settle(all.number);
}

size_t Handovers::bytes_kept() const {
  size_t bytes = 0;
  for (const auto& [where, answers] : answers_) bytes += answers.bytes();
  return bytes;
}

void Handovers::refuse(const Group& group, wire::Announce refusal) {
  const Owner owner = core_.owner_of(group, refusal.name);
  if (!core_.options.failover) return send({group.id(), std::move(refusal)}, owner);
  refusal.id = calls_.new_id();
  const uint64_t id = refusal.id;
  send(refusals_.emplace(id, Refusal{group.id(), std::move(refusal)}).first->second, owner);
}

void Handovers::send(const Refusal& refusal, const Owner& owner) {
  wire::FrameHeader header{.type = wire::FrameType::kAnnounce, .group = refusal.group,
                           .stream = owner.reign.home, .round = owner.reign.epoch};
  core_.links->send_control(owner.server, header, encode(refusal.message));
}

// Notes that a message has met its counterpart.
Result<bool> Handovers::receive_met(uint32_t server, const wire::FrameHeader& header,
                                    std::string_view payload) {
  uint64_t id = 0;
  std::memcpy(&id, payload.data(), sizeof(id));
  const auto operation = calls_.find(id);
  if (!operation) return true;
  if (!wire::is_message(operation->call.what)) return breach("answered a call like a message");
  if (operation->asked.server != server) return false;
  wire::Met met{id, header.round, wire::answer_number(header), header.type, header.stream, 0, {}};
  if (header.type == wire::FrameType::kOpError) {
    met.text = payload.substr(sizeof(id));
    auto& latest = mismatches_[{header.group, operation->asked.reign.home}];
    latest.push_back(std::move(met));
    if (latest.size() > wire::kMostKept) latest.pop_front();
    return true;
  }
  std::string_view address;
  HERRING_ASSIGN_OR_RETURN(auto& go, wire::decode_go(payload, &address));
  if (go.counts.size() != 2) return true;  // Mover refuses it
  met.other = static_cast<uint32_t>(go.counts[0]);
  met.ticket = header.round;
  operation->met = std::move(met);
  return true;
}

Result<bool> Handovers::receive(uint32_t server, const wire::FrameHeader& header,
                                std::string_view payload) {
  const uint64_t number = wire::answer_number(header);
  uint64_t id = 0;
  if (!core_.options.failover || payload.size() < sizeof(id)) return true;
  std::memcpy(&id, payload.data(), sizeof(id));
  const auto operation = calls_.find(id);
  if (number == 0) {
    const bool numbers = operation && wire::is<wire::FormGroup>(operation->call.what) &&
                         !operation->handle->formed;
    return !numbers || operation->asked.server == server;
  }
  if (header.flags & wire::kFlagMet) return receive_met(server, header, payload);
  const auto group = core_.groups.find(header.group);
  if (!group) return true;  // it was destroyed in the meantime
  const std::vector<uint32_t>& owners = group->shards().owners;
  const uint32_t home =
      home_of(header.stream, static_cast<uint32_t>(core_.cluster.servers.size()));
  if (std::ranges::count(owners, home) == 0) {
    return breach("answered for server ", home, group->members().suffix());
  }
  if (core_.owners.of(owners, home).server != server) return false;
  Answers& answers = answers_[{header.group, home}];
  const bool joins = operation && wire::is<wire::Join>(operation->call.what);
  if (joins && header.type == wire::FrameType::kReply) {
    answers.all_joined(number);
  } else {
    HERRING_RETURN_IF_ERROR(answers.receive(number));
  }
  wire::KeptAnswer kept{number, header.type, header.stream, header.round, {},
                        std::string(payload.substr(sizeof(id))), {}};
  if (operation) {
    kept.name = operation->announced_name();
    kept.own = own_elements(operation->call);
    // One that is made again takes all ranks that took part before.
    const bool without = header.type == wire::FrameType::kGo && operation->again.empty() &&
                         wire::goes_without_joined(operation->call.what);
    if (without) kept.call = encode(calls_.announcement_of(*operation));
    answers.keep(std::move(kept));
  } else if (id == 0 && header.type == wire::FrameType::kGo) {
    std::string_view announced;
    if (!wire::decode_go(payload, &announced).ok()) return true;  // Joins refuses it
    const auto call = wire::decode_announce(announced);
    if (!call.ok()) return true;
    kept.name = call->name;
    kept.text = encode(wire::Go{0, {}, call->servers}).substr(sizeof(id));
    kept.call = announced;
    answers.keep(std::move(kept));
  } else if (const auto refusal = refusals_.extract(id); !refusal.empty()) {
    kept.name = refusal.mapped().message.name;
    answers.keep(std::move(kept));
  }
  return true;
}

}  // namespace herring::calls
