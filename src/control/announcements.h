// What a member hears about its job, for the callbacks of Member::watch. What it hears before
// somebody watches waits until then. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "control/member.h"

namespace herring::control {

class Announcements {
 public:
  struct Watcher {
    Member::OnLoss lost;
    Member::OnAbort aborted;
    Member::OnEnd ended;
    Member::OnReplacement replaced;
  };
  // Calls one of the watcher's functions.
  using Announcement = std::function<void(const Watcher&)>;

  void watch(Watcher watcher) {
    watcher_ = std::move(watcher);
    deliver();
  }
  // Announcements are delivered in their order. A callback may cause others, which come after it.
  void add(Announcement announcement) {
    waiting_.push_back(std::move(announcement));
    deliver();
  }
  // Drops what was not delivered.
  void clear() { waiting_.clear(); }

 private:
  void deliver() {
    if (!watcher_ || delivering_) return;
    delivering_ = true;
    // Resets the flag even if a callback throws, because what comes later must still be delivered.
    const std::unique_ptr<bool, void (*)(bool*)> ends(&delivering_, [](bool* on) { *on = false; });
    while (!waiting_.empty()) {
      const Announcement next = std::move(waiting_.front());
      waiting_.pop_front();
      next(*watcher_);
    }
  }

  std::optional<Watcher> watcher_;
  std::deque<Announcement> waiting_;
  bool delivering_ = false;
};

}  // namespace herring::control
