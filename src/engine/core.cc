#include "engine/core.h"

#include <algorithm>
#include <utility>

namespace herring::engine {
namespace {

// A timeout of milliseconds is meant for ranks that do not call. Data in motion may pause longer.
constexpr uint32_t kLeastStallMs = 2000;

}  // namespace

Core::Core(const control::Cluster& cluster, EngineOptions options,
           transport::Transport& transport, std::unique_ptr<LocalBus> bus)
    : cluster(cluster),
      options(std::move(options)),
      me(cluster.workers[this->options.rank]),
      heap(std::make_shared<SharedHeap>(
          SharedHeap::kDefaultCacheBytes,
          cluster.local_size(me.node) > 1 ? Sharing::kNode : Sharing::kProcess)),
      loop(transport.make_loop(true)),
      program(std::make_shared<Program>(this->options.observe ? observe::Recorder::kEntries : 0,
                                        loop->now())),
      bus(std::move(bus)),
      ending(*this),
      groups(*this) {
  program->on_failure([failed = this->options.failed](const Status& why) { failed(why); });
}

Core::~Core() = default;

Status Core::run(std::function<void()> task, bool caller_waits) {
  const bool runs = caller_waits ? loop->post_before_drive(std::move(task))
                                 : loop->post(std::move(task));
  return runs ? Status() : Status(Code::kShutdown, "herring was shut down");
}

uint32_t Core::timeout_ms(double seconds) const {
  // At most 46 days, to fit the wire format. At least 1, because 0 would have passed before anybody
  // can answer.
  return static_cast<uint32_t>(
      std::clamp((seconds > 0 ? seconds : options.timeout) * 1000, 1.0, 4e9));
}

Deadline Core::deadline(double seconds) const {
  const uint32_t own = timeout_ms(seconds), setting = timeout_ms(0);
  return {std::max(own, setting), std::max(own, std::min(setting, kLeastStallMs)), warn_ms()};
}

}  // namespace herring::engine
