// Named operations: collects what each rank announces, answers when all have. An operation whose
// payload rode along is computed right here; a larger one gets a ticket, which fixes its place in
// this server's stream, so that no order of submission can deadlock.
//
// Calls of one name in one group are numbered by each rank's order: the n-th of one rank meets the
// n-th of every other. A call that has failed stays until every rank has made it, so that a late
// one gets the error of its own call and never meets the others' next. A group is formed by a call
// of its members, too, and gets a number that no other group has.
//
// A rank that has joined a group is missing in none of its all-reduces: they are done without it,
// until all have joined.
//
// Pure bookkeeping: no I/O, and no lock of its own: what it says must leave in the order of its
// changes, so its caller holds one over both.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "server/answer.h"
#include "server/group_table.h"
#include "server/mailbox.h"
#include "server/pending.h"
#include "server/whereabouts.h"

namespace herring::server {

class Coordinator {
 public:
  // `stream`: the server's index, and that of the streams in which it gives tickets.
  Coordinator(const control::Cluster& cluster, GroupTable& groups, uint32_t stream);

  // `text`: the payload of a kAnnounce frame of that group. An error is the sender's fault alone
  // (malformed).
  Status announce(uint32_t rank, uint32_t group, std::string text, Nanos now,
                  std::vector<Answer>& out);
  // Warnings and errors for operations that wait too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // `rank` will not announce anything any more: in any group, or in this one. `how`: "has left the
  // job ...".
  void rank_gone(uint32_t rank, const std::string& how, std::vector<Answer>& out);
  void rank_gone(JobGroup& group, uint32_t rank, const std::string& how, std::vector<Answer>& out);

  // In which calls the rank says that it is held up; empty: in none.
  void set_whereabouts(uint32_t rank, std::string text);
  // Where these ranks of the job are held up, to be appended to a message.
  std::string where(const std::vector<uint32_t>& ranks) const {
    return whereabouts_.describe(ranks);
  }

  // Nobody waits for an answer.
  bool idle() const { return waiting_ == 0 && mailbox_.idle(); }

 private:
  using Calls = std::deque<Pending>;
  using Name = std::pair<uint32_t, std::string>;  // with the number of its group

  // What of one rank waits for an answer: bounded, whatever the rank sends.
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
  size_t waiting_ = 0;            // calls that wait for an answer
  size_t failed_ = 0;             // that some rank has not made yet
  uint32_t formed_ = 0;           // groups
};

}  // namespace herring::server
