// Which groups this worker is in, and which ranks have died or left. Decides what fails because of
// them: only the groups that need them, if the job can go on at all. Engine thread, unless stated
// otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "control/cluster.h"
#include "control/server_set.h"
#include "transport/transport.h"
#include "worker/group.h"

namespace herring::worker {

class EngineCore;

class Membership {
 public:
  // Keeps the addresses in `cluster` up to date.
  Membership(EngineCore& engine, control::Cluster& cluster, uint32_t rank);

  // The group of all ranks. Any thread.
  const std::shared_ptr<Group>& world() const { return world_; }

  // Returns null if this rank knows no group with that number.
  std::shared_ptr<Group> find(uint32_t number) const;
  // Creates a group and tells its servers. Each server answers with the ID `id` of the operation
  // that forms the group.
  std::shared_ptr<Group> define(uint32_t number, const std::string& name,
                                std::vector<uint32_t> ranks, uint64_t id);
  // Completes the forming of a group, once all of its servers know it.
  void formed(const std::shared_ptr<Group>& group);
  // Leaves the group: this rank makes no more calls in it. kInvalidArgument: something is still in
  // flight.
  Status destroy(const std::shared_ptr<Group>& group);
  // Like destroy(), for a group in which nothing is known to be in flight.
  void forget(const std::shared_ptr<Group>& group);

  // Handles the death of a process.
  void peer_lost(const control::Loss& loss);
  // Handles a rank that has left the job: operations that still need it fail.
  void rank_left(uint32_t rank);
  // A replacement for a dedicated server comes: adopts the connections to it, tells it of this
  // rank's groups, and reports when it knows them.
  void server_comes(const control::Replacement& news,
                    std::vector<std::unique_ptr<transport::Connection>> flows);
  // It does not come, or it serves.
  void server_news(const control::Replacement& news);
  // Handles a control frame if it is the answer of such a server about a group.
  bool on_defined(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  // Reports servers that do not acknowledge what was sent. Must be called periodically.
  void check_servers(Nanos now);
  // Handles the end of a connection to a server, or to a worker on this node.
  void link_closed(uint32_t server, const Status& why);
  void neighbour_closed(uint32_t rank, const Status& why);
  void neighbour_left(uint32_t rank);
  // Handles a server's notice that it has called off the operations of a group.
  void called_off_by_server(uint32_t group);
  // Fails a group in which the operations in flight cannot go on.
  void fail_group(uint32_t group, const Status& why);
  // Fails operations that wait for a rank that has left. Must be called periodically.
  void check_departures(Nanos now);
  void release_servers();

  // Calls off the group: nothing moves in it any more, here or elsewhere. Operations in it fail.
  void call_off(const std::shared_ptr<Group>& group, const Status& why);
  // Whether the server is a replacement that does not serve yet.
  bool any_comes() const { return !coming_.empty(); }
  bool comes(uint32_t server) const { return coming_.contains(server); }
  bool has_ended(uint32_t server) const { return ended_servers_.contains(server); }
  bool has_left(uint32_t rank) const { return std::ranges::find(left_, rank) != left_.end(); }

  std::vector<std::shared_ptr<Group>> groups() const;  // the world first

 private:
  bool affects(const control::Loss& loss, const Group& group) const;
  bool survives(const control::Loss& loss) const;
  void move_from(const control::Loss& loss);
  void fail_groups_without_servers(const control::ServerSet& set, const std::string& why);
  void serve(const control::ServerSet& set);
  // Defines the group at a server. `id` comes back in its answer.
  void tell_of(const Group& group, uint32_t server, uint64_t id, uint8_t flags);
  bool define_at(uint32_t server, const Group& group);
  void drop(uint32_t server);
  void report_ready(uint32_t server);
  bool report(uint32_t server, const std::string& why);
  void stop_waiting(uint32_t server, const std::string& why);
  void end_or_call_off(const std::shared_ptr<Group>& group, const Status& why);
  void check_link(uint32_t server, const std::string& how, uint64_t received);
  void fail_what_needs(uint32_t server);
  void tell_servers(const Group& group, uint8_t flags, const std::string& why);
  std::string departed(const Group& group) const;

  EngineCore& engine_;
  control::Cluster& cluster_;
  const uint32_t rank_;
  const std::shared_ptr<Group> world_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;  // all but the world, by number
  // The groups that this rank has destroyed last, which others may still use. Empty if no server
  // can be replaced.
  std::deque<std::shared_ptr<Group>> destroyed_;
  std::vector<control::Loss> lost_;
  std::set<uint32_t> ended_servers_;
  std::vector<uint32_t> left_;                         // ranks, in the order in which they left
  std::map<uint32_t, uint32_t> staying_;  // servers to be released, and their ranks, which left
  Nanos left_since_ = 0;

  // Of a replacement that comes: its number, and the definitions of groups that it has yet to
  // answer.
  struct Coming {
    uint32_t number = 0;
    std::set<uint64_t> unanswered;
  };
  std::map<uint32_t, Coming> coming_;     // by server
  std::map<uint32_t, uint32_t> numbers_;  // of the replacements that serve, by server
  std::map<uint32_t, uint32_t> dropped_;  // the latest replacement that did not come, by server
  uint64_t definitions_ = 0;
  Nanos servers_checked_ = 0;
};

}  // namespace herring::worker
