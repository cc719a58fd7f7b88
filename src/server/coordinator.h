// Named operations: collects what each rank announces, answers when all have. An operation whose
// payload rode along is computed right here; a larger one gets a ticket, which fixes its place in
// this server's stream, so that no order of submission can deadlock. Pure bookkeeping: no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace herring::server {

struct Answer {
  uint32_t rank = 0;
  wire::FrameHeader header;
  std::string payload;
  bool can_wait = false;  // for a moment: whoever gets it is computing
};

class Coordinator {
 public:
  Coordinator(const control::Cluster& cluster, uint32_t stream);

  // `text`: the payload of a kAnnounce frame. An error is the sender's fault alone (malformed).
  Result<std::vector<Answer>> announce(uint32_t rank, std::string text, Nanos now);
  // Warnings and errors for operations that wait too long.
  std::vector<Answer> overdue(Nanos now);
  // `rank` will not announce anything any more.
  std::vector<Answer> rank_left(uint32_t rank);

  bool idle() {
    std::lock_guard lock(mutex_);
    return pending_.empty();
  }

 private:
  struct Call {
    bool here = false;
    std::string text;          // owns what `message.payload` views
    wire::Announce message;
  };
  struct Pending {
    Nanos since = 0;
    bool warned = false;
    uint32_t arrived = 0;
    std::vector<Call> calls;   // by rank
  };

  std::vector<Answer> resolve(Pending pending);
  std::vector<Answer> compute(const Pending& pending) const;
  std::vector<Answer> fail(const Pending& pending, Code code, const std::string& text) const;
  std::string missing(const Pending& pending) const;

  const control::Cluster& cluster_;
  const uint32_t stream_;
  std::mutex mutex_;
  std::map<std::string, Pending> pending_;  // by name
  std::vector<uint32_t> left_;  // in the order of leaving
  uint32_t next_ticket_ = 0;
};

// "" when all calls agree, else who called what. Exposed for tests.
std::string describe_mismatch(const std::vector<wire::Announce>& calls);

}  // namespace herring::server
