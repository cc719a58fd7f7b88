// Which ranks and servers have died or left. Decides what fails because of them: only the groups
// that need them, if the job can go on at all. Engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "control/cluster.h"
#include "engine/core.h"
#include "worker/coming_servers.h"

namespace herring::worker {

using engine::Carrier, engine::Group;

class Membership {
 public:
  Membership(engine::Core& core, ComingServers& coming_servers)
      : core_(core), coming_servers_(coming_servers) {}

  // Handles the death of a process.
  void peer_lost(const control::Loss& loss);
  // Handles a rank that has left the job: operations that still need it fail.
  void rank_left(uint32_t rank);
  // Handles the end of a connection to a server, or to a worker on this node.
  void link_closed(uint32_t server, const Status& why);
  void neighbour_closed(uint32_t rank, const Status& why);
  void neighbour_left(uint32_t rank);
  // Handles a server's notice that it has called off the operations of a group.
  void called_off_by_server(uint32_t group);
  // Fails operations that wait for a rank that has left. Must be called periodically.
  void check_departures(Nanos now);
  void release_servers();

 private:
  bool survives(const control::Loss& loss) const;
  void move_from(const control::Loss& loss);
  void fail_groups_without_servers(const control::ServerSet& set, const std::string& why);
  void await_news(uint32_t server, uint32_t number, const std::string& how, uint64_t received,
                  Nanos told);
  void check_link(uint32_t server, const std::string& how, uint64_t received);
  void fail_what_needs(uint32_t server);
  // Returns whether anything that moves in the group still needs this server.
  bool needs(const Group& group, uint32_t server) const;
  void abandon(const Group& group, const Status& why);
  void server_ended(uint32_t server, const Status& why);

  engine::Core& core_;
  ComingServers& coming_servers_;
  std::map<uint32_t, uint32_t> staying_;  // servers to be released, and their ranks, which left
  Nanos left_since_ = 0;
};

}  // namespace herring::worker
