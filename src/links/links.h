// All connections of a worker to servers. Each server has K flows, each flow has a credit window
// per group, and transfers are pushed in the order of their streams. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/lane_pool.h"
#include "base/ring.h"
#include "control/server_set.h"
#include "links/balance.h"
#include "links/options.h"
#include "links/pace.h"
#include "links/paths.h"
#include "links/transfer.h"
#include "links/window.h"
#include "transport/event_loop.h"
#include "transport/silence.h"
#include "transport/transport.h"
#include "wire/settled.h"

namespace herring::links {

using wire::Key, wire::KeyHash;

class Links final : public Pusher, private transport::FlowHandler {
 public:
  // Receives control frames (go, reply, error, warning) from a server, with their payload.
  using OnControl = std::function<void(uint32_t server, const wire::FrameHeader&,
                                       std::string_view payload)>;
  using OnClosed = std::function<void(uint32_t server, const Status&)>;
  // Called once per group, when a server says that operations of the group are called off.
  using OnCalledOff = std::function<void(uint32_t group)>;

  Links(transport::EventLoop& loop, LinksOptions options, OnControl on_control, OnClosed on_closed,
        OnCalledOff on_called_off = [](uint32_t) {});
  ~Links() override;

  void add_flow(uint32_t server, transport::Connection& connection);
  size_t servers() const { return links_.size(); }

  // Adds a group other than the world. It has its own credit, which starts with the world's credit.
  // `servers`: the servers that the group uses. `steers`: whether this worker steers the group's
  // credit.
  // `even`: whether all nodes of the group have the same number of members.
  void add_group(uint32_t group, const std::vector<uint32_t>& servers, bool steers,
                 bool even = true);
  // Removes a group in which nothing is in flight. This worker gives its results to nobody any
  // more.
  void remove_group(uint32_t group);
  // Calls off the group. Transfers that are queued are never pushed, and owners get no further
  // results. A transfer ends when everything on its way is answered; one that is pushed later ends
  // at once. Partial all-reduces go on.
  void call_off(uint32_t group);
  // Handles the death of a server. All groups that use the server must have been called off.
  void server_lost(uint32_t server);
  // Returns for how long the system of the server has acknowledged nothing of what was sent to it.
  // Must be called regularly: a flow's silence begins when a call first finds that something waits.
  Nanos unheard(uint32_t server);

  // Ends what is in flight in a group that has been called off and has no server any more.
  void abandon(uint32_t group);

  // For a job that goes on when a server dies (failover.cc).
  // Returns whether everything in flight can go on with another set of servers.
  bool can_move() const;
  // Returns whether the window tells which results of the group no other worker can lack. The
  // answer is the same on all ranks.
  bool window_settles(uint32_t group) const;
  // Gives the place of a server that is gone the flows of its replacement. Nothing uses them before
  // serve() says so.
  void server_replaced(uint32_t server,
                       std::vector<std::unique_ptr<transport::Connection>> connections);
  // Adopts a later version of the set of servers, and moves to them what they have to do.
  void serve(const control::ServerSet& set);
  const control::ServerSet& serving() const { return serving_; }
  // Returns how many versions of the set are known: the latest, and those that transfers in flight
  // use.
  size_t known_versions() const { return versions_.size(); }

  // Pushes the transfer's runs after those already queued in its stream. `keeps` owns the transfer
  // and the memory that it points to. Links holds a share of `keeps` until on_transfer_done() has
  // returned or all transfers are forgotten. Returns kInternal if the transfer's key is already in
  // flight.
  Status push(Transfer& transfer, std::shared_ptr<void> keeps = nullptr) override;
  void send_control(uint32_t server, const wire::FrameHeader& header, std::string payload);
  // Pushes nothing more. Flows that have part of a transfer on its way send no more than what has
  // left, and drop what they receive.
  void stop();
  // Returns whether a server may still read memory that was pushed. What a flow has lent stays in
  // the server's system until the server reads it, even if the flow is abandoned. After stop(), a
  // server reads all that has come and then closes the flow.
  bool lends() const;
  // Both clear() and finish() forget every transfer; afterwards nothing accesses their memory.
  // Closes every flow, because the job has failed.
  void clear();
  // Sends what is queued, then closes when the server does. A flow that has part of a transfer on
  // its way cannot do so; it closes at once.
  void finish();

