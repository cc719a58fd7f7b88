// A process's side of the control plane: one connection to the rendezvous, on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "control/cluster.h"
#include "observe/record.h"
#include "observe/report.h"
#include "transport/tcp/connector.h"

namespace herring::control {

struct WorkerRegistration {
  uint32_t rank = 0, size = 1;
  int local_rank = -1, local_size = -1;  // -1: derived from the order of ranks within a host
  uint32_t dedicated_servers = 0;
  std::string host_id;
  std::string bus;
  Settings settings;
};

struct ServerRegistration {
  bool dedicated = true;
  uint32_t node = ~0u;  // of a colocated server
  uint32_t wanted = ~0u;  // the number that a dedicated server asks for; ~0u: any
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
    Nanos waits_since = 0;  // when the wait began, if earlier than this object; else 0
  };
  // Gets the cluster so far (workers and settings, but no servers yet) and the node.
  using StartServer = std::function<Status(const Cluster&, uint32_t node)>;
  using OnLoss = std::function<void(const Loss&)>;
  using OnAbort = std::function<void(const Status& why)>;
  enum class End {
    kAllLeft,  // all workers have said goodbye, so servers end
    kNoNews,   // the rendezvous has left with rank 0: nobody tells who else leaves or dies
  };
  using OnEnd = std::function<void(End)>;  // of servers only
  using OnReplacement = std::function<void(const Replacement&)>;
  // What the process tells about itself, and hears of others. All run on the member's thread; none
  // may block.
  struct Observer {
    // What ranks do that hold others up; nothing once nobody does.
    std::function<void(const observe::RankTexts&)> rank_texts;
    // Returns the latest entries of the process; nothing when it is about to leave.
    std::function<std::optional<observe::ProcessRecord>()> record;
    // Entries are wanted for a timeline, by timeline(), or no more.
    std::function<void(bool wanted)> timeline;
    // A report was not sent, because much waits to be sent already.
    std::function<void()> dropped;
  };

  // Registers a worker. Returns when the whole cluster is registered, or with the error that every
  // process gets. If this worker must start its node's colocated server, `start_server` is called
  // on the calling thread; the server joins by itself.
  static Result<std::unique_ptr<Member>> join(const Options& options,
                                              const WorkerRegistration& registration,
                                              const StartServer& start_server);
  // A dedicated server that comes while a job with failover runs replaces a lost one, or waits as a
  // spare for as long as the job runs. kShutdown: the job has ended meanwhile.
  static Result<std::unique_ptr<Member>> join(const Options& options,
                                              const ServerRegistration& registration);
  // Returns the local address from which this process reaches the rendezvous, after waiting until
  // something listens there.
  static Result<std::string> find_own_address(const Options& options);
  // Without goodbye() before, the others count the process as dead.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const Cluster& cluster() const;
  uint32_t server_index() const;         // of a server only
  // Who was gone already when this member joined as a replacement, without texts.
  const std::vector<Loss>& gone() const;
  std::string local_address() const;     // of the connection to the rendezvous
  // Returns the generation of the membership as far as this member was told of changes:
  // kFirstEpoch plus the number of losses and replacements, including those that watch() has yet to
  // deliver. Any thread.
  uint32_t epoch() const;

  // Sets callbacks, which run on the member's thread, also for what happened before this call.
  // No callback may destroy the member. May be called only once.
  void watch(OnLoss on_loss, OnAbort on_abort, OnEnd on_end,
             OnReplacement on_replacement = [](const Replacement&) {});
  // Says whether this process can reach a server, or if it is a replacement, that it is ready; see
  // ServerReport. Any thread; never blocks.
  void report_server(uint32_t server, uint32_t number, bool reachable, const std::string& why);
  // Returns when this process sent the latest heartbeat that the rendezvous has read, in the time
  // of this process's loops; 0: none yet. Any thread.
  Nanos read_until() const;
  void observe(Observer observer);
  // The three calls below fill in what the clock of the rendezvous shows. Any thread; they never
  // block, and send nothing if much waits to be sent already.
  void report(observe::Report report);
  // Sends entries for the timeline; the `last` ones are due when no more are wanted. They wait for
  // the clock of the rendezvous to be known.
  void timeline(observe::ProcessRecord entries, bool last);
  // Sends the record of the process, which has failed.
  void failed(const std::string& why);
  // Waits until the member's thread has handled what it was asked before, unless there is no memory
  // to ask for that.
  void settle();
  // Tells everybody that this process cannot take part, so that they get this error instead of
  // waiting. Takes a bounded time.
  static void decline(Options options, wire::Role role, uint32_t rank, const Status& why);
  // Tells all processes to give up. Any thread; never blocks.
  void abort(const std::string& reason);
  void abort(const Status& why);
  // Tells everybody that this worker's part of the job has ended, because a deadline has passed.
  // Those who need it fail, unless they soon fail by themselves. Any thread; never blocks.
  void end_part(const Status& why);
  // After end_part(), waits until everybody was told, for 1.5 seconds at most. Else it returns at
  // once. Who leaves before is told about at once, also to those who are about to fail anyway.
  void await_part_told();
  // Leaves cleanly, within about a second. Any thread but the member's own. No callback follows.
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
