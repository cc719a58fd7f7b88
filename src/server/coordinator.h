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
// A server answers for the names of its home, and may stand in for other homes. Calls, streams and
// numbers of different homes are separate. See handover.h for what happens if a server is gone.
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
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/streams.h"
#include "control/cluster.h"
#include "observe/lateness.h"
#include "observe/rank_states.h"
#include "observe/whereabouts.h"
#include "server/answer.h"
#include "server/group_table.h"
#include "server/group_numbers.h"
#include "server/handover.h"
#include "server/mailbox.h"
#include "server/pending.h"
#include "server/view.h"

namespace herring::server {

class Coordinator {
 public:
  // `index`: of the server. All references must outlive this object.
  Coordinator(const control::Cluster& cluster, GroupTable& groups, uint32_t index,
              const observe::RankStates& states);

  // Handles an announcement. `text`: the payload of a kAnnounce frame of that group. `reign`: in
  // which the sender believes this server to be. An error means that the announcement is malformed,
  // which is the sender's fault alone.
  Status announce(uint32_t rank, uint32_t group, Reign reign, std::string text, Nanos now,
                  std::vector<Answer>& out);
  // Handles the end of what a rank says at the beginning of a reign; `text` is that of kHandOver.
  Status hand_over(uint32_t rank, uint32_t group, Reign reign, std::string_view text, Nanos now,
                   std::vector<Answer>& out);
  // Appends warnings and errors for operations that have waited too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // Handles a rank that will announce nothing more, in any group or in this one. `how`: for example
  // "has left the job".
  void rank_gone(uint32_t rank, const std::string& how, Nanos now, std::vector<Answer>& out);
  void rank_gone(JobGroup& group, uint32_t rank, const std::string& how, Nanos now,
                 std::vector<Answer>& out);

  // Sets the calls in which the rank says that it is held up; empty means none.
  void set_whereabouts(uint32_t rank, std::string text) {
    whereabouts_.set(rank, std::move(text));
  }
  const Whereabouts& whereabouts() const { return whereabouts_; }
  // Adds what there is to tell about calls. Takes a time bounded by their number.
  void report(Nanos now, ServerView& view) const;

  // Returns whether nobody waits for an answer.
  bool idle() const { return loads_.calls() == 0 && handovers_.empty() && mailbox_.idle(); }

 private:
  using Calls = std::deque<Pending>;

  Result<std::shared_ptr<JobGroup>> group_of(uint32_t group, const wire::Announce& message,
                                             uint32_t rank) const;
  Result<Handover*> handover_of(const std::shared_ptr<JobGroup>& group, Reign reign);
  Status hold(Handover& handover, uint32_t rank, Announcement call, Nanos now);
  void settle(Nanos now, std::vector<Answer>& out);
  void take_over(Handover& handover, Nanos now, std::vector<Answer>& out);
  Status take_late(Handover& handover, const Lacked& join, Nanos now, std::vector<Answer>& out);
  Status give(Handover& handover, const Lacked& lacked, Nanos now, std::vector<Answer>& out);
  void introduce(Handover& handover, std::vector<Answer>& out);
  void overdue(Handover& handover, Nanos now, std::vector<Answer>& out);
  void take(const std::shared_ptr<JobGroup>& group, Reign reign, Announcement call, Nanos now,
            std::vector<Answer>& out);
  Calls::iterator next_call(Calls& calls, const std::shared_ptr<JobGroup>& group, Reign reign,
                            const wire::Announce& message, uint32_t index, Nanos now);
  void tell_failure(Pending& pending, uint32_t rank, uint64_t id, std::vector<Answer>& out) const;
  void sign(Pending& pending, std::vector<Answer>& out, size_t first) const;
  Status objection_to(const Pending& pending, const Announcement& call) const;
  Status objection_to_joined(const Pending& pending, const wire::Announce& message) const;
  Status gone(const JobGroup& group, const std::string& name) const;
  void fail(Pending& pending, Status why, std::vector<Answer>& out);
  void compare(Pending& pending, uint32_t rank, Nanos now);
  Calls::iterator advance(Calls& calls, Calls::iterator pending, std::vector<Answer>& out);
  void resolve(Pending& pending, std::vector<Answer>& out);
  Status note_number(const Name& name, uint32_t number, uint32_t rank, uint32_t index,
                     std::vector<Answer>& out);
  void form(const Pending& pending, const Announces& calls, std::vector<Answer>& out);
  const Pending* joining(const Home& home) const;
  void join(const Home& home, uint32_t index, std::vector<Answer>& out);
  template <typename Concerns>
  void never_called(const Concerns& concerns, uint32_t rank, std::vector<Answer>& out);

  const control::Cluster& cluster_;
  GroupTable& groups_;
  const uint32_t index_, servers_;
  Whereabouts whereabouts_;
  Mailbox mailbox_;
  Reminders reminders_;
  std::map<Name, Calls> names_;
  Loads loads_;                   // of calls that wait for an answer
  std::vector<observe::Lateness> lateness_;  // by rank
  size_t failed_ = 0;             // failed calls that some rank has not made yet
  GroupNumbers numbers_;
  std::map<Home, Handover> handovers_;   // that wait for ranks
};

}  // namespace herring::server
