// A server consists of proxies around one slot table and one set of named operations (paper,
// III-3). Each proxy has an event loop and a thread, and owns the connections of a contiguous block
// of nodes.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "control/cluster.h"
#include "control/server_set.h"
#include "observe/rank_states.h"
#include "observe/recorder.h"
#include "server/aggregator.h"
#include "server/changes.h"
#include "server/group_table.h"
#include "server/peer.h"
#include "server/view.h"
#include "transport/transport.h"

namespace herring::server {

struct ServerOptions {
  std::string host;  // address to listen on
  uint16_t port = 0;
  transport::Credentials credentials;
};

// Options that are the same in the whole job; they come from the cluster's settings.
struct DataPlaneOptions {
  uint32_t proxies = 1;
  size_t segment_bytes = default_of("segment_bytes").integer;
  size_t frame_max = default_of("frame_max").integer;
  size_t credit = 0;  // bytes per flow; 0 means controlled automatically
  size_t credit_max = 1 << 20;
  size_t credit_ladder = 0;  // credit above this is bounded by memory alone; 0: credit_max
  size_t small_bytes = default_of("small_bytes").integer;
  uint32_t flows = 1;  // from a worker to a server
  bool observe = true;  // record what is summed

  uint16_t credit_segments(size_t bytes) const {
    return static_cast<uint16_t>(std::clamp<size_t>(bytes / segment_bytes, 1, 65535));
  }
};

class Proxy {
 public:
  Proxy(uint32_t index, transport::Transport& transport)
      : index_(index), loop_(transport.make_loop(false)) {}
  ~Proxy() { join(); }
  transport::EventLoop& loop() { return *loop_; }
  uint32_t index() const { return index_; }
  void start() { loop_->start("herring-proxy"); }
  void join() { loop_->join(); }

 private:
  friend class Server;
  const uint32_t index_;
  const std::shared_ptr<transport::EventLoop> loop_;
  std::vector<std::unique_ptr<Peer>> peers_;
  // The counters of its flows, for any thread.
  struct Seen {
    uint64_t bytes_in = 0, bytes_out = 0;
    observe::PathReport path;
    size_t undelivered = 0;
  };
  std::mutex seen_mutex_;
  std::vector<Seen> seen_;  // guarded by seen_mutex_
  Nanos seen_at_ = 0;       // guarded by seen_mutex_; 0: never
  // Results for peers of other proxies, by proxy; handed over once per loop iteration.
  struct Handover {
    Peer* peer;
    Slot* slot;
    bool with_payload;
  };
  std::vector<std::vector<Handover>> outbox_;
  transport::EventLoop::Task outbox_task_;
  bool outbox_scheduled_ = false;
};

class Server {
 public:
  // Starts to listen. Connections wait until attach() says which ranks are expected.
  static Result<std::unique_ptr<Server>> start(ServerOptions options,
                                               transport::Transport& transport);
  ~Server();

  const transport::Address& address() const { return address_; }
  // Sets what messages say about ranks that hold others up, see observe::RankStates. Any thread.
  void tell_states(std::map<uint32_t, std::string> states) { states_.set(std::move(states)); }
  // Starts to serve the cluster, which is complete, as server `index`.
  void attach(const control::Cluster& cluster, uint32_t index, const DataPlaneOptions& options);
  // Adds a flow of `rank`, created on the loop of the proxy that owns it. Flow 0 carries the
  // answers. accept() creates flows from connections; tests may create them from anything that
  // carries frames. After attach(); any thread.
  using MakeFlow = std::function<std::unique_ptr<transport::Flow>(transport::EventLoop&,
                                                                  transport::FlowHandler&)>;
  void connect(uint32_t rank, uint32_t flow, MakeFlow make);
  // The job has failed, so that ranks leave. Errors about those that leave from now on say why, as
  // an answer of this server may reach a rank before the news of the failure.
  void job_failed(const std::string& why);
  // Handles a rank that has left for good: operations that still wait for it fail.
  void rank_left(uint32_t rank);
  // Handles the end of another process. Partial all-reduces go on without a worker that has died;
  // all else that needs it fails.
  void lost(const control::Loss& loss);
  // From now on nobody tells who leaves or dies. A rank that ends its connections has left, and so
  // has one that does not connect within `patience`. After attach(); any thread.
  void hears_nothing(Nanos patience);
  bool unheard() const { return await_until_.load() != 0; }
  // Adopts a later version of the set of servers of a job that goes on when servers die. After
  // attach(); any thread.
  void serve(const control::ServerSet& set);
  // Returns whether the job goes on if this worker dies, for partial all-reduces or groups without
  // it.
  bool outlives(uint32_t rank) const {
    return changes_ && (changes_->any_series() || groups_->any_without(rank));
  }
  // Sends what is queued (for a limited time), then ends the threads.
  void stop();
  // Returns whether nothing is being summed, announced or sent. Any thread; takes a limited time.
  bool idle();
  // Returns whether all workers that are in the job have connected, and have left or said that they
  // no longer need this server, whose own worker has left. Any thread.
  bool released() { return !changes_ || changes_->released(); }
  // Returns the number of bytes sent and received so far. Any thread; takes a limited time.
  uint64_t traffic();
  // Returns what the server sees of its job; nothing before attach(). `now`: on the loops' clock.
  // Any thread; waits for no loop.
  ServerView view(Nanos now);
  // The shards that were summed lately. After attach(); any thread.
  const observe::Recorder& recorder() const { return *recorder_; }

