#include "virtual/loop.h"

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "virtual/flow.h"

namespace herring::transport::virtual_time {

VirtualLoop::VirtualLoop(Simulation& simulation, size_t host)
    : simulation_(simulation),
      host_(host),
      number_(simulation.loops_.size()),
      cores_(simulation.cores_of(host)) {
  simulation_.loops_.push_back(this);
}

VirtualLoop::~VirtualLoop() {
  join();
  simulation_.loops_[number_] = nullptr;
}

Nanos VirtualLoop::now() const {
  return simulation_.now() + (running_ ? static_cast<Nanos>(cost_) : 0);
}

void VirtualLoop::start(const std::string&) {
  started_ = true;
  schedule(simulation_.now());
}

void VirtualLoop::join() {
  if (ended_) return;
  ended_ = true;
  if (state_ == State::kHandles || state_ == State::kSends) rest();
  auto& waiting = cores_.waiting;
  waiting.erase(std::remove(waiting.begin(), waiting.end(), this), waiting.end());
  if (started_) {
    running_ = true;
    run_to_end();
    running_ = false;
  }
  end();
}

bool VirtualLoop::drive(Nanos deadline, const std::function<bool()>& until) noexcept {
  if (!started_ || stopped_ || running_) return false;
  simulation_.run_until(until, deadline);
  return true;
}

void VirtualLoop::wake() {
  if (started_) schedule(simulation_.now());
}

void VirtualLoop::ready(VirtualFlow* flow) {
  ready_.push_back(flow);
  schedule(simulation_.now());
}

void VirtualLoop::forget(VirtualFlow* flow) {
  for (std::vector<VirtualFlow*>* list : {&ready_, &handling_}) {
    std::replace(list->begin(), list->end(), flow, static_cast<VirtualFlow*>(nullptr));
  }
}

void VirtualLoop::schedule(Nanos when) {
  if (!started_ || ended_ || state_ != State::kAsleep || when >= due_) return;
  due_ = when;
  simulation_.push(when, number_, ++ticket_);
}

void VirtualLoop::on_event(uint64_t ticket) {
  if (ticket != ticket_ || ended_) return;
  if (state_ == State::kHandles) return end_iteration();
  if (state_ == State::kSends) return rest();
  if (cores_.free == 0) {
    state_ = State::kWaits;
    cores_.waiting.push_back(this);
    return;
  }
  --cores_.free;
  begin_iteration();
}

void VirtualLoop::begin_iteration() {
  state_ = State::kHandles;
  due_ = kNever;
  running_ = true;
  ++wakeups_;
  cost_ = simulation_.options().costs.wakeup;
  handling_.swap(ready_);
  for (size_t i = 0; i < handling_.size(); ++i) {
    if (VirtualFlow* flow = handling_[i]) flow->handle();
  }
  handling_.clear();
  run_tasks();
  run_timers();
  end_half();
}

void VirtualLoop::end_iteration() {
  state_ = State::kSends;
  running_ = true;
  cost_ = 0;
  run_deferred();
  // The processor is busy until everything is sent. What is ready by then is for the next
  // iteration.
  end_half();
}

void VirtualLoop::end_half() {
  running_ = false;
  if (!ended_) {
    simulation_.push(simulation_.now() + static_cast<Nanos>(cost_), number_, ++ticket_);
  }
}

void VirtualLoop::rest() {
  state_ = State::kAsleep;
  ++cores_.free;
  if (!cores_.waiting.empty()) {
    VirtualLoop* next = cores_.waiting.front();
    cores_.waiting.pop_front();
    next->state_ = State::kAsleep;
    next->due_ = kNever;
    next->schedule(simulation_.now());
  }
  if (ended_ || stopped_) return;
  if (!ready_.empty() || has_tasks()) {
    schedule(simulation_.now());
  } else if (next_timer() != kNoTimer) {
    schedule(std::max(next_timer(), simulation_.now()));
  }
}

}  // namespace herring::transport::virtual_time
