// The servers of a job in which others stand in for a dedicated server that is lost: whether each
// can be reached, and the replacement that comes for one, from its connections until it serves.
// Engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "calls/handovers.h"
#include "control/cluster.h"
#include "engine/core.h"
#include "transport/transport.h"
#include "worker/held_up.h"

namespace herring::worker {

class ComingServers {
 public:
  ComingServers(engine::Core& core, transport::Transport& transport, calls::Handovers& handovers,
                HeldUp& held_up)
      : core_(core), transport_(transport), handovers_(handovers), held_up_(held_up) {}

  // Handles news of a replacement for a dedicated server. To one that comes, this connects; then it
  // tells it of this rank's groups, and reports when the server knows them.
  void server_news(const control::Replacement& news);
  // Handles a control frame if it is the answer of such a server about a group.
  bool on_defined(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  // The connection to a replacement has ended before it serves.
  void stop_waiting(uint32_t server, const std::string& why);

  // Reports servers that do not acknowledge what was sent. Must be called periodically.
  void check_servers(Nanos now);
  // Tells the rendezvous that a server cannot be reached. Returns false if there is no use in that.
  bool report(uint32_t server, const std::string& why);
  // Returns how many replacements for the server have come to serve, 0 at first.
  uint32_t number(uint32_t server) { return numbers_[server]; }

 private:
  using Connections = std::vector<std::unique_ptr<transport::Connection>>;
  // Connections to one replacement that are being made.
  struct Attempt {
    uint32_t number = 0;  // of the replacement
    Connections made;
    size_t missing = 0;
    std::vector<std::unique_ptr<transport::Connecting>> connecting;
  };
  void connect(const control::Replacement& news);
  void connected(uint32_t server, uint32_t flow, Connections::value_type connection);
  void comes(uint32_t server, uint32_t number, Connections flows);
  bool define_at(uint32_t server, const engine::Group& group);
  void drop(uint32_t server);
  void report_ready(uint32_t server);

  engine::Core& core_;
  transport::Transport& transport_;
  calls::Handovers& handovers_;
  HeldUp& held_up_;
  std::map<uint32_t, Attempt> attempts_;  // by server
  std::map<uint32_t, uint32_t> numbers_;  // of the replacements that serve, by server
  uint64_t definitions_ = 0;
  Nanos servers_checked_ = 0;
};

}  // namespace herring::worker
