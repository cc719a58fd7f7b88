// An event loop over epoll, in the system's time. A caller that waits for a result from the loop
// may drive() the loop, if it is made for that. Then one thread less must be woken before the
// result is there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <thread>

#include "base/fork_guard.h"
#include "transport/descriptor_loop.h"

namespace herring::transport {

class EpollLoop final : public DescriptorLoop {
 public:
  enum class Drivers { kOwnThread, kWaitersToo };
  // Throws std::system_error if the process has no descriptors left.
  explicit EpollLoop(Drivers drivers = Drivers::kOwnThread);
  ~EpollLoop() override;  // calls join()

  Nanos now() const override { return monotonic_now(); }
  void start(const std::string& name) override;
  void join() override;
  bool in_loop_thread() const override;
  bool here() const override { return generation_ == fork_generation(); }
  bool has_thread() const override { return here() && has_thread_.load(); }
  bool post_before_drive(Task task) override;
  bool drive(Nanos deadline, const std::function<bool()>& until) noexcept override;
  void rouse_driver() override;
  void add(int fd, uint32_t readiness, DescriptorHandler* handler) override;
  void modify(int fd, uint32_t readiness) override;
  void remove(int fd) override;

  // Like start(), but on the calling thread: runs until stop(), and owns the loop meanwhile.
  void run();

 private:
  void wake() override;
  void stop_now() override;
  // Returns false if a signal interrupted the wait.
  bool iterate(int timeout_ms);
  void run_with_drivers(std::unique_lock<std::mutex>& running);
  void listen(bool on);
  int next_timeout_ms();
  uint64_t tag(int fd) const;

  GuardedFd epoll_;
  GuardedFd wake_;
  struct Watched {
    DescriptorHandler* handler = nullptr;
    // Distinguishes a descriptor from an earlier one with the same number, whose event may still be
    // among those of the current iteration.
    uint32_t generation = 0;
  };
  std::vector<Watched> watched_;  // by descriptor
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> owner_{};
  std::thread thread_;
  std::atomic<bool> has_thread_{false};
  const uint32_t generation_ = fork_generation();

  // With drivers, what belongs to the loop belongs to the thread that holds running_. The loop's
  // own thread waits for epoll_ to become readable. So it can be left asleep (see listen()) while
  // another thread waits in epoll_.
  const bool lends_;
  GuardedFd bell_;
  std::mutex running_;
  std::condition_variable handed_back_;
  std::atomic<bool> driven_{false};  // or about to be driven
  bool started_ = false, parked_ = false;
  std::atomic<Nanos> asleep_until_{0};  // of the loop's own thread, unless something happens
};

}  // namespace herring::transport
