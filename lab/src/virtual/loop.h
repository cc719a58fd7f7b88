// An event loop in virtual time. It has no thread: the simulation runs its iterations.
#pragma once

#include <string>
#include <vector>

#include "transport/event_loop.h"
#include "virtual/simulation.h"

namespace herring::transport::virtual_time {

class VirtualLoop final : public EventLoop {
 public:
  VirtualLoop(Simulation& simulation, size_t host);
  ~VirtualLoop() override;

  size_t host() const { return host_; }

  // Inside an iteration, this includes what the iteration has cost so far.
  Nanos now() const override;
  void start(const std::string& name) override;
  void join() override;
  bool in_loop_thread() const override { return running_; }
  bool here() const override { return true; }
  bool has_thread() const override { return false; }
  bool post_before_drive(Task task) override { return post(std::move(task)); }
  // Runs the whole simulation until `until()` or `deadline`.
  bool drive(Nanos deadline, const std::function<bool()>& until) noexcept override;
  void rouse_driver() override {}  // there are no other threads

 private:
  friend class Simulation;
  friend class VirtualFlow;

  // kWaits: for a processor. kHandles: for the end of the first half's work. kSends: for the end of
  // the second half's work.
  enum class State { kAsleep, kWaits, kHandles, kSends };

  void wake() override;
  void stop_now() override { stopped_ = true; }
  // The flow has something to read, or takes bytes again; the next iteration handles it.
  void ready(VirtualFlow* flow);
  void forget(VirtualFlow* flow);
  void charge(double nanoseconds) { cost_ += nanoseconds; }
  void schedule(Nanos when);
  void on_event(uint64_t ticket);
  void begin_iteration();
  void end_iteration();
  // Ends the work of half an iteration; the next event comes when its cost has passed.
  void end_half();
  void rest();

  Simulation& simulation_;
  const size_t host_;
  const size_t number_;  // among the simulation's loops
  Simulation::Cores& cores_;
  State state_ = State::kAsleep;
  bool started_ = false, stopped_ = false, ended_ = false, running_ = false;
  double cost_ = 0;                  // nanoseconds of the current half of an iteration
  Nanos due_ = kNever;               // start of the next iteration, while asleep
  uint64_t ticket_ = 0;              // events with older tickets are void
  std::vector<VirtualFlow*> ready_, handling_;
};

}  // namespace herring::transport::virtual_time
