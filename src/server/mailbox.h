// Sends and receives between two ranks of a group: the server that answers for a receiver pairs
// what is sent to it with what it asks for, in the order in which both come. A small payload rides
// along and waits here; for a larger one both are told where the other listens, and it goes from
// worker to worker. Pure bookkeeping, as Coordinator, whose lock its caller holds.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "server/answer.h"
#include "server/group_table.h"
#include "server/whereabouts.h"

namespace herring::server {

class Mailbox {
 public:
  // `stream`: in which larger payloads go. `whereabouts` must outlive it.
  Mailbox(const control::Cluster& cluster, uint32_t stream, const Whereabouts& whereabouts);

  // A send or receive of `rank`, a member; `text` owns what the message's payload views.
  void post(const std::shared_ptr<JobGroup>& group, uint32_t rank, std::string text,
            wire::Announce message, Nanos now, std::vector<Answer>& out);
  // Warnings and errors for what waits too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // Whatever can only be paired with one who is gone (JobGroup::gone) fails.
  void fail_gone(std::vector<Answer>& out);
  bool idle() const { return boxes_.empty(); }

 private:
  struct Post {
    uint32_t index = 0;       // whose it is, inside the group
    std::string text;
    wire::Announce message;
    Nanos since = 0;
    bool warned = false;

    bool sends() const { return wire::is<wire::Send>(message.what); }
    std::optional<uint32_t> other() const;  // to whom, or from whom; none: from anybody
    std::optional<uint64_t> tag() const;    // none: any
    bool fits(const Post& other) const;
  };
  // What waits for one receiver: sends to it, or receives that it has called; a pair never waits.
  struct Box {
    std::shared_ptr<JobGroup> group;
    std::deque<Post> sends, receives;
  };
  using Boxes = std::map<std::pair<uint32_t, uint32_t>, Box>;  // by group and receiver
  // What of one rank waits: bounded, whatever it sends.
  struct Load {
    size_t posts = 0, bytes = 0;
  };

  void pair(JobGroup& group, const Post& send, const Post& receive, std::vector<Answer>& out);
  // Takes out what `why` has an error for, and answers it.
  void fail_where(const std::function<Status(const Box&, Post&)>& why, std::vector<Answer>& out);
  Status gone(const JobGroup& group, const Post& post) const;
  std::string describe(const JobGroup& group, const Post& post) const;
  std::string where_other(const JobGroup& group, const Post& post) const;
  void count(const JobGroup& group, const Post& post, bool waits);

  const control::Cluster& cluster_;
  const uint32_t stream_;
  const Whereabouts& whereabouts_;
  Boxes boxes_;
  std::vector<Load> loads_;  // by rank
};

}  // namespace herring::server
