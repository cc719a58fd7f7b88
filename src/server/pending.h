// A call that not every rank has made yet: who has, and what is said about those who have not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/reminders.h"
#include "control/cluster.h"
#include "server/answer.h"
#include "server/calls.h"
#include "server/group_table.h"
#include "server/whereabouts.h"

namespace herring::server {

// As one rank makes it.
struct Announcement {
  uint32_t index = 0;        // of the rank, in the group
  std::string text;          // owns what `message.payload` views
  wire::Announce message;
};

// One call of a name by all ranks of a group.
struct Pending {
  std::shared_ptr<JobGroup> group;
  Nanos since = 0;
  uint32_t timeout_ms = ~0u;  // the shortest of those who wait
  bool warned = false, warned_early = false;
  std::vector<bool> here;    // by index: has made it
  uint32_t arrived = 0;      // ranks that have made it, or never will
  std::vector<uint32_t> joined;  // of them, by index: have joined instead
  std::vector<Announcement> calls;   // that wait for an answer, in order of arrival
  std::optional<Status> failure;

  std::vector<uint32_t> missing() const;  // ranks of the job
};

// What is said of a call that waits.
class Reminders {
 public:
  // Both must outlive it.
  Reminders(const control::Cluster& cluster, const Whereabouts& whereabouts)
      : cluster_(cluster), whereabouts_(whereabouts), quiet_(cluster.size) {}

  // kTimeout: it has waited too long.
  Status timed_out(const Pending& pending, Nanos now) const;
  // A warning, if one is due.
  void remind(Pending& pending, Nanos now, std::vector<Answer>& out);

 private:
  // When a rank is told next that calls hold each other up: programs exist that go on from there
  // in every step, and are not to fill a log.
  struct Quiet {
    Nanos until = 0, pause = kFirstReminder;
  };

  bool holds_each_other_up(const Pending& pending, Nanos now) const;
  // "allreduce 'x' waited 3 s for rank 1 (host ...)".
  std::string waits(const Pending& pending, Nanos now, const char* verb) const;

  const control::Cluster& cluster_;
  const Whereabouts& whereabouts_;
  std::vector<Quiet> quiet_;  // by rank
};

}  // namespace herring::server
