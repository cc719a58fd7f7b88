// A whole job in virtual time: the engines, links, credit, servers and proxies that real jobs run,
// in one thread, over modelled hosts and links. Only how processes meet is left out: the cluster is
// put together by the code that the rendezvous uses, and every worker is connected at once.
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
  uint32_t dedicated_servers = 0;  // on hosts of their own, behind the workers'
  std::map<std::string, std::string> settings;  // by name, as in settings.h
  // Hosts are filled in. Between an operation's end and the program's next step passes `pause`.
  transport::virtual_time::SimulationOptions simulation;
  Nanos pause = 30 * kMicrosecond;
  // Sets links and paths; called once, before anything is connected.
  std::function<void(transport::virtual_time::Network&)> prepare;
};

struct JobRound {
  double seconds = 0;        // of the rank that took longest
  size_t credit_bytes = 0;   // of a flow at its end, as rank 0 has it
  double began = 0;          // virtual time, seconds
};

class SimulatedJob {
 public:
  // kConfiguration: a setting is wrong.
  static Result<std::unique_ptr<SimulatedJob>> create(JobOptions options);
  ~SimulatedJob();

  // All ranks meet in a barrier, then average (sum) an array of `bytes`, so many times. With data
  // every element is checked at the end of the last round. kTimeout: they did not get there within
  // `patience` of virtual time; kInternal: a wrong element. After an error there is no other call:
  // ranks are somewhere in their rounds.
  Result<std::vector<JobRound>> allreduce(size_t bytes, uint32_t rounds, Nanos patience);

  transport::virtual_time::Simulation& simulation() { return simulation_; }
  const control::Cluster& cluster() const { return cluster_; }

 private:
  struct Program;  // of one rank

  explicit SimulatedJob(JobOptions options);
  Status set_up();
  void enter_round(Program& program);
  void call(Program& program, worker::Call call, void (SimulatedJob::*then)(Program&));
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

  // Of the allreduce() that runs.
  size_t bytes_ = 0;
  std::vector<char> scratch_;  // of all ranks, without data
  std::vector<JobRound> rounds_;
  size_t running_ = 0;         // programs
  Status failure_;
};

}  // namespace herring::simulate
