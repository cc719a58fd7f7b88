// A call that not every rank has made yet: which ranks have made it, and the messages about the
// others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/reminders.h"
#include "base/streams.h"
#include "control/cluster.h"
#include "observe/whereabouts.h"
#include "server/answer.h"
#include "server/calls.h"
#include "server/group_table.h"

namespace herring::server {

using observe::Whereabouts;

// A call as one rank announces it.
struct Announcement {
  Announcement(uint32_t index, std::string text, wire::Announce message)
      : index(index), text(std::move(text)), message(std::move(message)) {
    view();
  }
  Announcement(Announcement&& other) noexcept
      : Announcement(other.index, std::move(other.text), std::move(other.message)) {
    since = other.since;
  }
  Announcement& operator=(Announcement&& other) noexcept {
    index = other.index;
    since = other.since;
    text = std::move(other.text);
    message = std::move(other.message);
    view();
    return *this;
  }

  uint32_t index = 0;        // of the rank, in the group
  Nanos since = 0;           // when it came, if it is held
  std::string text;          // owns the bytes that `message.payload` views
  wire::Announce message;

 private:
  // Moving the text may have moved its bytes. The payload is the end of the text.
  void view() {
    const size_t bytes = message.payload.size();
    message.payload = std::string_view(text).substr(text.size() - bytes);
  }
};

// One call of a name by all ranks of a group.
struct Pending {
  Pending(const std::shared_ptr<JobGroup>& group, Reign reign, Nanos now)
      : group(group),
        reign(reign),
        since(now),
        here(group->members.size()),
        arrived(static_cast<uint32_t>(group->gone.size())) {
    for (const JobGroup::Gone& one : group->gone) here[one.index] = true;
  }

  std::shared_ptr<JobGroup> group;
  Reign reign;
  uint64_t number = 0;       // of its answers; 0: not answered yet
  Nanos since = 0;
  uint32_t timeout_ms = ~0u;  // the shortest of all ranks that wait
  bool warned = false, warned_early = false;
  std::vector<bool> here;    // by index: whether the rank has made the call
  uint32_t arrived = 0;      // ranks that have made it, or never will
  std::vector<uint32_t> joined;  // of these, by index: ranks that joined instead
  std::vector<Announcement> calls;   // calls that wait for an answer, in order of arrival
  Nanos newest = 0;  // when the latest of them arrived
  std::optional<Status> failure;

  std::vector<uint32_t> missing() const;  // ranks in the job
  // Goes on without a rank that has joined, unless that has made the call.
  void go_without(uint32_t index) {
    if (count(index)) joined.push_back(index);
  }
  // Notes that the rank has made the call, or never will. Returns whether that is new.
  bool count(uint32_t index) {
    if (here[index]) return false;
    here[index] = true;
    ++arrived;
    return true;
  }
};

// How much of a rank waits here for other ranks. This is bounded, whatever the rank sends.
struct Load {
  // Far more than a program needs that waits for its results.
  static constexpr size_t kMostCalls = 1 << 16, kMostBytes = size_t{1} << 30;

  size_t calls = 0, bytes = 0;

  bool admits(size_t more) const { return calls < kMostCalls && bytes + more <= kMostBytes; }
};

class Loads {
 public:
  explicit Loads(uint32_t ranks) : loads_(ranks) {}

  const Load& of(uint32_t rank) const { return loads_[rank]; }
  size_t calls() const { return calls_; }  // of all ranks
  void add(const JobGroup& group, const Announcement& call) {
    Load& load = loads_[group.members.ranks()[call.index]];
    ++calls_;
    ++load.calls;
    load.bytes += call.text.size();
  }
  void remove(const JobGroup& group, const Announcement& call) {
    Load& load = loads_[group.members.ranks()[call.index]];
    --calls_;
    --load.calls;
    load.bytes -= call.text.size();
  }

 private:
  std::vector<Load> loads_;  // by rank
  size_t calls_ = 0;
};

// Creates the messages about calls that wait.
class Reminders {
 public:
  // Both references must outlive this object.
  Reminders(const control::Cluster& cluster, const Whereabouts& whereabouts)
      : cluster_(cluster), whereabouts_(whereabouts), quiet_(cluster.size) {}

  // Returns a text such as "allreduce 'x'".
  static std::string name_of(const Pending& pending);
  // Returns kTimeout if the call has waited too long.
  Status timed_out(const Pending& pending, Nanos now) const;
  // Appends a warning if one is due.
  void remind(Pending& pending, Nanos now, std::vector<Answer>& out);

 private:
  // When to tell a rank again that calls hold each other up. Some programs recover from this in
  // every step, and must not fill a log.
  struct Quiet {
    Nanos until = 0, pause = kFirstReminder;
  };

  bool holds_each_other_up(const Pending& pending, Nanos now) const;
  // Returns a text such as "allreduce 'x' waited 3 s for rank 1 (host ...)".
  std::string waits(const Pending& pending, Nanos now, const char* verb) const;

  const control::Cluster& cluster_;
  const Whereabouts& whereabouts_;
  std::vector<Quiet> quiet_;  // by rank
};

}  // namespace herring::server
