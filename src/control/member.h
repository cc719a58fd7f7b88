// A process' side of the control plane: one connection to the rendezvous, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "control/cluster.h"
#include "transport/tcp/connector.h"

namespace herring::control {

struct WorkerRegistration {
  uint32_t rank = 0, size = 1;
  int local_rank = -1, local_size = -1;  // -1: by order of ranks within a host
  uint32_t dedicated_servers = 0;
  std::string host_id;
  std::string bus;
  Settings settings;
};

struct ServerRegistration {
  bool dedicated = true;
  uint32_t node = ~0u;  // of a colocated one
  uint16_t port = 0;
  std::string host;  // of its listener; empty: the local address of the member's connection
};

class Member {
 public:
  struct Options : Timings {
    using Timings::Timings;

    transport::Address rendezvous;
    std::string source;  // local address to connect from, or empty
    transport::Credentials credentials;
    Nanos waits_since = 0;  // where the wait began before this; 0: it has not
  };
  // Told the cluster so far (workers and settings; no servers yet) and the node.
  using StartServer = std::function<Status(const Cluster&, uint32_t node)>;
  using OnLoss = std::function<void(const Loss&)>;
  using OnAbort = std::function<void(const std::string& reason)>;
  using OnEnd = std::function<void()>;

  // Registers a worker; returns when the whole cluster is registered, or with the error that every
  // process gets. `start_server` is called on this thread when this worker must start its node's
  // colocated server, which joins by itself.
  static Result<std::unique_ptr<Member>> join(const Options& options,
                                              const WorkerRegistration& registration,
                                              const StartServer& start_server);
  static Result<std::unique_ptr<Member>> join(const Options& options,
                                              const ServerRegistration& registration);
  // The local address from which this process reaches the rendezvous, once something listens there.
  static Result<std::string> find_own_address(const Options& options);
  // Without goodbye() before it, the others take this for a death.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const Cluster& cluster() const;
  uint32_t server_index() const;         // of a server
  std::string local_address() const;     // of the connection to the rendezvous
  // Generation of the membership as far as this member was told of losses: kFirstEpoch, then one
  // more with each, those included that watch() is yet to deliver. Any thread.
  uint32_t epoch() const;

  // Callbacks run on the member's thread, also for what happened before this call. on_end: all
  // workers have said goodbye, servers end. None may destroy the member. Call once.
  void watch(OnLoss on_loss, OnAbort on_abort, OnEnd on_end);
  // This process cannot take part: everybody gets the error instead of waiting for it. Bounded.
  static void decline(Options options, wire::Role role, uint32_t rank, const Status& why);
  // Tells everybody to give up. Any thread; never blocks.
  void abort(const std::string& reason);
  void abort(const Status& why);
  // Leaves cleanly; at most about a second. Any thread but the member's own. No callbacks after it.
  void goodbye();

 private:
  class Impl;
  template <typename Register>
  static Result<std::unique_ptr<Member>> meet(const Options& options, wire::Role role,
                                              uint32_t rank, Register&& register_);
  explicit Member(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace herring::control
