#include "worker/engine.h"

#include "transport/delivery.h"
#include "worker/engine_core.h"

namespace herring::worker {
namespace {

// A worker that leaves waits until the others have received what it sent. These are the limits in
// all and without any progress.
constexpr Nanos kLongestFarewell = 60 * kSecond, kStandstill = kSecond;

}  // namespace

Engine::Engine(const control::Cluster& cluster, EngineOptions options,
               transport::Transport& transport, std::unique_ptr<LocalBus> bus,
               std::vector<ServerFlow> flows)
    : core_(std::make_unique<EngineCore>(cluster, std::move(options), transport, std::move(bus),
                                         std::move(flows))) {}

Engine::~Engine() { stop(); }

Result<std::shared_ptr<Operation>> Engine::submit(Call call, bool waits) {
  return core_->named_.submit(std::move(call), waits);
}

void Engine::refuse(const std::shared_ptr<Group>& group, wire::Collective what,
                    const std::string& name, const std::string& why) {
  core_->named_.refuse(group ? group : world(), std::move(what), name, why);
}

const std::shared_ptr<Group>& Engine::world() const { return core_->world(); }

Status Engine::destroy(const std::shared_ptr<Group>& group) {
  return core_->loop_->ask([&] { return core_->membership_.destroy(group); })
      .value_or(Status(Code::kShutdown, "herring was shut down"));
}

void Engine::fail(const Status& status) { core_->fail(status); }

void Engine::peer_lost(const control::Loss& loss) {
  core_->loop_->post([core = core_.get(), loss] {
    if (!core->ends()) core->membership_.peer_lost(loss);
  });
}

void Engine::rank_left(uint32_t rank) {
  core_->loop_->post([core = core_.get(), rank] {
    if (!core->ends()) core->membership_.rank_left(rank);
  });
}

void Engine::server_comes(const control::Replacement& news,
                          std::vector<std::unique_ptr<transport::Connection>> flows) {
  // std::function needs copyable captures.
  const auto shared = std::make_shared<decltype(flows)>(std::move(flows));
  core_->loop_->post([core = core_.get(), news, shared] {
    if (!core->ends()) core->membership_.server_comes(news, std::move(*shared));
  });
}

void Engine::server_news(const control::Replacement& news) {
  core_->loop_->post([core = core_.get(), news] {
    if (!core->ends()) core->membership_.server_news(news);
  });
}

Status Engine::failure() const { return core_->failure(); }

// It is made before memory can be short: an engine that could not stop would outlive what it uses.
static const Status& kShutDown = *new Status(Code::kShutdown, "shut down");

void Engine::stop() {
  EngineCore& core = *core_;
  {
    std::lock_guard lock(core.mutex_);
    if (std::exchange(core.stopped_, true)) return;
  }
  Status left = kShutDown;
  static_cast<void>(without_exceptions([&left] {
    left = {Code::kShutdown, "herring was shut down while the operation was in flight"};
    return Status();
  }));
  const Status told = without_exceptions([&] {
    core.loop_->post([&core, &left] { core.fail_now(left, true); });
    return Status();
  });
  // Data that others need from this worker is still on its way to them. It would be lost with a
  // connection that is closed with unread input, or that receives more input afterwards.
  if (told.ok()) {
    static_cast<void>(without_exceptions([&core] {
      transport::await_delivery(
          *core.loop_,
          [&core] {
            const size_t unread = core.failure().ok() ? 1 : 0;  // see end_when_read()
            return core.links_->undelivered() + core.executor_->undelivered() + unread;
          },
          kStandstill, kLongestFarewell);
      return Status();
    }));
  }
  core.loop_->join();
  // The engine thread has ended, perhaps before it could do this.
  static_cast<void>(without_exceptions([&core, &left] {
    if (!core.ends()) {
      core.ending_ = left;
      core.leaves_ = true;
    }
    core.end();
    return Status();
  }));
  // If it has failed, and rank 0 is gone with the rendezvous, only this tells its neighbours.
  core.bus_->close(core.leaves_);
}

const std::shared_ptr<transport::EventLoop>& Engine::loop() const { return core_->loop(); }

SharedHeap& Engine::heap() { return core_->heap(); }

Engine::Counters Engine::counters() {
  EngineCore& core = *core_;
  {
    std::lock_guard lock(core.mutex_);
    if (core.stopped_) return {};
  }
  return core.loop_->ask([&core] {
    Counters counters{core.links_->counters(), core.executor_->counters(),
                      core.links_->credit_bytes(), core.keeping_.bytes(), core.notice_bytes_,
                      core.stands_still(),         core.loop_->wakeups(),
                      core.named_.device_sums(),   core.named_.neighbour_sums()};
    counters.paths = core.links_->paths();
    for (const auto& path : counters.paths) counters.retransmits += path.retransmits;
    for (uint32_t server = 0; server < counters.paths.size(); ++server) {
      counters.names.push_back(core.cluster_.describe_server(server));
    }
    return counters;
  }).value_or(Counters{});
}

observe::Recorder& Engine::recorder() { return core_->recorder(); }

observe::GroupBook& Engine::groups() { return core_->program()->groups(); }

void Engine::tell_states(std::map<uint32_t, std::string> states) {
  core_->states().set(std::move(states));
}

Activity Engine::activity(Nanos now) { return core_->activity(now); }

size_t Engine::credit_bytes() const { return core_->links_->credit_bytes(); }

}  // namespace herring::worker
