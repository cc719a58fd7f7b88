// Named operations: collects what each rank announces, answers when all have. An operation whose
// payload rode along is computed right here; a larger one gets a ticket, which fixes its place in
// this server's stream, so that no order of submission can deadlock.
//
// Calls of one name are numbered by each rank's order: the n-th of one rank meets the n-th of every
// other. A call that has failed stays until every rank has made it, so that a late one gets the
// error of its own call and never meets the others' next.
//
// Pure bookkeeping: no I/O, and no lock of its own: what it says must leave in the order of its
// changes, so its caller holds one over both.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "server/answer.h"

namespace herring::server {

class Coordinator {
 public:
  Coordinator(const control::Cluster& cluster, uint32_t stream);

  // `text`: the payload of a kAnnounce frame. An error is the sender's fault alone (malformed).
  Status announce(uint32_t rank, std::string text, Nanos now, std::vector<Answer>& out);
  // Warnings and errors for operations that wait too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // `rank` will not announce anything any more.
  void rank_left(uint32_t rank, std::vector<Answer>& out);

  // Nobody waits for an answer.
  bool idle() const { return waiting_ == 0; }

 private:
  struct Call {
    uint32_t rank = 0;
    std::string text;          // owns what `message.payload` views
    wire::Announce message;
  };
  // One call of a name by all ranks.
  struct Pending {
    Nanos since = 0;
    uint32_t timeout_ms = ~0u;  // the shortest of those who wait
    bool warned = false;
    std::vector<bool> here;    // by rank: has made it
    uint32_t arrived = 0;      // ranks that have made it, or never will
    std::vector<Call> calls;   // that wait for an answer, in order of arrival
    std::optional<Status> failure;
  };
  using Calls = std::deque<Pending>;

  // What of one rank waits for an answer: bounded, whatever the rank sends.
  struct Load {
    size_t calls = 0, bytes = 0;
  };

  Calls::iterator next_call(Calls& calls, uint32_t rank, Nanos now);
  Status objection_to(const Call& call) const;
  void fail(Pending& pending, Status why, std::vector<Answer>& out);
  void answered(const Pending& pending);
  void resolve(Pending& pending, std::vector<Answer>& out);
  void compute(const std::vector<const wire::Announce*>& calls, std::vector<Answer>& out) const;
  void launch(const std::vector<const wire::Announce*>& calls, std::vector<Answer>& out);
  std::string missing(const Pending& pending) const;

  const control::Cluster& cluster_;
  const uint32_t stream_;
  std::map<std::string, Calls> names_;
  std::vector<Load> loads_;       // by rank
  size_t waiting_ = 0;            // calls that wait for an answer
  size_t failed_ = 0;             // that some rank has not made yet
  std::vector<uint32_t> left_;    // in the order of leaving
  uint32_t next_ticket_ = 0;
};

}  // namespace herring::server
