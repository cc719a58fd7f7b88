// A control connection: a flow that carries small messages, and when the other side was last heard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "transport/transport.h"

namespace herring::control {

// Corrects the time for which peers were silent by the time during which the watching thread itself
// did not run: a machine that stood still must not accuse others. Pure.
class WatcherDelay {
 public:
  explicit WatcherDelay(Nanos now) : last_tick_(now) {}
  // Called when the watcher checks its peers, which should be `period` after its last check.
  // Returns how late the check is: silences that began before now are shorter by this time.
  Nanos tick(Nanos now, Nanos period) {
    const Nanos late = now - last_tick_ - period;
    last_tick_ = now;
    return late > 0 ? late : 0;
  }

 private:
  Nanos last_tick_;
};

class Channel final : private transport::FlowHandler {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // An error drops the connection, and on_dropped() follows.
    virtual Status on_message(Channel& channel, wire::FrameType type, uint8_t flags,
                              std::string_view payload) = 0;
    // The connection was ended by the other side or by an error. Called once. Neither callback may
    // destroy the channel.
    virtual void on_dropped(Channel& channel, const Status& why) = 0;
  };

  // `limit` is the most bytes that one message may have. A larger message is an error.
  Channel(transport::EventLoop& loop, transport::Connection& connection, uint32_t limit,
          Owner& owner);

  void send(wire::FrameType type, std::string payload = {}, uint8_t flags = 0);
  // Sends one message in two parts. Several channels may share the second part.
  void send(wire::FrameType type, std::string own, std::shared_ptr<const std::string> common);
  // Closes the channel at once, without a callback.
  void close() { flow_->close({}); }
  bool closed() const { return flow_->closed(); }
  size_t backlog() const { return flow_->backlog(); }

  // When the process, and when it or its system, was last heard.
  Nanos heard_at() const { return heard_at_; }
  Nanos system_heard_at() const { return std::max(heard_at_, acknowledged_at_); }
  // Checks whether the other side's system acknowledges what is sent. `late`: see WatcherDelay.
  void check_acknowledged(Nanos late, Nanos now);
  // Returns for how long neither the process nor its system was heard. A process may be stopped, or
  // held up by its disk, and a machine that acknowledges for the process is not dead.
  Nanos silent(Nanos now) const { return now - system_heard_at(); }

  void* user = nullptr;  // for the owner's use

 private:
  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  void on_payload(transport::Flow&, const wire::FrameHeader&, size_t) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_closed(transport::Flow&, const Status& why) override;

  transport::EventLoop& loop_;
  Owner& owner_;
  const uint32_t limit_;
  Nanos heard_at_, acknowledged_at_;
  std::string payload_;
  using Shared = std::pair<std::string, std::shared_ptr<const std::string>>;
  std::deque<Shared> shared_;  // parts that the flow may not have written yet
  const std::unique_ptr<transport::Flow> flow_;
};

}  // namespace herring::control
