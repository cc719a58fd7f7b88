// One control connection: a flow that carries small messages, and when it was last heard from.
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

// Time for which peers were silent, without the time for which the watching thread itself did not
// run: a machine that stood still must not accuse others. Pure.
class Silence {
 public:
  explicit Silence(Nanos now) : last_tick_(now) {}
  // The watcher looks around; it meant to do so `period` after the last time. Returns by how much
  // it is late: silences measured from before now are shorter by that.
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
    // An error drops the connection: on_dropped follows.
    virtual Status on_message(Channel& channel, wire::FrameType type, uint8_t flags,
                              std::string_view payload) = 0;
    // The connection is gone, by the other side or by an error. Called once. The
    // channel may not be destroyed inside either callback.
    virtual void on_dropped(Channel& channel, const Status& why) = 0;
  };

  // `limit`: bytes in one message. Larger ones are an error.
  Channel(transport::EventLoop& loop, transport::Connection& connection, uint32_t limit,
          Owner& owner);

  void send(wire::FrameType type, std::string payload = {}, uint8_t flags = 0);
  // One message of two parts, the second of which several channels share.
  void send(wire::FrameType type, std::string own, std::shared_ptr<const std::string> common);
  // Ends at once; nothing is reported.
  void close() { flow_->close({}); }
  bool closed() const { return flow_->closed(); }
  size_t backlog() const { return flow_->backlog(); }

  Nanos heard_at() const { return heard_at_; }
  // Checks whether the other side's system acknowledges what is sent. `late`: see Silence.
  void check_acknowledged(Nanos late, Nanos now);
  // For how long neither the process nor its system was heard: a process may be stopped, or held up
  // by its disk, and a machine that acknowledges for it is not dead.
  Nanos silent(Nanos now) const { return now - std::max(heard_at_, acknowledged_at_); }

  void* user = nullptr;  // the owner's own

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
  std::deque<Shared> shared_;  // the flow may not have written them yet
  const std::unique_ptr<transport::Flow> flow_;
};

}  // namespace herring::control
