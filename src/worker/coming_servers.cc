#include "worker/coming_servers.h"

#include <algorithm>
#include <utility>

#include "wire/messages.h"

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

void ComingServers::connect(const control::Replacement& news) {
  const engine::EngineOptions& options = core_.options;
  const auto address = transport::parse_address(news.address, "a server's address");
  if (!address.ok()) {
    return options.report_server(news.server, news.number, false, address.status().message());
  }
  Attempt& attempt = attempts_[news.server] = {news.number, {}, options.links.flows, {}};
  attempt.made.resize(options.links.flows);
  for (uint32_t flow = 0; flow < options.links.flows; ++flow) {
    const wire::Hello hello{wire::Role::kWorker, options.rank, flow, options.mesh.incarnation};
    attempt.connecting.push_back(transport_.connect(
        *core_.loop, *address, options.mesh.source, hello, options.mesh.credentials,
        options.connect_timeout,
        [this, server = news.server, flow](Result<Connections::value_type> connection) {
          if (connection.ok()) return connected(server, flow, std::move(*connection));
          const Attempt failed = std::move(attempts_.extract(server).mapped());
          core_.options.report_server(server, failed.number, false, connection.status().message());
        }));
  }
}

void ComingServers::connected(uint32_t server, uint32_t flow,
                              Connections::value_type connection) {
  Attempt& attempt = attempts_[server];
  attempt.made[flow] = std::move(connection);
  if (--attempt.missing > 0) return;
  Attempt done = std::move(attempts_.extract(server).mapped());
  if (!core_.ending.begun()) comes(server, done.number, std::move(done.made));
}

// A replacement for a dedicated server comes.
void ComingServers::comes(uint32_t server, uint32_t number, Connections flows) {
  if (core_.links->serving().has(server)) return;
  core_.links->server_replaced(server, std::move(flows));
  core_.presence.ended_servers.erase(server);
  core_.presence.coming[server] = {number, {}};
  for (const auto& [number, group] : core_.groups.but_the_world()) {
    const uint64_t id = handovers_.confirms(server, *group);
    id == 0 ? static_cast<void>(define_at(server, *group))
            : core_.groups.tell_of(*group, server, id, 0);
  }
  // Others that still use these groups must not wait for this rank.
  for (const auto& group : core_.groups.destroyed()) {
    if (!define_at(server, *group)) continue;
    wire::FrameHeader header{.type = wire::FrameType::kLeaveGroup, .group = group->id()};
    core_.links->send_control(server, header, {});
  }
  for (engine::Carrier* carrier : core_.carriers) carrier->server_comes(server);
  held_up_.tell_to(server);
  report_ready(server);
}

// Tells a replacement of a group, unless it need not know it. Its answer is awaited.
bool ComingServers::define_at(uint32_t server, const engine::Group& group) {
  if (!group.is_known_to(server)) return false;
  const uint64_t id = kDefinition | ++definitions_;
  core_.presence.coming[server].unanswered.insert(id);
  core_.groups.tell_of(group, server, id, wire::kFlagFormed);
  return true;
}

bool ComingServers::on_defined(uint32_t server, const wire::FrameHeader& header,
                               std::string_view payload) {
  const auto coming = core_.presence.coming.find(server);
  if (coming == core_.presence.coming.end()) return false;
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

void ComingServers::report_ready(uint32_t server) {
  const engine::Presence::Coming& coming = core_.presence.coming[server];
  if (!coming.unanswered.empty()) return;
  core_.options.report_server(server, coming.number, true, {});
}

void ComingServers::server_news(const control::Replacement& news) {
  if (news.stage == control::Replacement::Stage::kComing) return connect(news);
  attempts_.erase(news.server);
  if (news.stage == control::Replacement::Stage::kServes) {
    core_.presence.coming.erase(news.server);
    numbers_[news.server] = news.number;
    core_.cluster.servers[news.server].address = news.address;
    return core_.groups.serve({news.epoch, news.serving, {}});
  }
  const auto coming = core_.presence.coming.find(news.server);
  if (coming == core_.presence.coming.end() || coming->second.number != news.number) return;
  drop(news.server);
}

// The connection to a replacement has ended before it serves.
void ComingServers::stop_waiting(uint32_t server, const std::string& why) {
  core_.options.report_server(server, core_.presence.coming[server].number, false, why);
  drop(server);
}

void ComingServers::drop(uint32_t server) {
  core_.presence.coming.erase(server);
  core_.presence.ended_servers.insert(server);
  handovers_.drop(server);
}

// Tells the rendezvous that a server cannot be reached. Returns false if there is no use in that.
bool ComingServers::report(uint32_t server, const std::string& why) {
  if (!core_.cluster.servers[server].dedicated) return false;
  core_.options.report_server(server, numbers_[server], false, why);
  return true;
}

// A cut link does not end a connection.
void ComingServers::check_servers(Nanos now) {
  const Nanos limit = core_.options.server_timeout;
  if (limit == 0 || now - servers_checked_ < kServersInterval) return;
  const Nanos pause = now - std::exchange(servers_checked_, now);
  if (pause > 4 * kServersInterval) return;  // this process itself stood still
  for (const control::ServerInfo& server : core_.cluster.servers) {
    if (!core_.links->serving().has(server.index)) continue;
    const Nanos unheard = core_.links->unheard(server.index);
    if (unheard <= kPatienceWithFailover * limit) continue;
    const std::string why = concat("its system has acknowledged nothing for ", in_seconds(unheard));
    if (core_.options.failover && report(server.index, why)) continue;
    if (unheard <= kPatience * limit) continue;
    // If the process or its host had died, the rendezvous would have said so long ago.
    const std::string text = concat("lost ", core_.cluster.describe_server(server.index), ": ", why,
                                    ", but it is still in the job; is the network between it and "
                                    "this rank cut?");
    core_.ending.fail_now({Code::kPeerLost, text});
    return core_.options.abort(text);
  }
}

}  // namespace herring::worker
