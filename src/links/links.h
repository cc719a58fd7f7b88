// What a worker pushes to the servers and gets back. Transfers are pushed in the order of their
// streams, each flow has a credit window per group (Credits), and in a job that goes on when a
// server dies, others stand in for it (Route) and results are kept for other workers (Kept). Engine
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/server_set.h"
#include "links/balance.h"
#include "links/check.h"
#include "links/credits.h"
#include "links/kept.h"
#include "links/link.h"
#include "links/options.h"
#include "links/route.h"
#include "links/transfer.h"
#include "transport/event_loop.h"
#include "transport/transport.h"

namespace herring::links {

class Links final : public Pusher, private transport::FlowHandler, private Sender {
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

  // For a job that goes on when a server dies.
  // Returns whether everything in flight can go on with another set of servers.
  bool can_move() const;
  // See Route.
  bool window_settles(uint32_t group) const { return route_.window_settles(group); }
  const control::ServerSet& serving() const { return route_.serving(); }
  size_t known_versions() const { return route_.known_versions(); }
  // Gives the place of a server that is gone the flows of its replacement. Nothing uses them before
  // serve() says so.
  void server_replaced(uint32_t server,
                       std::vector<std::unique_ptr<transport::Connection>> connections);
  // Adopts a later version of the set of servers, and moves to them what they have to do.
  void serve(const control::ServerSet& set);

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
  void poll_paths() { credits_.poll_paths(loop_.now()); }
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
  Nanos answered_at(uint32_t group) { return credits_.of(group).whole_answered_at; }
  // Returns the keys of transfers that are over here, but of which other workers may lack results.
  std::vector<Key> kept() const { return kept_.keys(); }
  using StreamProgress = links::StreamProgress;
  // Returns the streams whose results are kept, until they are settled, also if there is nothing of
  // them to keep here.
  std::vector<StreamProgress> over() const;
  // No worker lacks any of these results.
  void settle(const StreamProgress& all) { kept_.settle(all); }
  // Returns the size of the memory for results that others may lack.
  size_t bytes_kept() const { return kept_.bytes(); }
  // Returns a transfer that is overdue by `margin` while no server has answered anything, or null.
  // Servers watch the deadlines; this is for the case that they cannot.
  const Transfer* overdue(Nanos now, Nanos margin) const;
  // Returns the servers from which results of the transfer are missing.
  std::vector<uint32_t> awaited(const Transfer& transfer) const;
  // Returns the credit of a flow in the world, in bytes.
  size_t credit_bytes() const { return credits_.world().credit() * options_.segment_bytes; }
  std::vector<transport::FlowCounters> counters() const;
  // Returns for each server what is in Engine::Counters::paths.
  std::vector<transport::PathInfo> paths() const;

 private:
  struct Pushed {
    Transfer* transfer = nullptr;
    std::shared_ptr<void> keeps;
  };
  using Transfers = std::unordered_map<Key, Pushed, KeyHash>;
  // Keeps the links of one stream in step, if servers have different loads.
  struct Order {
    uint64_t transfers = 0;  // number of transfers pushed
    Balance balance;
  };

  // Sending.
  void enqueue(Transfer& transfer, uint32_t run, uint64_t number);
  void pump(uint32_t server);
  void pump_released();
  void pump_link(Link& link);
  bool send_next(Link& link, const StreamId& id, Stream& stream);
  wire::FrameHeader header_of(LinkFlow& flow, const Item& item, const StreamId& id, bool again);
  void note_position(uint32_t server, const StreamId& id, Stream& stream);
  bool is_queued(const StreamId& id) const;
  void empty_queues(uint32_t group, bool goes_on);
  // What comes back, or never will.
  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_closed(transport::Flow&, const Status& why) override;
  Status on_result_header(LinkFlow&, const wire::FrameHeader&, transport::Destinations&);
  void on_result(LinkFlow&, const wire::FrameHeader&);
  void on_result_elsewhere(LinkFlow& flow, const wire::FrameHeader& header);
  void take_result(Transfer& transfer, uint32_t run, const wire::FrameHeader& header,
                   plan::Range range, uint32_t fresh);
  Transfers::node_type take(const Transfer& transfer);
  void end(const std::vector<Transfer*>& transfers);
  void forget_transfers();
  // Servers that change.
  Transfer* in_flight(const Key& key) override;
  void requeue(const Transfer& transfer, uint32_t run, Transfer* other) override;
  void forgotten(uint32_t group) override;
  void choose_way(Transfer& transfer, uint32_t run);
  void move(Transfer& transfer, uint32_t run);
  void drop_link(uint32_t server);

  transport::EventLoop& loop_;
  const LinksOptions options_;
  const OnControl on_control_;
  const OnClosed on_closed_;
  const OnCalledOff on_called_off_;
  std::vector<Link> links_;  // by server
  Transfers transfers_;      // in flight
  Route route_;
  Credits credits_;
  Kept kept_;
  bool balances_ = false;             // servers differ: no link gets far ahead of the others
  std::map<StreamId, Order> orders_;  // used only if balances_
  std::vector<uint32_t> released_;    // servers whose links no longer have to wait
  Nanos answered_at_ = 0;
  bool stopped_ = false;              // by stop()
};

}  // namespace herring::links
