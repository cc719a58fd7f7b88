#include "worker/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/continuations.h"
#include "base/lists.h"
#include "base/log.h"
#include "device/copiers.h"
#include "device/watcher.h"

namespace herring::worker {
namespace {

constexpr Nanos kTick = 50 * kMillisecond;
// Servers watch deadlines. If one is missed by this much, this process ends the job itself.
constexpr Nanos kDeadlineMargin = 2 * kSecond;
// How long nobody may ask a device whether it is lost, while something is expected of it.
constexpr Nanos kBetweenLooks = 10 * kSecond;

}  // namespace

EngineCore::EngineCore(const control::Cluster& cluster, engine::EngineOptions options,
                       transport::Transport& transport, std::unique_ptr<LocalBus> bus,
                       std::vector<ServerFlow> flows)
    : core_(cluster, std::move(options), transport, std::move(bus)),
      calls_(core_),
      rounds_(core_),
      series_(core_),
      held_up_(core_),
      coming_servers_(core_, transport, calls_.handovers(), held_up_),
      membership_(core_, coming_servers_),
      keeping_(core_, calls_.handovers(), series_),
      pauses_(kTick, core_.loop->now()) {
  core_.carriers = {&calls_, &rounds_, &series_};
  core_.links = std::make_unique<links::Links>(
      *core_.loop, core_.options.links,
      [this](uint32_t server, const wire::FrameHeader& header, std::string_view payload) {
        on_control(server, header, payload);
      },
      [this](uint32_t server, const Status& why) { membership_.link_closed(server, why); },
      [this](uint32_t group) { membership_.called_off_by_server(group); });
  for (ServerFlow& flow : flows) core_.links->add_flow(flow.server, *flow.connection);

  NodeStage::Options node;
  node.local_rank = core_.me.local_rank;
  node.threads = core_.options.node_threads;
  node.segment_bytes = core_.options.links.segment_bytes;
  node.ranks = core_.cluster.ranks_of(core_.me.node);
  for (const uint32_t rank : node.ranks) node.names.push_back(core_.cluster.describe_rank(rank));
  node.on_lost = [this, ranks = node.ranks](uint32_t local_rank, const Status& why) {
    membership_.neighbour_closed(ranks[local_rank], why);
  };
  node.on_left = [this, ranks = node.ranks](uint32_t local_rank) {
    membership_.neighbour_left(ranks[local_rank]);
  };
  node.states = &core_.states;
  const auto fail_now = [this](const Status& status) { core_.ending.fail_now(status); };
  core_.node_stage = std::make_unique<NodeStage>(*core_.loop, *core_.bus, *core_.heap,
                                                 *core_.links, std::move(node), fail_now);
  core_.node_stage->attach();
  core_.executor = std::make_unique<collective::Executor>(
      transport, *core_.loop, core_.cluster, core_.states, core_.options.mesh, fail_now,
      [this](uint32_t group, const Status& status) { core_.groups.fail(group, status); },
      [this](uint32_t number) {
        const auto group = core_.groups.find(number);
        return group && group->called_off().ok();
      },
      [this](uint32_t rank) { return core_.presence.has_left(rank); });
  core_.executor->on_signal([this](uint32_t rank, const wire::FrameHeader& signal) {
    return series_.on_signal(rank, signal);
  });
  core_.loop->on_exhausted([this](const Status& why) { core_.ending.on_exhausted(why); });
  looked_ = core_.loop->now();
  core_.loop->call_after(kTick, [this] { tick(); });
  core_.loop->start("herring-engine");
}

// What moves bytes ends before the parts that it calls.
EngineCore::~EngineCore() {
  core_.executor.reset();
  core_.node_stage.reset();
  core_.links.reset();
}

void EngineCore::on_control(uint32_t server, const wire::FrameHeader& header,
                            std::string_view payload) {
  if (core_.ending.begun()) return;
  const auto judge = [&](const Status& status) {
    if (status.ok()) return;
    core_.ending.fail_now({status.code(), concat(core_.cluster.describe_server(server), ": ",
                                                 status.message())});
  };
  const bool of_series = wire::outlives_members(header.stream);
  switch (header.type) {
    case wire::FrameType::kWarning:
      notice_bytes_ += wire::kHeaderBytes + payload.size();
      return log(LogLevel::kWarning, payload);
    case wire::FrameType::kRound:
    case wire::FrameType::kCommit: return judge(series_.on_control(server, header, payload));
    case wire::FrameType::kSettled: return judge(keeping_.receive(header.group, payload));
    case wire::FrameType::kOpError:
      if (of_series) return judge(series_.on_control(server, header, payload));
      break;
    default: break;
  }
  if (coming_servers_.on_defined(server, header, payload)) return;
  if (header.type == wire::FrameType::kLeaveGroup) {
    return core_.groups.fail(header.group, {Code::kPeerLost, std::string(payload)});
  }
  calls_.on_control(server, header, payload);
}

bool EngineCore::stands_still() const {
  return !core_.ending.begun() &&
         std::ranges::all_of(core_.carriers,
                             [](const engine::Carrier* one) { return one->stands_still(); }) &&
         core_.executor->idle() && core_.node_stage->stands_still() &&
         core_.presence.coming.empty() && core_.links->undelivered() == 0 &&
         core_.executor->undelivered() == 0 && device::Watcher::idle() && Continuations::idle();
}

// If a server dies, it no longer watches deadlines. Therefore this process watches them as well.
void EngineCore::check_deadlines(Nanos now) {
  const Nanos margin = kDeadlineMargin + pauses_.at(now);
  calls_.arrivals().check_deadlines(now);
  calls_.meeting().check_deadlines(now);
  core_.node_stage->check_deadlines(now, margin);
  core_.executor->check_deadlines(now);
  series_.check_deadlines(now);
  Nanos waited = 0;
  std::vector<uint32_t> servers(1);
  std::string name = calls_.overdue(now, margin, &waited, &servers[0]);
  if (const links::Transfer* late = core_.links->overdue(now, margin)) {
    name = concat("'", late->open.name, "'");
    waited = now - late->pushed_at;
    servers = core_.links->awaited(*late);
  }
  if (name.empty()) return;
  const std::string who = list_of(
      servers, [this](uint32_t server) { return core_.cluster.describe_server(server); }, " and ");
  core_.ending.fail_now({Code::kTimeout,
                         concat(name, " has waited ", in_seconds(waited), " for ", who,
                                ", and nobody has answered or reported the timeout; look at "
                                "the output of the other ranks and servers")});
}

// A program that waits here asks the driver whether its device is lost. One that waits in code of
// its own, such as torch's, does not, and this thread may not.
void EngineCore::look_at_devices(Nanos now) {
  const bool asked = device::Watcher::idle() || !core_.program->activity(now).where.empty();
  if (!asked && now - looked_ < kBetweenLooks) return;
  looked_ = now;
  if (!asked) Continuations::shared().put(device::check_devices);
}

void EngineCore::tick() {
  const Nanos now = core_.loop->now();
  look_at_devices(now);
  core_.links->poll_paths();
  core_.node_stage->release_regions();
  if (!core_.ending.begun()) {
    check_deadlines(now);
    membership_.check_departures(now);
    coming_servers_.check_servers(now);
    membership_.release_servers();
    held_up_.tell(now);
    keeping_.tick(now);
  }
  core_.loop->call_after(kTick, [this] { tick(); });
}

}  // namespace herring::worker
