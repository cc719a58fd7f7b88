#include "worker/membership.h"

#include <algorithm>

#include "base/log.h"
#include "device/images.h"

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
// The same for a server that the rendezvous was told of, and how much later than that a heartbeat
// must have left that shows that the rendezvous has read it.
constexpr Nanos kNewsOfServer = 3 * kSecond;
constexpr Nanos kReadMargin = 500 * kMillisecond;

}  // namespace

// Returns whether anything can go on after the loss: a group that does not need the lost process,
// or a partial all-reduce. Nothing survives rank 0, which hosts the rendezvous, or a dedicated
// server, which all groups use.
bool Membership::survives(const control::Loss& loss) const {
  if (loss.is_server ? core_.cluster.servers[loss.index].dedicated : loss.index == 0) return false;
  for (const auto& [number, group] : core_.groups.but_the_world()) {
    if (!engine::Groups::affects(loss, *group) && group->called_off().ok()) return true;
  }
  return !loss.is_server && core_.groups.outlive_members();
}

void Membership::peer_lost(const control::Loss& loss) {
  if (!loss.serving.empty()) return move_from(loss);
  const Status status(Code::kPeerLost, loss.text);
  if (!survives(loss)) return core_.ending.fail_now(status);
  log(LogLevel::kWarning, loss.text, "; groups that do not need it go on");
  core_.presence.lost.push_back(loss);
  if (loss.is_server) core_.presence.ended_servers.insert(loss.index);
  for (const auto& group : core_.groups.all()) {
    if (!engine::Groups::affects(loss, *group)) continue;
    core_.groups.call_off(group, status);
    if (loss.is_server) abandon(*group, status);
  }
  if (loss.is_server) {
    server_ended(loss.index, status);
  } else {
    core_.executor->rank_lost(loss.index);
    device::Neighbours::instance().forget(core_.cluster.incarnation, loss.index);
  }
}

// Only this rank knows that something cannot be moved, so it must tell the others.
void Membership::move_from(const control::Loss& loss) {
  control::ServerSet next = core_.links->serving();
  next.adopt({loss.epoch, loss.serving, {}});
  fail_groups_without_servers(next, loss.text);
  const bool can_move =
      core_.links->can_move() &&
      std::ranges::all_of(core_.carriers, [&](const Carrier* one) { return one->can_move(next); });
  if (!can_move) {
    const std::string text =
        concat(loss.text, "; other servers cannot take over what was in flight there");
    core_.ending.fail_now({Code::kPeerLost, text});
    return core_.options.abort(text);
  }
  core_.presence.ended_servers.insert(loss.index);
  core_.groups.serve(next);
}

// A group of some nodes uses as many servers as it has nodes. Others do not know it.
void Membership::fail_groups_without_servers(const control::ServerSet& set,
                                             const std::string& why) {
  for (const auto& group : core_.groups.all()) {
    const std::vector<uint32_t>& owners = group->shards().owners;
    if (std::ranges::any_of(owners, [&](uint32_t one) { return set.has(one); })) continue;
    const Status status(Code::kPeerLost,
                        concat(why, "; no server", group->members().suffix(), " is left"));
    core_.groups.call_off(group, status);
    abandon(*group, status);
    core_.links->abandon(group->id());
  }
}

void Membership::called_off_by_server(uint32_t number) {
  core_.loop->call_after(kNews, [this, number] {
    core_.groups.fail(number, {Code::kPeerLost,
                               "a server has called off the operations in flight: a member has "
                               "left or died"});
  });
}

void Membership::rank_left(uint32_t rank) {
  core_.presence.left.push_back(rank);
  left_since_ = core_.loop->now();
  core_.executor->rank_left(rank);
  for (const auto& group : core_.groups.all()) {
    if (!group->members().has(rank)) continue;
    // All calls of the leaving rank have been announced here by now; otherwise it would not have
    // left.
    group->leave({Code::kPeerLost,
                  concat(core_.cluster.describe_rank(rank),
                         " has left the job and makes no more calls; ",
                         control::kAdviceOnLeaving)});
  }
  for (const control::ServerInfo& server : core_.cluster.servers) {
    if (core_.cluster.rank_with(server) == rank) staying_.emplace(server.index, rank);
  }
  release_servers();
}