  // Polls the transport's path information about congestion. Must be called periodically.
  void poll_paths();
  // Returns whether a transfer of the group is in flight that needs all members.
  bool busy(uint32_t group) const;
  // Returns whether such a transfer still expects results from this server.
  bool needs(uint32_t group, uint32_t server) const;
  size_t open_flows(uint32_t server) const;
  uint64_t bytes_received(uint32_t server) const;
  // Returns the number of bytes that have not reached the servers yet; see
  // transport::undelivered().
  size_t undelivered() const;
  // Returns when a server last answered with a result.
  Nanos answered_at() const override { return answered_at_; }
  // Returns when a result last came in this group. Partial all-reduces do not count: they go on
  // whoever leaves.
  Nanos answered_at(uint32_t group) { return pace_of(group).whole_answered_at; }
  // Returns the keys of transfers that are over here, but of which other workers may lack results.
  std::vector<Key> kept() const;
  // A stream in which this rank has pushed up to a transfer (wire::settled_at()), and lacks no
  // result of that or an earlier one. It never will: it pushes in the order of the keys.
  struct Over {
    uint32_t group = 0, stream = 0;
    uint64_t upto = 0;
  };
  // Returns the streams whose results are kept, until they are settled, also if there is nothing of
  // them to keep here.
  std::vector<Over> over() const;
  // No worker lacks any of these results.
  void settle(const Over& all);
  // Returns the size of the memory for results that others may lack.
  size_t bytes_kept() const { return chunks_.taken() * chunk_bytes(options_); }
  // Returns a transfer that is overdue by `margin` while no server has answered anything, or null.
  // Servers watch the deadlines; this is for the case that they cannot.
  const Transfer* overdue(Nanos now, Nanos margin) const;
  // Returns the servers from which results of the transfer are missing.
  std::vector<uint32_t> awaited(const Transfer& transfer) const;
  // Returns the credit of a flow in the world, in bytes.
  size_t credit_bytes() const { return world_.credit() * options_.segment_bytes; }
  std::vector<transport::FlowCounters> counters() const;
  // Returns for each server what is in Engine::Counters::paths.
  std::vector<transport::PathInfo> paths() const;

 private:
  struct LinkFlow {
    std::unique_ptr<transport::Flow> flow;
    uint32_t server = 0, index = 0;
    transport::Silence silence;
    // Segments of lent results that were read here, and how many of them the server knows; modulo
    // 2^32.
    uint32_t taken = 0, taken_told = 0;
    // Payload being received of a control frame, or of a result that is not used.
    std::string control;
    Transfer* transfer = nullptr;  // of the result frame being received
    Pace* pace = nullptr;
    uint32_t run = 0;
    plan::Range range;
    transport::LossCounter losses;
    uint32_t signals = 0;        // losses so far, modulo 2^32
  };
  struct Pushed {
    Transfer* transfer = nullptr;
    std::shared_ptr<void> keeps;
  };
  struct Item {
    Transfer* transfer = nullptr;
    uint32_t run = 0;
    uint32_t next = 0;           // segment of the shard
    uint64_t number = 0;         // of the transfer in its stream, if balances_
  };
  // The next segments of an item that go as one frame.
  struct Piece {
    size_t count = 0;
    bool gives = false;  // their results, not this rank's contribution
  };
  struct Stream {
    Ring<Item> queue;
    size_t outstanding = 0;
    Pace* pace = nullptr;
  };
  // Streams of shards whose home is another server: that server's index + 1, and since when the
  // server stands in for it. So whatever has moved, in each stream all ranks push in the order of
  // the keys.
  struct StreamId {
    uint32_t group = 0, stream = 0, home = 0, epoch = 0;
    auto operator<=>(const StreamId&) const = default;
  };
  using Streams = std::map<StreamId, Stream>;
  // Ranks may know different versions of the set of servers, in which one buffer has another
  // stand-in and the next one has not. So what a rank has pushed of one buffer to a stand-in says
  // nothing of the others.
  struct SettlingId : StreamId {
    uint32_t buffer = 0;  // 0 on the home itself, which has all buffers or none
    auto operator<=>(const SettlingId&) const = default;
  };
  // Which results of a stream other workers may lack. Places count the segments of the stream that
  // this rank has contributed. A worker that has pushed a segment lacks no more than a window of
  // those before it. So once its result is here, no worker lacks older ones.
  struct Settling {
    uint64_t pushed = 0, answered = 0;  // places
    struct Run {
      Key key;
      uint32_t run;
    };
    std::deque<Run> runs;  // in order, those with results that others may lack
  };
  struct Link {
    double share = 1;   // of the credit: more for a server with more of the bytes
    double length = 1;  // window length relative to the nearest server's
    Nanos shortest = 0, round_trip = 0;  // round trips: shortest, latest; 0: unknown
    size_t frames = kFramesPerWindow;
    size_t outstanding = 0;
    // Sums since the last measure_paths(): segments outstanding times duration, and segments
    // answered.
    Nanos counted_at = 0;
    double waited = 0, answered = 0;
    void count(Nanos now) {
      waited += static_cast<double>(outstanding) * static_cast<double>(now - counted_at);
      counted_at = now;
    }
    std::vector<std::unique_ptr<LinkFlow>> flows;
    std::vector<Path> paths;  // one per flow
    Streams streams;
    std::map<SettlingId, Settling> settling;
    uint32_t groups = 0;       // number of groups with streams here
  };

