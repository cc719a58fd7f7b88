// Named operations: collects the announcements of all ranks, and answers when all have arrived. If
// payloads were sent along, the result is computed right here. Otherwise the operation gets a
// ticket, which fixes its place in this server's stream. Therefore no order of submission can
// deadlock.
//
// Calls of one name in one group are numbered in each rank's order: the n-th call of one rank meets
// the n-th of every other. A failed call stays until every rank has made it. So a late rank gets
// the error of its own call and never meets the others' next call. A group is formed by a call of
// its members, too, and gets a number that no other group has.
//
// All-reduces do not wait for a rank that has joined their group; they go on without it until all
// have joined.
//
// Pure bookkeeping without I/O. Answers must leave in the order of changes, so the caller holds a
// lock over both.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "observe/lateness.h"
#include "observe/rank_states.h"
#include "server/answer.h"
#include "server/group_table.h"
#include "server/mailbox.h"
#include "server/pending.h"
#include "server/view.h"
#include "server/whereabouts.h"

namespace herring::server {

class Coordinator {
 public:
  // `stream`: the server's index, which is also the number of the streams in which it gives
  // tickets. All references must outlive this object.
  Coordinator(const control::Cluster& cluster, GroupTable& groups, uint32_t stream,
              const observe::RankStates& states);

  // Handles an announcement. `text`: the payload of a kAnnounce frame of that group. An error means
  // that the announcement is malformed, which is the sender's fault alone.
  Status announce(uint32_t rank, uint32_t group, std::string text, Nanos now,
                  std::vector<Answer>& out);
  // Appends warnings and errors for operations that have waited too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // Handles a rank that will announce nothing more, in any group or in this one. `how`: for example
  // "has left the job".
  void rank_gone(uint32_t rank, const std::string& how, std::vector<Answer>& out);
  void rank_gone(JobGroup& group, uint32_t rank, const std::string& how, std::vector<Answer>& out);

  // Sets the calls in which the rank says that it is held up; empty means none.
  void set_whereabouts(uint32_t rank, std::string text);
  const Whereabouts& whereabouts() const { return whereabouts_; }
  // Adds what there is to tell about calls. Takes a time bounded by their number.
  void report(Nanos now, ServerView& view) const;

  // Returns whether nobody waits for an answer.
  bool idle() const { return waiting_ == 0 && mailbox_.idle(); }

 private:
  using Calls = std::deque<Pending>;
  using Name = std::pair<uint32_t, std::string>;  // number of the group, and name

  // How many calls of one rank wait for an answer. This is bounded, whatever the rank sends.
  struct Load {
    size_t calls = 0, bytes = 0;
  };
  Result<std::shared_ptr<JobGroup>> group_of(uint32_t group, const wire::Announce& message,
                                             uint32_t rank) const;
  Calls::iterator next_call(Calls& calls, const std::shared_ptr<JobGroup>& group,
                            const wire::Announce& message, uint32_t index, Nanos now);
  Status objection_to(const Pending& pending, const Announcement& call) const;
  Status objection_to_joined(const Pending& pending, const wire::Announce& message) const;
  Status gone(const JobGroup& group, const std::string& name) const;
  void fail(Pending& pending, Status why, std::vector<Answer>& out);
  void answered(const Pending& pending);
  void compare(Pending& pending, uint32_t rank, Nanos now);
  Calls::iterator advance(Calls& calls, Calls::iterator pending, std::vector<Answer>& out);
  void resolve(Pending& pending, std::vector<Answer>& out);
  void form(const JobGroup& group, const Announces& calls, std::vector<Answer>& out);
  const Pending* joining(const JobGroup& group) const;
  static void go_without(Pending& pending, uint32_t index);
  void join(const JobGroup& group, uint32_t index, std::vector<Answer>& out);
  template <typename Concerns>
  void never_called(const Concerns& concerns, uint32_t rank, std::vector<Answer>& out);

  const control::Cluster& cluster_;
  GroupTable& groups_;
  const uint32_t stream_;
  Whereabouts whereabouts_;
  Mailbox mailbox_;
  Reminders reminders_;
  std::map<Name, Calls> names_;
  std::vector<Load> loads_;       // by rank
  std::vector<observe::Lateness> lateness_;  // by rank
  size_t waiting_ = 0;            // calls that wait for an answer
  size_t failed_ = 0;             // failed calls that some rank has not made yet
  uint32_t formed_ = 0;           // number of groups formed here
};

}  // namespace herring::server
