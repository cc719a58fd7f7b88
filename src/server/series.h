// The partial all-reduces of a server: the series that it owns, contributions to their rounds, and
// answers to workers. If contributions were sent along with joins, the server sums them here.
// Otherwise a closed round gets a ticket in a stream of its own and is pushed like any buffer. Pure
// bookkeeping without I/O. Answers must leave in the order of changes, so the caller holds a lock
// over both.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/streams.h"
#include "control/cluster.h"
#include "partial/round_owner.h"
#include "observe/whereabouts.h"
#include "server/answer.h"
#include "server/group_table.h"
#include "server/view.h"
#include "wire/partial.h"

namespace herring::server {

using observe::Whereabouts;

class SeriesTable {
 public:
  // All references must outlive this object.
  SeriesTable(const control::Cluster& cluster, const GroupTable& groups, uint32_t server,
              const Whereabouts& whereabouts);

  // Handle the payloads of frames from `rank` and append answers to `out`. An error is the sender's
  // fault.
  Status enlist(uint32_t rank, uint32_t group, Reign reign, std::string_view text, Nanos now,
                std::vector<Answer>& out);
  // In a reign that begins because the owner before is gone: what a rank knows of a series in which
  // it has enlisted here, and a round of which it has heard. An empty text: the rank has told all.
  Status tell(uint32_t rank, uint32_t group, Reign reign, std::string_view text, Nanos now,
              std::vector<Answer>& out);
  Status tell_round(uint32_t rank, const wire::FrameHeader& header, std::string text);
  // Goes on with the series of which every living rank has told what it knows.
  void settle(Nanos now, std::vector<Answer>& out);
  Status join(uint32_t rank, std::string_view text, Nanos now, std::vector<Answer>& out);
  Status received(uint32_t rank, std::string_view text, Nanos now, std::vector<Answer>& out);
  // Handles a rank that is dead or has left.
  void lost(uint32_t rank, Nanos now, std::vector<Answer>& out);
  // No other server stands in for it: members of the series that it sums for know, and give nothing
  // more.
  void server_gone(uint32_t server) { gone_servers_.insert(server); }
  // Closes rounds whose grace has ended.
  void tick(Nanos now, std::vector<Answer>& out);
  // Returns when tick() should be called next; 0 means never.
  Nanos wake_at() const;
  // Appends warnings and errors for rounds that have waited too long.
  void overdue(Nanos now, std::vector<Answer>& out);
  // Adds the rounds that wait for ranks.
  void report(Nanos now, ServerView& view) const;
  // Returns whether the job has any series, here or on other servers. If so, the job outlives the
  // deaths of workers. Needs no lock.
  bool any() const { return any_.load(); }

 private:
  struct Series {
    Series(const wire::Enlist& options, std::shared_ptr<JobGroup> group, Reign reign)
        : options(options),
          group(std::move(group)),
          owner({size(), options.quorum, options.grace, options.staleness,
                 options.replays},
                !options.inline_payload),
          reign(reign), enlisted(size(), false), held(options.inline_payload ? size() : 0) {}
    uint32_t size() const { return group->members.size(); }
    uint32_t rank(uint32_t index) const { return group->members.ranks()[index]; }

    const wire::Enlist options;
    const std::shared_ptr<JobGroup> group;  // ranks here and below are indices in it
    partial::RoundOwner owner;
    const Reign reign;  // in which it has begun here
    uint32_t stream = 0, next_ticket = 0;
    // What members have told so far, by index, in a reign that waits for more. Empty otherwise.
    std::vector<std::optional<partial::SeriesState>> told;
    std::vector<bool> enlisted;  // no round closes before all have: the others would not know it
    std::vector<std::string> held;  // inline contributions not counted yet, by index
    // Digests of replicas: for each round, the first digest and the index of its rank.
    std::map<uint32_t, std::pair<uint64_t, uint32_t>> digests;
    Nanos warned_for = 0;  // the waiting_since() of the last warning
    bool failed = false;
  };

  // A home of a group.
  using Home = std::pair<uint32_t, uint32_t>;
  // A reign that has begun here because the owner before is gone.
  struct TakeOver {
    Reign reign;
    std::shared_ptr<JobGroup> group;
    Nanos since = 0;
    bool warned = false, settled = false;
    std::vector<bool> said;  // who has told all, by index
  };

  Result<TakeOver*> take_over_of(const std::shared_ptr<JobGroup>& group, Reign reign, Nanos now);
  Result<Series*> told_series(uint32_t rank, uint64_t id, uint32_t* index);
  Status told_join(uint32_t rank, uint32_t index, Series& series, const wire::JoinMessage& join,
                   std::vector<Answer>& out);
  static Status told_received(uint32_t rank, uint32_t index, Series& series,
                              const wire::RoundMark& mark);
  Status count_told(uint32_t rank, size_t bytes);
  std::vector<uint32_t> missing(const TakeOver& take_over) const;
  bool is_gone(const Series& series, uint32_t index) const;
  void settle(uint64_t id, Series& series, Nanos now, std::vector<Answer>& out);
  Status take_over(uint64_t id, Series& series,
                   const std::vector<std::optional<partial::SeriesState>>& known, Nanos now,
                   std::vector<Answer>& out);
  void overdue(TakeOver& take_over, Nanos now, std::vector<Answer>& out);
  static void add_held(Series& series, uint32_t index, std::string_view payload);
  void advance(uint64_t id, Series& series, Nanos now, std::vector<Answer>& out);
  std::string sum(Series& series, const partial::Closed& closed, uint32_t divisor) const;
  Status compare(Series& series, uint32_t index, const wire::JoinMessage& join);
  std::string describe_rank(const Series& series, uint32_t index) const;
  static std::vector<uint32_t> missing(const Series& series);  // ranks of the job
  bool all_enlisted(const Series& series) const;
  bool lacks_server(const Series& series) const;
  // Fails only this series, which cannot begin without the lost rank.
  void call_off(uint64_t id, Series& series, uint32_t lost, std::vector<Answer>& out) const;
  void fail(const Status& why, std::vector<Answer>& out) const;
  uint32_t free_stream(Reign reign);

  const control::Cluster& cluster_;
  const GroupTable& groups_;
  const uint32_t server_;
  const Whereabouts& whereabouts_;
  std::atomic<bool> any_{false};
  std::map<uint64_t, std::unique_ptr<Series>> series_;
  std::map<Home, TakeOver> take_overs_;
  std::vector<size_t> told_bytes_;  // by rank in the job: what it has told and is not settled
  std::vector<bool> lost_;  // by rank in the job
  std::set<uint32_t> gone_servers_;
  uint32_t next_stream_ = 0;
};

}  // namespace herring::server