  // A group and a home, whose names have one owner.
  using Home = std::pair<uint32_t, uint32_t>;
  // The all-reduces of some names. Those of later reigns have streams with larger numbers.
  struct Reigns {
    std::map<uint32_t, size_t> in_flight;  // transfers, by stream
    uint32_t settled = 0;  // no other worker lacks a result of streams below this one
  };

  // Keeps the links of one stream in step, if servers have different loads.
  struct Order {
    uint64_t transfers = 0;  // number of transfers pushed
    Balance balance;
  };

  Pace& pace_of(uint32_t group);
  void fit(Pace& pace) const;
  void end_removal(uint32_t group);
  void empty_queues(uint32_t group, bool goes_on);
  Stream& stream_of(Link& link, const StreamId& id, Pace& pace);
  Streams::iterator erase_stream(Link& link, Streams::iterator stream);
  size_t window(uint32_t server, const Pace& pace) const;
  double share(const Item& item, double segments) const;
  void note_position(uint32_t server, const StreamId& id, Stream& stream);
  bool is_queued(const StreamId& id) const;
  void pump(uint32_t server);
  void pump_released();
  void pump_link(Link& link);
  bool send_next(Link& link, const StreamId& id, Stream& stream);
  Path& path_of(const LinkFlow& flow) { return links_[flow.server].paths[flow.index]; }
  void account(Link& link, Pace& pace, size_t sent);
  void take_result(Transfer& transfer, uint32_t run, const wire::FrameHeader& header,
                   plan::Range range, uint32_t fresh);
  void account_answer(LinkFlow& flow, const wire::FrameHeader& header, const StreamId& id,
                      Pace& pace, Nanos now);
  using Transfers = std::unordered_map<Key, Pushed, KeyHash>;
  Transfers::node_type take(const Transfer& transfer);
  void end(const std::vector<Transfer*>& transfers);
  static void lose(Transfer& transfer, uint32_t run);
  void measure_paths();
  void give_back(LinkFlow& flow);
  void tell_credit(uint32_t group, Pace& pace);
  void forget_transfers();

