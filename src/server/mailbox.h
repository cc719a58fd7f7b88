// Sends and receives between two ranks of a group. The server that answers for a receiver pairs
// sends to it with its receives, in their order of arrival. A small payload is sent along and waits
// here. For a larger one, each rank is told where the other listens, and the payload goes directly
// between the workers. Pure bookkeeping; like Coordinator, it is used under its caller's lock.
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
#include "server/pending.h"
#include "server/view.h"

namespace herring::server {

class Mailbox {
 public:
  // `whereabouts` must outlive this object.
  Mailbox(const control::Cluster& cluster, const Whereabouts& whereabouts);

  // Posts a send or receive of a member. `stream`: the stream of larger payloads to the same
  // receiver.
  void post(const std::shared_ptr<JobGroup>& group, uint32_t stream, Announcement call, Nanos now,
            std::vector<Answer>& out);
  // Appends warnings and errors for posts that have waited too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // Adds the posts that have waited for a while. Takes a time bounded by the number of posts.
  void report(Nanos now, ServerView& view) const;
  // Fails posts that can only be paired with a rank that is gone (JobGroup::gone).
  void fail_gone(std::vector<Answer>& out);
  bool idle() const { return boxes_.empty(); }

 private:
  struct Post : Announcement {
    bool warned = false;

    bool sends() const { return wire::is<wire::Send>(message.what); }
    std::optional<uint32_t> other() const;  // the receiver or sender; none: any sender
    std::optional<uint64_t> tag() const;    // none: any tag
    bool fits(const Post& other) const;
  };
  // The posts that wait for one receiver: sends to it and its receives. No two of them fit each
  // other.
  struct Box {
    std::shared_ptr<JobGroup> group;
    uint32_t stream = 0;
    std::deque<Post> sends, receives;
  };
  using Boxes = std::map<std::pair<uint32_t, uint32_t>, Box>;  // by group and receiver

  static void tell_met(wire::FrameHeader& header, const Box& box, const Post& other);
  void pair(const Box& box, const Post& send, const Post& receive, std::vector<Answer>& out);
  // Removes the posts for which `why` returns an error, and answers them with it.
  void fail_where(const std::function<Status(const Box&, Post&)>& why, std::vector<Answer>& out);
  Status gone(const JobGroup& group, const Post& post) const;
  std::string describe(const JobGroup& group, const Post& post) const;
  std::string where_other(const JobGroup& group, const Post& post) const;

  const control::Cluster& cluster_;
  const Whereabouts& whereabouts_;
  Boxes boxes_;
  Loads loads_;
};

}  // namespace herring::server
