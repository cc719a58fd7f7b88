#include "job/colocated.h"

#include <chrono>

namespace herring::job {

Result<std::unique_ptr<Colocated>> Colocated::start(const control::Member::Options& member,
                                                    uint32_t node,
                                                    transport::Transport& transport) {
  auto serving = Serving::start(member, transport);
  if (!serving.ok()) return serving.status();
  std::unique_ptr<Colocated> colocated(new Colocated(std::move(*serving)));
  colocated->joining_ = std::thread([self = colocated.get(), member, node] {
    self->status_ = without_exceptions([&]() -> Status {
      HERRING_RETURN_IF_ERROR(self->serving_->join(member, node));
      self->serving_->member()->watch([](const control::Loss&) {}, [](const std::string&) {},
                                      [self](control::Member::End end) {
                                        if (end == control::Member::End::kAllLeft) {
                                          self->ended_.store(true);
                                        } else {
                                          self->server().hears_nothing();
                                        }
                                      });
      return {};
    });
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

Status Colocated::attach() {
  return serving_->attach(serving_->member()->cluster().servers.size());
}

void Colocated::leave(uint32_t rank, bool drains) {
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
  if (drains) step([&] { drain(); });
  if (control::Member* const member = serving_->member()) step([&] { member->goodbye(); });
  server().stop();
}

// Waits until every worker has connected, the server has handed out everything, and no worker needs
// it for operations of its own worker; or until all workers have left. The wait is bounded when
// nothing moves any more, and more tightly when only other workers' operations are left.
void Colocated::drain() {
  constexpr Nanos kMost = 10 * kSecond, kStandstill = 500 * kMillisecond;
  const Nanos start = monotonic_now();
  Nanos moved_at = start;
  uint64_t traffic = server().traffic();
  while (!ended_.load()) {
    const bool released = server().released();
    if (released && server().idle()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Nanos now = monotonic_now();
    if (const uint64_t bytes = server().traffic(); bytes != traffic) {
      traffic = bytes;
      moved_at = now;
    }
    if (now - moved_at > (released ? kStandstill : kMost)) return;
    if (released && now - start > kMost) return;
  }
}

}  // namespace herring::job