  // In failover.cc.
  static uint32_t home_of(const Transfer& transfer, uint32_t run) {
    return transfer.shards[transfer.runs[run].shard].server;
  }
  uint32_t server_of(const Transfer& transfer, uint32_t run) const {
    return transfer.ways.empty() ? home_of(transfer, run) : transfer.ways[run].server;
  }
  StreamId stream_id(const Transfer& transfer, uint32_t run) const;
  SettlingId settling_id(const Transfer& transfer, uint32_t run) const;
  static size_t chunk_bytes(const LinksOptions& options);
  bool keeps_results(const Transfer& transfer) const;
  static bool goes_again(const Transfer& transfer, uint32_t run) {
    return !transfer.ways.empty() && transfer.ways[run].again;
  }
  const std::vector<uint32_t>& owners_of(uint32_t group) const;
  Transfer* find(const Key& key);
  void enqueue(Transfer& transfer, uint32_t run, uint64_t number);
  const control::ServerSet& set_of(const Transfer& transfer) const;
  control::ServerSet::StandIn stand_in(const Transfer& transfer, uint32_t run) const;
  bool is_gone(const Transfer& transfer, uint32_t run) const;
  void choose_way(Transfer& transfer, uint32_t run);
  void move(Transfer& transfer, uint32_t run);
  void drop_link(uint32_t server);
  void requeue(const Transfer& transfer, uint32_t run, Transfer* other);
  Piece next_piece(Item& item, size_t most);
  template <typename Action>
  void for_each_piece(Transfer& transfer, uint32_t run, uint32_t first, size_t count,
                      const Action& action);
  void place_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count,
                     transport::Destinations& out);
  void copy_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count);
  std::string results(Transfer& transfer, uint32_t run, uint32_t first, size_t count);
  bool settles(const Link& link, const StreamId& id, const Settling::Run& run);
  bool nothing_settles(const Link& link, const StreamId& id, const Settling& settling);
  void settle(const Transfer& transfer, uint32_t run, uint32_t segment);
  void settle_rounds_before(const Key& key);
  void forget_settled(const std::vector<Key>& keys);
  std::optional<Home> home_of_calls(uint32_t group, uint32_t stream) const;
  bool waits_for_earlier_reign(const StreamId& id) const;
  void begin_in_reign(const Key& key);
  void end_in_reign(const Key& key);
  void settle_reigns_before(const Key& key);
  void free_chunks(Transfer& transfer, uint32_t run, uint64_t settled);
  static bool is_elsewhere(const Transfer& transfer, uint32_t run, uint32_t server,
                           const wire::FrameHeader& result);
  static Way::Elsewhere* elsewhere_of(Transfer& transfer, uint32_t run, uint32_t server,
                                      uint32_t since);
  void on_result_elsewhere(LinkFlow& flow, const wire::FrameHeader& header);
  static bool is_over(const Transfer& transfer);
  void keep(Transfer& transfer);
  void note_over(const Transfer& transfer);
  void release(Transfer& transfer);
  void release_settled(Way& way);
  void forget_versions();
  void forget_kept(const Key& key);

  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_closed(transport::Flow&, const Status& why) override;
  Status on_result_header(LinkFlow&, const wire::FrameHeader&, transport::Destinations&);
  void on_result(LinkFlow&, const wire::FrameHeader&);

  transport::EventLoop& loop_;
  const LinksOptions options_;
  const OnControl on_control_;
  const OnClosed on_closed_;
  const OnCalledOff on_called_off_;
  std::vector<Link> links_;  // by server
  Transfers transfers_;
  Pace world_;
  std::map<uint32_t, Pace> groups_;        // all but the world
  bool balances_ = false;                  // servers differ: no link gets far ahead of the others
  std::map<StreamId, Order> orders_;       // used only if balances_
  std::vector<uint32_t> released_;         // servers whose links no longer have to wait
  std::vector<uint32_t> all_servers_;
  std::map<uint32_t, std::vector<uint32_t>> owners_;  // by group, all but the world
  std::map<Home, Reigns> reigns_;          // used only in a job that goes on when a server dies
  LanePool chunks_;                // of results that other workers may lack
  // Transfers that are over here, of which other workers may lack results.
  std::map<Key, std::unique_ptr<Transfer>> kept_;
  // By group and stream, the last transfer that was over here, if its results are kept.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> over_;
  Nanos answered_at_ = 0;
  bool stopped_ = false;                   // by stop()
  control::ServerSet serving_;
  std::map<uint32_t, control::ServerSet> versions_;  // earlier ones of `serving_`, by epoch
  uint32_t lost_in_ = 0;                   // the version in which a server was last lost
};

}  // namespace herring::links
