#include "virtual/simulation.h"

#include <utility>

#include "virtual/flow.h"

namespace herring::transport::virtual_time {

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      network_(options.hosts, options.spines, options.seed),
      streams_(network_, options.streams, *this),
      cores_(options.shared_cores ? 1 : options.hosts) {
  for (Cores& cores : cores_) cores.free = options_.cores == 0 ? SIZE_MAX / 2 : options_.cores;
}

Simulation::~Simulation() = default;

void Simulation::push(Nanos when, size_t loop, uint64_t what) {
  queue_.push({std::max(when, now_), order_++, loop, what});
}

void Simulation::call_at(Nanos when, std::function<void()> task) {
  tasks_.emplace(next_task_, std::move(task));
  push(when, kNoLoop, next_task_++);
}

bool Simulation::step(Nanos deadline) {
  const Nanos own = queue_.empty() ? kNever : queue_.top().time;
  const Nanos streams = streams_.next();
  const Nanos next = std::min(own, streams);
  if (next == kNever || next > deadline) return false;
  ++events_;
  now_ = std::max(now_, next);
  // The network goes first, so that loops see at this moment what arrives at this moment.
  if (streams <= own) {
    streams_.advance(now_);
    return true;
  }
  const Event event = queue_.top();
  queue_.pop();
  if (event.loop == kNoLoop) {
    const auto task = tasks_.extract(event.what);
    task.mapped()();
  } else if (VirtualLoop* loop = loops_[event.loop]) {
    loop->on_event(event.what);
  }
  return true;
}

bool Simulation::run_until(const std::function<bool()>& done, Nanos deadline) {
  while (!done()) {
    if (!step(deadline)) {
      if (deadline != kNever) now_ = std::max(now_, deadline);
      return false;
    }
  }
  return true;
}

uint32_t Simulation::connect(size_t from, size_t to) {
  const uint32_t connection =
      streams_.connect(static_cast<uint16_t>(from), static_cast<uint16_t>(to), now_);
  while (ends_.size() < 2 * (size_t{connection} + 1)) ends_.emplace_back(options_.carries_data);
  return connection;
}

void Simulation::on_received(uint32_t connection, int side, uint64_t total, Nanos) {
  End& here = end(connection, side);
  here.arrived = total;
  if (here.flow != nullptr) here.flow->notice(false);
}

void Simulation::on_writable(uint32_t connection, int side, Nanos) {
  if (VirtualFlow* flow = end(connection, side).flow) flow->notice(true);
}

void Simulation::on_finished(uint32_t connection, int side, Nanos) {
  End& here = end(connection, side);
  here.finished = true;
  if (here.flow != nullptr) here.flow->notice(false);
}

// Behaves like a reset connection: the flow reads what has arrived, and then sees the end.
void Simulation::on_aborted(uint32_t connection, int side, Nanos now) {
  on_finished(connection, side, now);
}

}  // namespace herring::transport::virtual_time
