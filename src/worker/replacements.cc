// The part of Membership that follows the servers of a job with failover: others stand in for a
// dedicated server that is lost, and a replacement may come.
#include <algorithm>
#include <utility>

#include "wire/messages.h"
#include "worker/engine_core.h"

namespace herring::worker {
namespace {

constexpr Nanos kServersInterval = 250 * kMillisecond;
// Where nobody can stand in for a server, links may be down for as many heartbeat timeouts. By
// then the system sends again what was not acknowledged only every 10 s or so.
constexpr Nanos kPatience = 20;
// Where somebody can, a server is given up after as many. The system doubles its pauses, so an
// outage that is shorter than the timeout may end in a silence of twice its length.
constexpr Nanos kPatienceWithFailover = 2;
// Marks the IDs of definitions of groups that are not part of forming them.
constexpr uint64_t kDefinition = uint64_t{1} << 63;

}  // namespace

// Only this rank knows that something cannot be moved, so it must tell the others.
void Membership::move_from(const control::Loss& loss) {
  control::ServerSet next = engine_.links().serving();
  next.adopt({loss.epoch, loss.serving, {}});
  fail_groups_without_servers(next, loss.text);
  if (!engine_.links().can_move() || !engine_.named().can_move(next) ||
      !engine_.can_move_partial(next)) {
    const std::string text =
        concat(loss.text, "; other servers cannot take over what was in flight there");
    engine_.fail_now({Code::kPeerLost, text});
    return engine_.options().abort(text);
  }
  ended_servers_.insert(loss.index);
  serve(next);
}

// A group of some nodes uses as many servers as it has nodes. Others do not know it.
void Membership::fail_groups_without_servers(const control::ServerSet& set,
                                             const std::string& why) {
  for (const auto& group : groups()) {
    const std::vector<uint32_t>& owners = group->shards().owners;
    if (std::ranges::any_of(owners, [&](uint32_t one) { return set.has(one); })) continue;
    const Status status(Code::kPeerLost,
                        concat(why, "; no server", group->members().suffix(), " is left"));
    call_off(group, status);
    engine_.fail_partial(*group, status);
    engine_.links().abandon(group->id());
  }
}

void Membership::serve(const control::ServerSet& set) {
  engine_.links().serve(set);
  engine_.named().serve(engine_.links().serving());
}

void Membership::server_comes(const control::Replacement& news,
                              std::vector<std::unique_ptr<transport::Connection>> flows) {
  const uint32_t server = news.server;
  if (news.number <= dropped_[server] || engine_.links().serving().has(server)) return;
  engine_.links().server_replaced(server, std::move(flows));
  ended_servers_.erase(server);
  coming_[server] = {news.number, {}};
  for (const auto& [number, group] : groups_) {
    const uint64_t id = engine_.named().handovers().confirms(server, *group);
    id == 0 ? static_cast<void>(define_at(server, *group)) : tell_of(*group, server, id, 0);
  }
  // Others that still use these groups must not wait for this rank.
  for (const auto& group : destroyed_) {
    if (!define_at(server, *group)) continue;
    wire::FrameHeader header;
    header.type = wire::FrameType::kLeaveGroup;
    header.group = group->id();
    engine_.links().send_control(server, header, {});
  }
  engine_.tell_partial_to(server);
  engine_.tell_whereabouts_to(server);
  report_ready(server);
}

// Tells a replacement of a group, unless it need not know it. Its answer is awaited.
bool Membership::define_at(uint32_t server, const Group& group) {
  if (!group.is_known_to(server)) return false;
  const uint64_t id = kDefinition | ++definitions_;
  coming_[server].unanswered.insert(id);
  tell_of(group, server, id, wire::kFlagFormed);
  return true;
}

bool Membership::on_defined(uint32_t server, const wire::FrameHeader& header,
                            std::string_view payload) {
  const auto coming = coming_.find(server);
  if (coming == coming_.end()) return false;
  uint64_t id = 0;
  if (header.type == wire::FrameType::kReply) {
    std::string_view rest;
    if (const auto go = wire::decode_go(payload, &rest); go.ok()) id = go->id;
  } else if (header.type == wire::FrameType::kOpError) {
    if (const auto error = wire::decode_op_error(payload); error.ok()) id = error->id;
  }
  if (coming->second.unanswered.erase(id) == 0) return false;
  report_ready(server);
  return true;
}

void Membership::report_ready(uint32_t server) {
  const Coming& coming = coming_[server];
  if (!coming.unanswered.empty()) return;
  engine_.options().report_server(server, coming.number, true, {});
}

void Membership::server_news(const control::Replacement& news) {
  if (news.stage == control::Replacement::Stage::kServes) {
    coming_.erase(news.server);
    numbers_[news.server] = news.number;
    cluster_.servers[news.server].address = news.address;
    return serve({news.epoch, news.serving, {}});
  }
  uint32_t& dropped = dropped_[news.server];
  dropped = std::max(dropped, news.number);
  const auto coming = coming_.find(news.server);
  if (coming == coming_.end() || coming->second.number != news.number) return;
  drop(news.server);
}

// The connection to a replacement has ended before it serves.
void Membership::stop_waiting(uint32_t server, const std::string& why) {
  engine_.options().report_server(server, coming_[server].number, false, why);
  drop(server);
}

void Membership::drop(uint32_t server) {
  coming_.erase(server);
  ended_servers_.insert(server);
  engine_.named().handovers().drop(server);
}

// Tells the rendezvous that a server cannot be reached. Returns false if there is no use in that.
bool Membership::report(uint32_t server, const std::string& why) {
  if (!cluster_.servers[server].dedicated) return false;
  engine_.options().report_server(server, numbers_[server], false, why);
  return true;
}

// A cut link does not end a connection.
void Membership::check_servers(Nanos now) {
  const Nanos limit = engine_.options().server_timeout;
  if (limit == 0 || now - servers_checked_ < kServersInterval) return;
  const Nanos pause = now - std::exchange(servers_checked_, now);
  if (pause > 4 * kServersInterval) return;  // this process itself stood still
  for (const control::ServerInfo& server : cluster_.servers) {
    if (!engine_.links().serving().has(server.index)) continue;
    const Nanos unheard = engine_.links().unheard(server.index);
    if (unheard <= kPatienceWithFailover * limit) continue;
    const std::string why = concat("its system has acknowledged nothing for ", in_seconds(unheard));
    if (engine_.options().failover && report(server.index, why)) continue;
    if (unheard <= kPatience * limit) continue;
    // If the process or its host had died, the rendezvous would have said so long ago.
    const std::string text = concat("lost ", cluster_.describe_server(server.index), ": ", why,
                                    ", but it is still in the job; is the network between it and "
                                    "this rank cut?");
    engine_.fail_now({Code::kPeerLost, text});
    return engine_.options().abort(text);
  }
}

}  // namespace herring::worker
