// The server that a worker process hosts: threads beside the worker's, a member of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "job/serving.h"

namespace herring::job {

class Colocated {
 public:
  // Listens, and begins to join as a process of its own would: that ends when the whole cluster is
  // there.
  static Result<std::unique_ptr<Colocated>> start(const control::Member::Options& member,
                                                  uint32_t node);
  ~Colocated();

  // Waits until it has joined, or could not.
  Status joined();
  // Serves the cluster, once it has joined; the worker has connections to all servers too.
  Status attach();
  server::Server& server() { return serving_->server(); }
  // Its worker, `rank`, has said goodbye. `drains`: what is summed is handed out first. Bounded.
  void leave(uint32_t rank, bool drains);
  void vanish() { serving_->vanish(); }

 private:
  explicit Colocated(std::unique_ptr<Serving> serving) : serving_(std::move(serving)) {}
  void drain();

  std::atomic<bool> ended_{false};  // all workers have said goodbye
  Status status_;                   // of the thread
  std::thread joining_;
  const std::unique_ptr<Serving> serving_;
};

}  // namespace herring::job
