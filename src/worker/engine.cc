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
  return core_->calls().submit(std::move(call), waits);
}

void Engine::refuse(const std::shared_ptr<Group>& group, wire::Collective what,
                    const std::string& name, const std::string& why) {
  core_->calls().refuse(group ? group : world(), std::move(what), name, why);
}

const std::shared_ptr<Group>& Engine::world() const { return core_->core().groups.world(); }

Status Engine::destroy(const std::shared_ptr<Group>& group) {
  return loop()->ask([&] { return core_->core().groups.destroy(group); })
      .value_or(Status(Code::kShutdown, "herring was shut down"));
}

void Engine::fail(const Status& status) { core_->core().ending.fail(status); }

void Engine::post(std::function<void(EngineCore&)> news) {
  loop()->post([core = core_.get(), news = std::move(news)] {
    if (!core->core().ending.begun()) news(*core);
  });
}

void Engine::tell(const control::Loss& loss) {
  post([loss](EngineCore& core) {
    if (!loss.left) return core.membership().peer_lost(loss);
    if (!loss.is_server) core.membership().rank_left(loss.index);
  });
}

void Engine::tell(const control::Replacement& news) {
  post([news](EngineCore& core) { core.coming_servers().server_news(news); });
}

Status Engine::failure() const { return core_->core().ending.failure(); }

// It is made before memory can be short: an engine that could not stop would outlive what it uses.
static const Status& kShutDown = *new Status(Code::kShutdown, "shut down");

void Engine::stop() {
  engine::Core& core = core_->core();
  if (!core.ending.stop()) return;
  Status left = kShutDown;
  static_cast<void>(without_exceptions([&left] {
    left = {Code::kShutdown, "herring was shut down while the operation was in flight"};
    return Status();
  }));
  const Status told = without_exceptions([&] {
    core.loop->post([&core, &left] { core.ending.fail_now(left, true); });
    return Status();
  });
  // Data that others need from this worker is still on its way to them. It would be lost with a
  // connection that is closed with unread input, or that receives more input afterwards.
  if (told.ok()) {
    static_cast<void>(without_exceptions([&core] {
      transport::await_delivery(
          *core.loop,
          [&core] {
            const size_t unread = core.ending.failure().ok() ? 1 : 0;  // see Ending::fail_now()
            return core.links->undelivered() + core.executor->undelivered() + unread;
          },
          kStandstill, kLongestFarewell);
      return Status();
    }));
  }
  core.loop->join();
  // The engine thread has ended, perhaps before it could do this.
  static_cast<void>(without_exceptions([&core, &left] {
    core.ending.end_after_loop(left);
    return Status();
  }));
  // If it has failed, and rank 0 is gone with the rendezvous, only this tells its neighbours.
  core.bus->close(core.ending.leaves());
}

const std::shared_ptr<transport::EventLoop>& Engine::loop() const { return core_->core().loop; }

SharedHeap& Engine::heap() { return *core_->core().heap; }

rounds::Rounds& Engine::rounds() { return core_->rounds(); }
rounds::SeriesList& Engine::series() { return core_->series(); }

Engine::Counters Engine::counters() {
  if (core_->core().ending.stopped()) return {};
  return loop()->ask([this] {
    const engine::Core& core = core_->core();
    Counters counters{core.links->counters(),     core.executor->counters(),
                      core.links->credit_bytes(), core_->kept_bytes(),
                      core_->notice_bytes(),      core_->stands_still(),
                      core.loop->wakeups(),       core_->calls().device_sums(),
                      core_->calls().neighbour_sums()};
    counters.paths = core.links->paths();
    for (const auto& path : counters.paths) counters.retransmits += path.retransmits;
    for (uint32_t server = 0; server < counters.paths.size(); ++server) {
      counters.names.push_back(core.cluster.describe_server(server));
    }
    return counters;
  }).value_or(Counters{});
}

engine::Program& Engine::program() { return *core_->core().program; }

void Engine::tell_states(std::map<uint32_t, std::string> states) {
  core_->core().states.set(std::move(states));
}

size_t Engine::credit_bytes() const { return core_->core().links->credit_bytes(); }

}  // namespace herring::worker
