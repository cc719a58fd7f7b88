#include "worker/membership.h"

#include <algorithm>

#include "base/log.h"
#include "device/images.h"
#include "wire/messages.h"
#include "worker/engine_core.h"

namespace herring::worker {
namespace {

// Data in flight when a rank leaves may still be on its way here.
constexpr Nanos kLeftGrace = 1500 * kMillisecond;
// After a rank has left: how long the rendezvous may take to say why a server's connections ended.
constexpr Nanos kClosedGrace = 100 * kMillisecond;
// How long the rendezvous may take to report a death or a leave after the connections have ended.
constexpr Nanos kNews = kSecond;
// If no such report has come after this time, the worker on this node lives: only the connection to
// it is lost.
constexpr Nanos kNewsOfNeighbour = 3 * kSecond;
// The same for a server that the rendezvous was told of.
constexpr Nanos kNewsOfServer = 3 * kSecond;
// A program may form and destroy any number of groups.
constexpr size_t kMostDestroyed = 256;

}  // namespace

Membership::Membership(EngineCore& engine, control::Cluster& cluster, uint32_t rank)
    : engine_(engine),
      cluster_(cluster),
      rank_(rank),
      world_(std::make_shared<Group>(cluster, control::Group(cluster), rank)) {}

std::vector<std::shared_ptr<Group>> Membership::groups() const {
  std::vector<std::shared_ptr<Group>> all{world_};
  for (const auto& [number, group] : groups_) all.push_back(group);
  return all;
}

std::shared_ptr<Group> Membership::find(uint32_t number) const {
  if (number == control::Group::kWorld) return world_;
  const auto found = groups_.find(number);
  return found == groups_.end() ? nullptr : found->second;
}

std::shared_ptr<Group> Membership::define(uint32_t number, const std::string& name,
                                          std::vector<uint32_t> ranks, uint64_t id) {
  auto group = std::make_shared<Group>(
      cluster_, control::Group(number, cluster_, std::move(ranks), name), rank_);
  groups_[number] = group;
  engine_.program()->groups().add(number, name, group->members().ranks());
  engine_.links().add_group(number, group->shards().owners, group->steers(),
                            group->members().even());
  for (const uint32_t server : group->servers()) {
    if (!ended_servers_.contains(server)) tell_of(*group, server, id, 0);
  }
  engine_.named().handovers().begin(*group);
  return group;
}

void Membership::tell_of(const Group& group, uint32_t server, uint64_t id, uint8_t flags) {
  wire::FrameHeader header;
  header.type = wire::FrameType::kGroup;
  header.flags = flags;
  header.group = group.id();
  const control::Group& members = group.members();
  engine_.links().send_control(server, header,
                               encode(wire::GroupMessage{id, members.name(), members.ranks()}));
}

// A process that died or left while the group was formed counts as gone for this group, too.
void Membership::formed(const std::shared_ptr<Group>& group) {
  for (const control::Loss& loss : lost_) {
    if (affects(loss, *group)) call_off(group, {Code::kPeerLost, loss.text});
  }
  for (const uint32_t rank : left_) {
    if (group->members().has(rank)) {
      group->leave({Code::kPeerLost, concat(cluster_.describe_rank(rank), " has left the job")});
    }
  }
}

Status Membership::destroy(const std::shared_ptr<Group>& group) {
  if (group->is_world()) return {Code::kInvalidArgument, "the group of all ranks is permanent"};
  const auto found = groups_.find(group->id());
  if (found == groups_.end() || found->second != group) {
    return {Code::kInvalidArgument, concat("group '", group->members().name(),
                                           "' was already destroyed")};
  }
  if (engine_.in_flight(*group)) {
    return {Code::kInvalidArgument,
            concat("something", group->members().suffix(),
                   " is still in flight; wait for it, and close its plans, before destroy()")};
  }
  forget(group);
  return {};
}

void Membership::forget(const std::shared_ptr<Group>& group) {
  if (groups_.erase(group->id()) == 0) return;
  if (engine_.options().failover) {
    destroyed_.push_back(group);
    if (destroyed_.size() > kMostDestroyed) destroyed_.pop_front();
  }
  engine_.program()->groups().remove(group->id());
  tell_servers(*group, 0, {});
  group->call_off({Code::kShutdown, "the group was destroyed"});
  engine_.node_stage().forget(*group);
  engine_.links().remove_group(group->id());
  engine_.named().handovers().forget(group->id());
}

void Membership::tell_servers(const Group& group, uint8_t flags, const std::string& why) {
  wire::FrameHeader header;
  header.type = wire::FrameType::kLeaveGroup;
  header.flags = flags;
  header.group = group.id();
  for (const uint32_t server : group.servers()) {
    const bool knows =
        engine_.named().handovers().owners().has(server) || coming_.contains(server);
    if (knows && !ended_servers_.contains(server)) {
      engine_.links().send_control(server, header, why);
    }
  }
}

void Membership::call_off(const std::shared_ptr<Group>& group, const Status& why) {
  if (engine_.ends() || !group->call_off(why)) return;
  tell_servers(*group, wire::kFlagCalledOff, why.message());
  engine_.named().call_off(*group, why);
  engine_.fail_waiting(*group, why);
  engine_.links().call_off(group->id());
  engine_.node_stage().call_off(group);
  engine_.executor().call_off(group->id());
}

// Returns whether the loss affects the group. survives() handles rank 0 and dedicated servers.
bool Membership::affects(const control::Loss& loss, const Group& group) const {
  return loss.is_server ? group.shards().uses(loss.index) : group.members().has(loss.index);
}

// Returns whether anything can go on after the loss: a group that does not need the lost process,
// or a partial all-reduce. Nothing survives rank 0, which hosts the rendezvous, or a dedicated
// server, which all groups use.
bool Membership::survives(const control::Loss& loss) const {
  if (loss.is_server ? cluster_.servers[loss.index].dedicated : loss.index == 0) return false;
  for (const auto& [number, group] : groups_) {
    if (!affects(loss, *group) && group->called_off().ok()) return true;
  }
  return !loss.is_server && engine_.any_partial();
}

void Membership::peer_lost(const control::Loss& loss) {
  if (!loss.serving.empty()) return move_from(loss);
  const Status status(Code::kPeerLost, loss.text);
  if (!survives(loss)) return engine_.fail_now(status);
  log(LogLevel::kWarning, loss.text, "; groups that do not need it go on");
  lost_.push_back(loss);
  if (loss.is_server) ended_servers_.insert(loss.index);
  for (const auto& group : groups()) {
    if (!affects(loss, *group)) continue;
    call_off(group, status);
    if (loss.is_server) engine_.fail_partial(*group, status);
  }
  if (loss.is_server) {
    engine_.named().server_ended(loss.index, status);
    engine_.links().server_lost(loss.index);
  } else {
    engine_.executor().rank_lost(loss.index);
    device::Neighbours::instance().forget(cluster_.incarnation, loss.index);
  }
}

void Membership::called_off_by_server(uint32_t number) {
  engine_.loop()->call_after(kNews, [this, number] {
    fail_group(number, {Code::kPeerLost,
                        "a server has called off the operations in flight: a member has left or "
                        "died"});
  });
}

void Membership::fail_group(uint32_t number, const Status& why) {
  const std::shared_ptr<Group> group = find(number);
  if (!group || !group->called_off().ok() || engine_.ends()) return;
  const std::string left = departed(*group);
  const bool says = left.empty() || why.message().find(left) != std::string::npos;
  end_or_call_off(group, {why.code(), says ? why.message() : concat(left, ": ", why.message())});
}

// If the world is the only group, nothing else could go on, so the job ends.
void Membership::end_or_call_off(const std::shared_ptr<Group>& group, const Status& why) {
  groups_.empty() && !engine_.any_partial() ? engine_.fail_now(why) : call_off(group, why);
}

void Membership::rank_left(uint32_t rank) {
  left_.push_back(rank);
  left_since_ = engine_.loop()->now();
  engine_.executor().rank_left(rank);
  for (const auto& group : groups()) {
    if (!group->members().has(rank)) continue;
    // All calls of the leaving rank have been announced here by now; otherwise it would not have
    // left.
    group->leave({Code::kPeerLost,
                  concat(cluster_.describe_rank(rank),
                         " has left the job and makes no more calls; ",
                         control::kAdviceOnLeaving)});
  }
  const control::WorkerInfo& worker = cluster_.workers[rank];
  for (const control::ServerInfo& server : cluster_.servers) {
    const bool its_own = !server.dedicated && server.node == worker.node && worker.local_rank == 0;
    if (its_own) staying_.emplace(server.index, rank);
  }
  release_servers();
}

// An operation may be over for the rank that left but not for others. Blocks of an exchange between
// the others still go through the server in its process, and so does all that groups without the
// rank do. That server stays until it is released.
void Membership::release_servers() {
  std::erase_if(staying_, [this](const auto& one) {
    const auto& [server, rank] = one;
    if (ended_servers_.contains(server)) return true;
    for (const auto& group : groups()) {
      const bool goes_on = group->failure().ok() || engine_.any_partial(*group);
      const bool ends = group->members().has(rank) && engine_.may_need(*group, server);
      if ((goes_on && group->shards().uses(server)) || ends) return false;
    }
    wire::FrameHeader header;
    header.type = wire::FrameType::kReleased;
    engine_.links().send_control(server, header, {});
    return true;
  });
}

// Returns text that says which member left first; empty if none has left.
std::string Membership::departed(const Group& group) const {
  const auto found = std::find_if(left_.begin(), left_.end(), [&group](uint32_t rank) {
    return group.members().has(rank);
  });
  return found == left_.end() ? "" : concat(cluster_.describe_rank(*found), " has left the job");
}

// Handles a closed connection to a server. If the process died, the rendezvous will report which
// one. If the connection ended because the worker of that server has left, only operations that
// still need the server are affected.
void Membership::link_closed(uint32_t server, const Status& why) {
  if (coming_.contains(server)) return stop_waiting(server, why.message());
  const std::string text = concat("lost ", cluster_.describe_server(server), ": ", why.message());
  if (why.is_fault()) return engine_.fail_now({why.code(), text});
  const bool fails_over = engine_.options().failover;
  if (fails_over && !engine_.links().serving().has(server)) return;
  const uint64_t received = engine_.links().bytes_received(server);
  if (fails_over && report(server, why.message())) {
    const uint32_t number = numbers_[server];
    engine_.loop()->call_after(kNewsOfServer, [this, server, number, text, received] {
      const bool known = !engine_.links().serving().has(server) || numbers_[server] != number;
      if (!known) check_link(server, text, received);
    });
    return;
  }
  engine_.loop()->call_after(left_.empty() ? kNews : kClosedGrace, [this, server, text, received] {
    check_link(server, text, received);
  });
}

// Handles a goodbye of a worker on this node. Nobody else tells of it if rank 0 has left, which
// hosts the rendezvous.
void Membership::neighbour_left(uint32_t rank) {
  if (has_left(0) && !has_left(rank) && !engine_.ends()) rank_left(rank);
}

// Handles a connection to a worker on this node that ended without a goodbye.
void Membership::neighbour_closed(uint32_t rank, const Status& why) {
  engine_.loop()->call_after(kNewsOfNeighbour, [this, rank, why] {
    const bool known = has_left(rank) || std::any_of(lost_.begin(), lost_.end(), [rank](auto& one) {
      return !one.is_server && one.index == rank;
    });
    if (known) return;
    // Who hosts the rendezvous would have said that it has failed or died.
    const char* const state = has_left(0) ? ", which has failed or died: "
                                          : ", which is still in the job: ";
    engine_.fail_now({Code::kPeerLost, concat("lost the connection to ",
                                              cluster_.describe_rank(rank), state,
                                              why.message())});
  });
}

// Reads the server's other connections to their end first, because results may still be in them.
void Membership::check_link(uint32_t server, const std::string& how, uint64_t received) {
  if (ended_servers_.contains(server) || engine_.ends()) return;
  const uint64_t now_received = engine_.links().bytes_received(server);
  if (engine_.links().open_flows(server) > 0 && now_received > received) {
    engine_.loop()->call_after(kNews, [this, server, how, now_received] {
      check_link(server, how, now_received);
    });
    return;
  }
  if (!left_.empty()) return fail_what_needs(server);
  // The server lives, so only this rank knows of the loss. The others would see it leave.
  engine_.fail_now({Code::kPeerLost, how});
  engine_.options().abort(how);
}

void Membership::fail_what_needs(uint32_t server) {
  // A group may use the server of a worker that was not a member.
  const Status gone(Code::kPeerLost, concat(departed(*world_), ", and ",
                                            cluster_.describe_server(server), " has ended; ",
                                            control::kAdviceOnLeaving));
  ended_servers_.insert(server);
  for (const auto& group : groups()) {
    if (!group->shards().uses(server)) continue;
    // All results that a departed member completed have already arrived from the server.
    const bool needs = departed(*group).empty() || engine_.needs(*group, server);
    needs ? end_or_call_off(group, gone) : group->leave(gone);
    if (engine_.ends()) return;
    engine_.fail_partial(*group, gone);
  }
  engine_.named().server_ended(server, gone);
  engine_.links().server_lost(server);
}

// Operations that were in flight when a rank left may complete without it. The owner of announced
// operations fails those that cannot. Planned operations are not announced, so they are failed
// here.
void Membership::check_departures(Nanos now) {
  if (left_.empty()) return;
  for (const auto& group : groups()) {
    const std::string left = departed(*group);
    if (left.empty() || !group->called_off().ok()) continue;
    const bool waits = engine_.links().busy(group->id()) ||
                       (group->members().nodes() > 1 && engine_.node_stage().busy(group->id()));
    const Nanos moved = std::max({left_since_, engine_.links().answered_at(group->id()),
                                  engine_.node_stage().moved_at(group->id())});
    const bool rests = now - moved > kLeftGrace;
    if (!(waits && rests) && !engine_.node_stage().waits_for_gone(group->id())) continue;
    end_or_call_off(group, {Code::kPeerLost,
                            concat(left, " while other ranks still wait for it; ",
                                   control::kAdviceOnLeaving)});
    if (engine_.ends()) return;
  }
}

}  // namespace herring::worker
