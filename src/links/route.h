// Which server has a run of a transfer. In a job that goes on when a server dies, another one
// stands in for it, and all ranks find the same. Pure.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "control/server_set.h"
#include "links/options.h"
#include "links/transfer.h"
#include "wire/frame.h"

namespace herring::links {

using wire::Key, wire::KeyHash;

// Streams of shards whose home is another server: that server's index + 1, and since when the
// server stands in for it. So whatever has moved, in each stream all ranks push in the order of
// the keys.
struct StreamId {
  uint32_t group = 0, stream = 0, home = 0, epoch = 0;
  auto operator<=>(const StreamId&) const = default;
};

// The server that owns the run's shard, whoever stands in for it.
inline uint32_t home_of(const Transfer& transfer, uint32_t run) {
  return transfer.shards[transfer.runs[run].shard].server;
}
// The server to which the run is pushed now.
inline uint32_t server_of(const Transfer& transfer, uint32_t run) {
  return transfer.ways.empty() ? home_of(transfer, run) : transfer.ways[run].server;
}
// Whether the run was pushed before, perhaps in part, to another server.
inline bool goes_again(const Transfer& transfer, uint32_t run) {
  return !transfer.ways.empty() && transfer.ways[run].again;
}
StreamId stream_id(const Transfer& transfer, uint32_t run);
// Returns whether another server has the run than the one that sent this result.
inline bool is_elsewhere(const Transfer& transfer, uint32_t run, uint32_t server,
                         const wire::FrameHeader& result) {
  return !transfer.ways.empty() && (transfer.ways[run].server != server ||
                                    transfer.ways[run].since != result.epoch);
}
// Returns what is on the way to a server from before; null if there is nothing.
const RunRoute::Outstanding* elsewhere_of(const Transfer& transfer, uint32_t run, uint32_t server,
                                   uint32_t since);
// Returns whether all results are here, and no flow reads the transfer's memory.
bool is_over(const Transfer& transfer);
// Lets the transfer wait only for what is on its way.
void call_off(Transfer& transfer);
// Gives up what the transfer lacks of a run, because its server is gone.
void lose(Transfer& transfer, uint32_t run);

class Route {
 public:
  explicit Route(const LinksOptions& options)
      : several_flows_(options.flows > 1), world_{{}, options.even} {}

  void add_server(uint32_t server);
  // `even`: whether all nodes of the group have the same number of members.
  void add_group(uint32_t group, std::vector<uint32_t> servers, bool even) {
    groups_[group] = {std::move(servers), even};
  }
  void remove_group(uint32_t group) { groups_.erase(group); }
  const std::vector<uint32_t>& servers_of(uint32_t group) const { return of(group).servers; }
  // Returns whether the window tells which results of the group no other worker can lack. The
  // answer is the same on all ranks.
  bool window_settles(uint32_t group) const;
  // Returns whether its results can be given to others: all of its contributors get all results,
  // and it is known when these are not needed any more. A transfer that is over has no owner and no
  // place for results, but still has chunks of them.
  bool keeps_results(const Transfer& transfer) const;

  const control::ServerSet& serving() const { return serving_; }
  // Returns how many versions of the set are known.
  size_t known_versions() const { return versions_.size(); }
  // Adopts a later version of the set. Returns the servers that are lost with it.
  std::vector<uint32_t> serve(const control::ServerSet& set);
  // Forgets versions that no transfer in flight uses. `earliest`: the earliest attempt of these.
  void forget_versions(uint32_t earliest);
  uint32_t lost_in() const { return lost_in_; }  // the version in which a server was last lost

  // Returns who has the run now; the epoch is 0 if that is its home.
  control::ServerSet::StandIn stand_in(const Transfer& transfer, uint32_t run) const;
  // Returns whether the server of a run was lost after the attempt had begun. Another one may be in
  // its place.
  bool is_gone(const Transfer& transfer, uint32_t run) const {
    return transfer.attempt && serving_.since[transfer.ways[run].server] > *transfer.attempt;
  }

 private:
  struct Group {
    std::vector<uint32_t> servers;
    bool even = true;
  };

  const Group& of(uint32_t group) const {
    return group == 0 ? world_ : groups_.find(group)->second;
  }
  const control::ServerSet& set_of(const Transfer& transfer) const;

  const bool several_flows_;
  Group world_;
  std::map<uint32_t, Group> groups_;  // all but the world
  control::ServerSet serving_;
  std::map<uint32_t, control::ServerSet> versions_;  // earlier ones of `serving_`, by epoch
  uint32_t lost_in_ = 0;
};

}  // namespace herring::links
