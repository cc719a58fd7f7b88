// Tells the servers in which calls threads of this rank have been held up for a while. The servers
// tell the ranks that wait for this one (observe/whereabouts.h). Engine thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "engine/core.h"

namespace herring::worker {

class HeldUp {
 public:
  explicit HeldUp(engine::Core& core) : core_(core) {}

  // Must be called regularly.
  void tell(Nanos now);
  // Tells a server that has come later.
  void tell_to(uint32_t server);
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  engine::Core& core_;
  std::string text_;         // that the servers have
  Nanos due_ = 0;            // when to check it next
  uint64_t bytes_sent_ = 0;
};

}  // namespace herring::worker
