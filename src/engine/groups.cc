#include "engine/groups.h"

#include <algorithm>
#include <utility>

#include "engine/core.h"
#include "wire/messages.h"

namespace herring::engine {
namespace {

// A program may form and destroy any number of groups.
constexpr size_t kMostDestroyed = 256;

}  // namespace

Groups::Groups(Core& core)
    : core_(core),
      world_(std::make_shared<Group>(core.cluster, control::Group(core.cluster),
                                     core.options.rank)) {}

std::vector<std::shared_ptr<Group>> Groups::all() const {
  std::vector<std::shared_ptr<Group>> all{world_};
  for (const auto& [number, group] : groups_) all.push_back(group);
  return all;
}

std::shared_ptr<Group> Groups::find(uint32_t number) const {
  if (number == control::Group::kWorld) return world_;
  const auto found = groups_.find(number);
  return found == groups_.end() ? nullptr : found->second;
}

std::shared_ptr<Group> Groups::define(uint32_t number, const std::string& name,
                                      std::vector<uint32_t> ranks, uint64_t id) {
  auto group = std::make_shared<Group>(
      core_.cluster, control::Group(number, core_.cluster, std::move(ranks), name),
      core_.options.rank);
  groups_[number] = group;
  core_.program->groups().add(number, name, group->members().ranks());
  const std::vector<uint32_t>& owners = group->shards().owners;
  core_.links->add_group(number, owners, group->steers(), group->members().even());
  for (const uint32_t server : group->servers()) {
    if (!core_.presence.has_ended(server)) tell_of(*group, server, id, 0);
  }
  // Where a home has another owner already, that one hears of the group as if it took over now.
  for (const uint32_t home : owners) {
    const Owner owner = core_.owners.of(owners, home);
    if (owner.reign == Reign{home} || !core_.owners.has(owner.server)) continue;
    for (Carrier* carrier : core_.carriers) carrier->move(*group, owner);
  }
  return group;
}

void Groups::tell_of(const Group& group, uint32_t server, uint64_t id, uint8_t flags) {
  wire::FrameHeader header{.type = wire::FrameType::kGroup, .flags = flags, .group = group.id()};
  const control::Group& members = group.members();
  core_.links->send_control(server, header,
                            encode(wire::GroupMessage{id, members.name(), members.ranks()}));
}

// A process that died or left while the group was formed counts as gone for this group, too.
void Groups::formed(const std::shared_ptr<Group>& group) {
  for (const control::Loss& loss : core_.presence.lost) {
    if (affects(loss, *group)) call_off(group, {Code::kPeerLost, loss.text});
  }
  for (const uint32_t rank : core_.presence.left) {
    if (group->members().has(rank)) {
      group->leave(
          {Code::kPeerLost, concat(core_.cluster.describe_rank(rank), " has left the job")});
    }
  }
}

Status Groups::destroy(const std::shared_ptr<Group>& group) {
  if (group->is_world()) return {Code::kInvalidArgument, "the group of all ranks is permanent"};
  if (find(group->id()) != group) {
    return {Code::kInvalidArgument, concat("group '", group->members().name(),
                                           "' was already destroyed")};
  }
  const bool used = std::ranges::any_of(
      core_.carriers, [&](const Carrier* carrier) { return carrier->uses(*group); });
  if (used || core_.links->busy(group->id())) {
    return {Code::kInvalidArgument,
            concat("something", group->members().suffix(),
                   " is still in flight; wait for it, and close its plans, before destroy()")};
  }
  forget(group);
  return {};
}

void Groups::forget(const std::shared_ptr<Group>& group) {
  if (groups_.erase(group->id()) == 0) return;
  if (core_.options.failover) {
    destroyed_.push_back(group);
    if (destroyed_.size() > kMostDestroyed) destroyed_.pop_front();
  }
  core_.program->groups().remove(group->id());
  tell_servers(*group, 0, {});
  group->call_off({Code::kShutdown, "the group was destroyed"});
  core_.node_stage->forget(*group);
  core_.links->remove_group(group->id());
  for (Carrier* carrier : core_.carriers) carrier->forget(group->id());
}

void Groups::tell_servers(const Group& group, uint8_t flags, const std::string& why) {
  wire::FrameHeader header{.type = wire::FrameType::kLeaveGroup, .flags = flags,
                           .group = group.id()};
  for (const uint32_t server : group.servers()) {
    const bool knows = core_.owners.has(server) || core_.presence.comes(server);
    if (knows && !core_.presence.has_ended(server)) core_.links->send_control(server, header, why);
  }
}

void Groups::call_off(const std::shared_ptr<Group>& group, const Status& why) {
  if (core_.ending.begun() || !group->call_off(why)) return;
  tell_servers(*group, wire::kFlagCalledOff, why.message());
  for (Carrier* carrier : core_.carriers) carrier->call_off(*group, why);
  core_.links->call_off(group->id());
  core_.node_stage->call_off(group);
  core_.executor->call_off(group->id());
}

void Groups::fail(uint32_t number, const Status& why) {
  const std::shared_ptr<Group> group = find(number);
  if (!group || !group->called_off().ok() || core_.ending.begun()) return;
  const std::string left = departed(*group);
  const bool says = left.empty() || why.message().find(left) != std::string::npos;
  end_or_call_off(group, {why.code(), says ? why.message() : concat(left, ": ", why.message())});
}

// If the world is the only group, nothing else could go on, so the job ends.
void Groups::end_or_call_off(const std::shared_ptr<Group>& group, const Status& why) {
  groups_.empty() && !outlive_members() ? core_.ending.fail_now(why) : call_off(group, why);
}

void Groups::serve(const control::ServerSet& set) {
  core_.links->serve(set);
  const control::ServerSet& now = core_.links->serving();
  const Owners before = core_.owners;
  core_.owners.serve(now);
  for (const auto& group : all()) {
    const std::vector<uint32_t>& owners = group->shards().owners;
    for (const uint32_t home : owners) {
      const Owner owner = core_.owners.of(owners, home);
      if (owner == before.of(owners, home) || !now.has(owner.server)) continue;
      for (Carrier* carrier : core_.carriers) carrier->move(*group, owner);
    }
  }
  for (Carrier* carrier : core_.carriers) carrier->serve(now);
}

bool Groups::affects(const control::Loss& loss, const Group& group) {
  return loss.is_server ? group.shards().uses(loss.index) : group.members().has(loss.index);
}

bool Groups::outlive_members() const {
  return std::ranges::any_of(all(), [this](const auto& group) {
    return std::ranges::any_of(core_.carriers, [&](const Carrier* carrier) {
      return carrier->outlives_members(*group);
    });
  });
}

std::string Groups::departed(const Group& group) const {
  const std::vector<uint32_t>& left = core_.presence.left;
  const auto found = std::ranges::find_if(
      left, [&group](uint32_t rank) { return group.members().has(rank); });
  return found == left.end() ? ""
                             : concat(core_.cluster.describe_rank(*found), " has left the job");
}

}  // namespace herring::engine
