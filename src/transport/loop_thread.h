// A thread that runs one event loop, for rooms that need a loop of their own.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "transport/event_loop.h"

namespace herring::transport {

class LoopThread {
 public:
  LoopThread();
  ~LoopThread();  // stop()
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  EventLoop& loop() { return loop_; }
  // `name` (at most 15 characters) is shown by tools such as top. All signals stay with the other
  // threads. Before start() the loop may be prepared from the calling thread.
  void start(const std::string& name);
  // Ends the loop after what is queued, and joins. Not from the loop's own thread.
  void stop();
  // In a forked child the thread does not exist: nothing may be posted or waited for there.
  bool here() const { return generation_ == fork_generation(); }

 private:
  EventLoop loop_;
  std::thread thread_;
  uint32_t generation_;
};

}  // namespace herring::transport