  // For peers, on the thread of their proxy.
  std::shared_ptr<JobGroup> group(uint32_t number) const { return groups_->find(number); }
  Aggregator& aggregator() { return *aggregator_; }
  Status open(const Key& key, wire::Open open, uint32_t rank);
  Changes& changes() { return *changes_; }
  void peer_closed(Peer& peer, const Status& why);
  uint32_t index() const { return index_; }
  void set_credit(JobGroup& group, uint16_t segments);
  uint32_t signals() const { return signals_.load(std::memory_order_relaxed); }
  void add_signals(uint32_t n) { signals_.fetch_add(n, std::memory_order_relaxed); }
  uint32_t max_frame_segments() const { return max_frame_segments_; }
  uint16_t credit_max() const { return credit_max_.load(std::memory_order_relaxed); }
  size_t max_announce_payload() const { return max_announce_payload_; }

 private:
  explicit Server(transport::Transport& transport) : transport_(transport) {}
  wire::Verdict expects(const wire::Hello& hello) const;
  void admit_waiting();
  void accept(std::unique_ptr<transport::Connection> connection, const wire::Hello& hello);
  void deliver(Slot& slot, std::span<const uint32_t> contributors);
  void end_flows(uint32_t rank, bool left);
  // `how`: see GroupTable::rank_gone().
  void rank_lost(uint32_t rank, const std::string& how);
  void say_farewell();
  void watch(Proxy& proxy);
  void check_overdue();
  Proxy& proxy_of(uint32_t rank);
  Proxy& current();  // the proxy whose thread this is

  transport::Transport& transport_;
  transport::Address address_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<std::unique_ptr<Proxy>> proxies_;  // the first one also accepts connections

  struct Waiting {
    std::unique_ptr<transport::Connection> connection;
    wire::Hello hello;
    transport::Address from;
  };
  std::vector<Waiting> waiting_;  // proxy 0's thread
  bool attached_ = false;         // proxy 0's thread
  std::string failure_;           // of the job; proxy 0's thread
  // Proxy 0's thread: when it last looked for overdue operations, and until when it does not.
  Nanos watched_ = 0, patient_until_ = 0;
  Status early_failure_;          // why something failed before; proxy 0's thread

  control::Cluster cluster_;
  uint32_t index_ = 0;
  observe::RankStates states_;
  std::unique_ptr<observe::Recorder> recorder_;
  std::unique_ptr<GroupTable> groups_;
  std::unique_ptr<Aggregator> aggregator_;
  std::unique_ptr<Changes> changes_;
  std::atomic<uint16_t> credit_max_{1};  // segments
  std::atomic<uint32_t> signals_{0};
  std::atomic<Nanos> await_until_{0};  // nobody tells of ranks; 0: somebody does
  uint32_t max_frame_segments_ = 1;
  size_t max_announce_payload_ = 0;
  uint32_t flows_ = 1;
};

}  // namespace herring::server
