// The server that a worker process hosts: threads beside the worker's, with its own membership.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "job/serving.h"

namespace herring::job {

class Colocated {
 public:
  // Listens, and begins to join the job as a separate process would. Joining ends when the whole
  // cluster is there.
  static Result<std::unique_ptr<Colocated>> start(const control::Member::Options& member,
                                                  uint32_t node,
                                                  transport::Transport& transport);
  ~Colocated();

  // Waits until the server has joined or failed to join. Returns which.
  Status joined();
  // Starts serving the cluster after joining. The worker has connections to all servers, too.
  Status attach();
  server::Server& server() { return serving_->server(); }
  // What others get of the server when its worker leaves.
  enum class Farewell {
    kFull,     // they may use it as long as they need it
    kShort,    // the worker's program has failed: what is summed is handed out for a moment
    kNothing,  // the job has failed
  };
  // Called when the server's worker, `rank`, has said goodbye. Also ends when this thread is
  // interrupted.
  void leave(uint32_t rank, Farewell farewell);
  void vanish() { serving_->vanish(); }
  void end_reports() { serving_->end_reports(); }

 private:
  Colocated(std::unique_ptr<Serving> serving, Nanos connect_timeout)
      : connect_timeout_(connect_timeout), serving_(std::move(serving)) {}
  void drain(uint32_t rank, Farewell farewell);

  const Nanos connect_timeout_;
  std::atomic<bool> ended_{false};  // all workers have said goodbye
  Status status_;                   // of the thread joining_
  std::thread joining_;
  const std::unique_ptr<Serving> serving_;
};

}  // namespace herring::job
