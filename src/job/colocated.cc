#include "job/colocated.h"

#include <chrono>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"

namespace herring::job {

Result<std::unique_ptr<Colocated>> Colocated::start(const control::Member::Options& member,
                                                    uint32_t node,
                                                    transport::Transport& transport) {
  HERRING_ASSIGN_OR_RETURN(auto& serving, Serving::start(member, transport));
  std::unique_ptr<Colocated> colocated(
      new Colocated(std::move(serving), member.connect_timeout));
  colocated->joining_ = std::thread([self = colocated.get(), member, node] {
    self->status_ =
        without_exceptions([&]() -> Status { return self->serving_->join(member, node); });
  });
  return colocated;
}

Colocated::~Colocated() {
  if (joining_.joinable()) joining_.join();
}

Status Colocated::joined() {
  if (joining_.joinable()) joining_.join();
  return status_;
}

// The worker's member hears nothing more once the worker has left, but the server may stay.
Status Colocated::attach() {
  control::Member& member = *serving_->member();
  HERRING_RETURN_IF_ERROR(serving_->attach(member.cluster().servers.size()));
  member.watch([this](const control::Loss& loss) { server().lost(loss); },
               [this](const Status& why) { server().job_failed(why.message()); },
               [this](control::Member::End end) {
                 if (end == control::Member::End::kAllLeft) return ended_.store(true);
                 server().hears_nothing(connect_timeout_);
               },
               [this](const control::Replacement& news) {
                 if (news.stage != control::Replacement::Stage::kServes) return;
                 server().serve({news.epoch, news.serving, {}});
               });
  return {};
}

void Colocated::leave(uint32_t rank, Farewell farewell) {
  // Skips a step that fails for lack of memory: the end must come in any case.
  const auto step = [](const auto& call) {
    static_cast<void>(without_exceptions([&]() -> Status {
      call();
      return {};
    }));
  };
  static_cast<void>(joined());
  serving_->end_reports();
  // The rendezvous tells all others that this rank has left.
  step([&] { server().rank_left(rank); });
  if (farewell != Farewell::kNothing) step([&] { drain(rank, farewell); });
  if (control::Member* const member = serving_->member()) step([&] { member->goodbye(); });
  server().stop();
}

// Waits until every worker has connected, the server has handed out everything, and no worker needs
// it for operations of its own worker, or of groups without that; or until all workers have left.
// The wait is bounded when nothing moves any more, and more tightly when only other workers'
// operations are left.
void Colocated::drain(uint32_t rank, Farewell farewell) {
  constexpr Nanos kMost = 10 * kSecond, kStandstill = 500 * kMillisecond, kSilent = 5 * kSecond;
  const Nanos start = monotonic_now();
  Nanos moved_at = start;
  uint64_t traffic = server().traffic();
  bool told = false;
  while (!ended_.load() && !interrupted()) {
    const bool released = server().released();
    if (released && server().idle()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Nanos now = monotonic_now();
    if (const uint64_t bytes = server().traffic(); bytes != traffic) {
      traffic = bytes;
      moved_at = now;
    }
    // If nobody tells the others that this rank has left, they do not release the server.
    const bool needless = released || (server().unheard() && !server().outlives(rank));
    if (now - moved_at > (needless ? kStandstill : kMost)) return;
    if (released && now - start > kMost) return;
    if (farewell == Farewell::kShort && now - start > kStandstill) return;
    if (now - start > kSilent && !std::exchange(told, true)) {
      log(LogLevel::kWarning, "waits in shutdown() because other ranks still use the server in ",
          "this process, but not longer than ", in_seconds(kMost), " without any traffic");
    }
  }
}

}  // namespace herring::job