// An operation may be over for the rank that left but not for others. Blocks of an exchange between
// the others still go through the server in its process, and so does all that groups without the
// rank do. That server stays until it is released.
void Membership::release_servers() {
  std::erase_if(staying_, [this](const auto& one) {
    const auto& [server, rank] = one;
    if (core_.presence.has_ended(server)) return true;
    for (const auto& group : core_.groups.all()) {
      const auto any = [this](const auto& what) {
        return std::ranges::any_of(core_.carriers, what);
      };
      const bool goes_on =
          group->failure().ok() ||
          any([&](const Carrier* one) { return one->outlives_members(*group); });
      const bool ends = group->members().has(rank) &&
                        (needs(*group, server) ||
                         any([&](const Carrier* one) { return one->may_need(*group, server); }));
      if ((goes_on && group->shards().uses(server)) || ends) return false;
    }
    wire::FrameHeader header{.type = wire::FrameType::kReleased};
    core_.links->send_control(server, header, {});
    return true;
  });
}

// Handles a closed connection to a server. If the process died, the rendezvous will report which
// one. If the connection ended because the worker of that server has left, only operations that
// still need the server are affected.
void Membership::link_closed(uint32_t server, const Status& why) {
  if (core_.presence.comes(server)) return coming_servers_.stop_waiting(server, why.message());
  const std::string text =
      concat("lost ", core_.cluster.describe_server(server), ": ", why.message());
  if (why.is_fault()) return core_.ending.fail_now({why.code(), text});
  const bool fails_over = core_.options.failover;
  if (fails_over && !core_.links->serving().has(server)) return;
  const uint64_t received = core_.links->bytes_received(server);
  if (fails_over && coming_servers_.report(server, why.message())) {
    return await_news(server, coming_servers_.number(server), text, received, core_.loop->now());
  }
  core_.loop->call_after(
      core_.presence.left.empty() ? kNews : kClosedGrace,
      [this, server, text, received] { check_link(server, text, received); });
}

// Waits for the rendezvous to say who stands in for the server. It may be slow on a busy host, and
// decides nothing before it has read what this process told it at `told`.
void Membership::await_news(uint32_t server, uint32_t number, const std::string& how,
                            uint64_t received, Nanos told) {
  core_.loop->call_after(kNewsOfServer, [this, server, number, how, received, told] {
    const bool known = !core_.links->serving().has(server) ||
                       coming_servers_.number(server) != number;
    if (known || core_.ending.begun()) return;
    const bool read = core_.options.rendezvous_read() > told + kReadMargin;
    read ? check_link(server, how, received) : await_news(server, number, how, received, told);
  });
}

// Handles a goodbye of a worker on this node. Nobody else tells of it if rank 0 has left, which
// hosts the rendezvous.
void Membership::neighbour_left(uint32_t rank) {
  const engine::Presence& presence = core_.presence;
  if (presence.has_left(0) && !presence.has_left(rank) && !core_.ending.begun()) rank_left(rank);
}

// Handles a connection to a worker on this node that ended without a goodbye.
void Membership::neighbour_closed(uint32_t rank, const Status& why) {
  const Nanos patience = core_.presence.has_left(0) ? kNews : kNewsOfNeighbour;
  core_.loop->call_after(patience, [this, rank, why] {
    const engine::Presence& presence = core_.presence;
    const bool known =
        presence.has_left(rank) || std::ranges::any_of(presence.lost, [rank](const auto& one) {
          return !one.is_server && one.index == rank;
        });
    if (known) return;
    const bool nobody_tells = presence.has_left(0);
    const std::string text = concat("lost the connection to ", core_.cluster.describe_rank(rank),
                                    nobody_tells ? ", which has failed or died: "
                                                 : ", which is still in the job: ",
                                    why.message());
    if (!nobody_tells) return core_.ending.fail_now({Code::kPeerLost, text});
    if (!core_.ending.begun()) peer_lost({false, false, rank, text, 0, {}});
  });
}

