// A loop over epoll, in the system's time. A caller who waits for something that the loop will
// bring may drive() one that is made for it: one thread less is to be woken before the result is
// there.
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
  // Throws std::system_error without descriptors.
  explicit EpollLoop(Drivers drivers = Drivers::kOwnThread);
  ~EpollLoop() override;  // join()

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

  // What start() does, on the calling thread: runs until stop(), and owns the loop meanwhile.
  void run();

 private:
  void wake() override;
  void stop_now() override;
  // False: a signal came.
  bool iterate(int timeout_ms);
  void run_with_drivers(std::unique_lock<std::mutex>& running);
  void listen(bool on);
  int next_timeout_ms();
  uint64_t tag(int fd) const;

  GuardedFd epoll_;
  GuardedFd wake_;
  struct Watched {
    DescriptorHandler* handler = nullptr;
    // Tells what was added from what had the same number before: an event of that one may still be
    // among those of this iteration.
    uint32_t generation = 0;
  };
  std::vector<Watched> watched_;  // by descriptor
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> owner_{};
  std::thread thread_;
  std::atomic<bool> has_thread_{false};
  const uint32_t generation_ = fork_generation();

  // With drivers: what belongs to the loop belongs to whoever holds running_. The loop's own thread
  // waits for epoll_ to become readable, so that it can be left asleep (listen) while another waits
  // in it.
  const bool lends_;
  GuardedFd bell_;
  std::mutex running_;
  std::condition_variable handed_back_;
  std::atomic<bool> driven_{false};  // or about to be
  bool started_ = false, parked_ = false;
  std::atomic<Nanos> asleep_until_{0};  // the loop's own thread, unless something happens
};

}  // namespace herring::transport
