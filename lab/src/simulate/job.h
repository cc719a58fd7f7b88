// Runs a whole job in virtual time: the engines, links, credit, servers and proxies of real jobs,
// in the caller's thread, over modelled hosts and links. Only the way in which processes meet is
// left out: the rendezvous' code assembles the cluster, and every worker is connected at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "control/cluster.h"
#include "server/server.h"
#include "virtual/simulation.h"
#include "virtual/transport.h"
#include "worker/engine.h"

namespace herring::simulate {

struct JobOptions {
  uint32_t nodes = 2;              // one worker each
  uint32_t dedicated_servers = 0;  // on hosts of their own, numbered after the workers' hosts
  std::map<std::string, std::string> settings;  // by name, see settings.h
  // SimulatedJob sets the number of hosts.
  transport::virtual_time::SimulationOptions simulation;
  Nanos pause = 30 * kMicrosecond;  // from an operation's end to the program's next step
  // Sets links and paths; called once, before anything is connected.
  std::function<void(transport::virtual_time::Network&)> prepare;
};

struct JobRound {
  double seconds = 0;        // time of the slowest rank
  size_t credit_bytes = 0;   // credit of a flow on rank 0 at the end of the round
  double began = 0;          // virtual time in seconds
};

class SimulatedJob {
 public:
  // Returns kConfiguration if a setting is wrong.
  static Result<std::unique_ptr<SimulatedJob>> create(JobOptions options);
  ~SimulatedJob();

  // Repeats `rounds` times: all ranks meet in a barrier, then sum an array of `bytes`. With data,
  // every element is checked after the last round. Returns kTimeout if the rounds were not done
  // within `patience` of virtual time, and kInternal if an element was wrong. After an error,
  // further calls fail, because ranks are in the middle of their rounds.
  Result<std::vector<JobRound>> allreduce(size_t bytes, uint32_t rounds, Nanos patience);

  transport::virtual_time::Simulation& simulation() { return simulation_; }
  const control::Cluster& cluster() const { return cluster_; }

 private:
  struct Program;  // what one rank executes

  explicit SimulatedJob(JobOptions options);
  Status set_up();
  void enter_round(Program& program);
  void call(Program& program, calls::Call call, void (SimulatedJob::*then)(Program&));
  void reduce(Program& program);
  void leave_round(Program& program);
  void fail(const Status& status);

  const JobOptions options_;
  transport::virtual_time::Simulation simulation_;
  std::vector<std::unique_ptr<transport::virtual_time::VirtualTransport>> transports_;  // by host
  control::Cluster cluster_;
  std::vector<std::unique_ptr<server::Server>> servers_;
  std::vector<std::unique_ptr<worker::Engine>> engines_;
  std::vector<std::unique_ptr<Program>> programs_;

  // State of the allreduce() that is running.
  size_t bytes_ = 0;
  std::vector<char> scratch_;  // shared array of all ranks if contents are not carried
  std::vector<JobRound> rounds_;
  size_t running_ = 0;         // number of programs that are not done
  Status failure_;
};

}  // namespace herring::simulate