// Reads the server's other connections to their end first, because results may still be in them.
void Membership::check_link(uint32_t server, const std::string& how, uint64_t received) {
  if (core_.presence.has_ended(server) || core_.ending.begun()) return;
  const uint64_t now_received = core_.links->bytes_received(server);
  if (core_.links->open_flows(server) > 0 && now_received > received) {
    core_.loop->call_after(kNews, [this, server, how, now_received] {
      check_link(server, how, now_received);
    });
    return;
  }
  if (!core_.presence.left.empty()) return fail_what_needs(server);
  // It has ended with the worker in whose process it was.
  const std::optional<uint32_t> host = core_.cluster.rank_with(core_.cluster.servers[server]);
  for (const control::Loss& loss : core_.presence.lost) {
    if (loss.is_server || loss.index != host) continue;
    return peer_lost({true, false, server, concat(loss.text, "; ", how), 0, {}});
  }
  // The server lives, so only this rank knows of the loss. The others would see it leave.
  core_.ending.fail_now({Code::kPeerLost, how});
  core_.options.abort(how);
}

void Membership::fail_what_needs(uint32_t server) {
  // A group may use the server of a worker that was not a member.
  const Status gone(Code::kPeerLost, concat(core_.groups.departed(*core_.groups.world()), ", and ",
                                            core_.cluster.describe_server(server), " has ended; ",
                                            control::kAdviceOnLeaving));
  core_.presence.ended_servers.insert(server);
  for (const auto& group : core_.groups.all()) {
    if (!group->shards().uses(server)) continue;
    // All results that a departed member completed have already arrived from the server.
    const bool fails = core_.groups.departed(*group).empty() || needs(*group, server);
    fails ? core_.groups.end_or_call_off(group, gone) : group->leave(gone);
    if (core_.ending.begun()) return;
    abandon(*group, gone);
  }
  server_ended(server, gone);
}

// Buffers that wait for parts from neighbours or from this rank have not been pushed yet, so they
// need every server. Buffers pushed by other ranks on this node use those ranks' own connections.
bool Membership::needs(const Group& group, uint32_t server) const {
  return core_.links->needs(group.id(), server) ||
         (group.members().nodes() > 1 && core_.node_stage->has_unpushed(group.id()));
}

void Membership::abandon(const Group& group, const Status& why) {
  for (Carrier* carrier : core_.carriers) carrier->abandon(group, why);
}

void Membership::server_ended(uint32_t server, const Status& why) {
  for (Carrier* carrier : core_.carriers) carrier->server_ended(server, why);
  core_.links->server_lost(server);
}

// Operations that were in flight when a rank left may complete without it. The owner of announced
// operations fails those that cannot. Planned operations are not announced, so they are failed
// here.
void Membership::check_departures(Nanos now) {
  if (core_.presence.left.empty()) return;
  for (const auto& group : core_.groups.all()) {
    const std::string left = core_.groups.departed(*group);
    if (left.empty() || !group->called_off().ok()) continue;
    const bool waits = core_.links->busy(group->id()) ||
                       (group->members().nodes() > 1 && core_.node_stage->busy(group->id()));
    const Nanos moved = std::max({left_since_, core_.links->answered_at(group->id()),
                                  core_.node_stage->moved_at(group->id())});
    const bool rests = now - moved > kLeftGrace;
    if (!(waits && rests) && !core_.node_stage->waits_for_gone(group->id())) continue;
    core_.groups.end_or_call_off(
        group, {Code::kPeerLost, concat(left, " while other ranks still wait for it; ",
                                        control::kAdviceOnLeaving)});
    if (core_.ending.begun()) return;
  }
}

}  // namespace herring::worker
