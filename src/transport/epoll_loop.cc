#include "transport/epoll_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/signals.h"

namespace herring::transport {

namespace {

constexpr int kBatch = 64;
// kRest is how long the loop's own thread sleeps while another thread runs the loop. kTimerSlack is
// how late a timer may fire after that, so that not every driver has to wake the thread.
constexpr Nanos kRest = 50 * kMillisecond;
constexpr Nanos kTimerSlack = 10 * kMillisecond;

// Rounds up: waking early would spin the loop once for nothing.
int to_timeout_ms(Nanos wait) {
  if (wait <= 0) return 0;
  return static_cast<int>(std::min<Nanos>((wait + kMillisecond - 1) / kMillisecond, 1 << 30));
}

// Makes a write to a broken connection an error instead of a signal. This also holds for a thread
// that only drives the loop, whose signal mask is restored afterwards.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&broken_);
    sigaddset(&broken_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE)) return;
    sigset_t pending;
    sigpending(&pending);
    const timespec now{};
    if (sigismember(&pending, SIGPIPE)) sigtimedwait(&broken_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t broken_, before_;
};

uint32_t events_of(uint32_t readiness) {
  return (readiness & kForReading ? EPOLLIN : 0u) | (readiness & kForWriting ? EPOLLOUT : 0u);
}

uint32_t readiness_of(uint32_t events) {
  return (events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? kForReading : 0u) |
         (events & EPOLLOUT ? kForWriting : 0u);
}

// These calls fail only if the system lacks a resource.
void require(bool done, const std::string& what) {
  if (!done) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

EpollLoop::EpollLoop(Drivers drivers)
    : epoll_(GuardedFd::open([] { return epoll_create1(EPOLL_CLOEXEC); })),
      wake_(GuardedFd::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      lends_(drivers == Drivers::kWaitersToo) {
  if (lends_) bell_ = GuardedFd::open([] { return epoll_create1(EPOLL_CLOEXEC); });
  constexpr const char* kWhat = "cannot make the descriptors of an event loop";
  require(epoll_.valid() && wake_.valid() && (bell_.valid() || !lends_), kWhat);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint32_t>(wake_.get());  // generation 0
  require(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0, kWhat);
  if (!lends_) return;
  event.data.fd = epoll_.get();
  require(epoll_ctl(bell_.get(), EPOLL_CTL_ADD, epoll_.get(), &event) == 0, kWhat);
}

EpollLoop::~EpollLoop() { join(); }

void EpollLoop::start(const std::string& name) {
  const WithoutSignals mask;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), concat("cannot start the thread ", name));
  }
  has_thread_.store(true);
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

void EpollLoop::join() {
  if (!thread_.joinable()) return;
  if (!here()) return thread_.detach();  // the thread does not exist in a forked child
  stop();
  thread_.join();
}

void EpollLoop::stop_now() { stopping_.store(true); }

bool EpollLoop::in_loop_thread() const { return owner_.load() == std::this_thread::get_id(); }

bool EpollLoop::post_before_drive(Task task) {
  return lends_ ? queue(std::move(task)) : post(std::move(task));
}

void EpollLoop::wake() {
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

uint64_t EpollLoop::tag(int fd) const {
  return uint64_t{watched_[fd].generation} << 32 | static_cast<uint32_t>(fd);
}

void EpollLoop::add(int fd, uint32_t readiness, DescriptorHandler* handler) {
  if (static_cast<size_t>(fd) >= watched_.size()) watched_.resize(fd + 1);
  watched_[fd].handler = handler;
  if (++watched_[fd].generation == 0) ++watched_[fd].generation;
  epoll_event event{};
  event.events = events_of(readiness);
  event.data.u64 = tag(fd);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  watched_[fd].handler = nullptr;
  require(false, "cannot watch a connection");
}

void EpollLoop::modify(int fd, uint32_t readiness) {
  epoll_event event{};
  event.events = events_of(readiness);
  event.data.u64 = tag(fd);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EpollLoop::remove(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= watched_.size()) return;
  watched_[fd].handler = nullptr;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

int EpollLoop::next_timeout_ms() {
  return next_timer() == kNoTimer ? -1 : to_timeout_ms(next_timer() - now());
}

bool EpollLoop::iterate(int timeout_ms) {
  epoll_event events[kBatch];
  const int n = epoll_wait(epoll_.get(), events, kBatch, timeout_ms);
  ++wakeups_;
  for (int i = 0; i < n; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == static_cast<uint32_t>(wake_.get())) {
      uint64_t drained;
      [[maybe_unused]] ssize_t ignored = ::read(wake_.get(), &drained, sizeof(drained));
      continue;
    }
    const Watched& watched = watched_[static_cast<uint32_t>(tag)];
    if (watched.generation == tag >> 32 && watched.handler != nullptr) {
      attempt([&] { watched.handler->on_ready(readiness_of(events[i].events)); });
    }
  }
  run_tasks();
  run_timers();
  run_deferred();
  return n >= 0;
}

void EpollLoop::run() {
  const WithoutSigpipe broken_connections_are_errors;
  std::unique_lock lock(running_);
  owner_.store(std::this_thread::get_id());
  started_ = true;
  run_deferred();
  if (lends_) {
    run_with_drivers(lock);
  } else {
    while (!stopping_.load(std::memory_order_relaxed)) iterate(next_timeout_ms());
  }
  run_to_end();  // tasks posted together with stop() still run
  owner_.store(std::thread::id{});
}

void EpollLoop::run_with_drivers(std::unique_lock<std::mutex>& running) {
  const std::thread::id self = std::this_thread::get_id();
  while (!stopping_.load(std::memory_order_relaxed)) {
    int timeout = next_timeout_ms();
    asleep_until_.store(next_timer());
    owner_.store(std::thread::id{});
    running.unlock();
    epoll_event rings;
    // While a thread drives the loop, that thread runs the timers.
    while (epoll_wait(bell_.get(), &rings, 1, timeout) == 0 && driven_.load()) {
      timeout = to_timeout_ms(kRest);
      asleep_until_.store(now() + kRest);
      if (!driven_.load()) break;
    }
    running.lock();
    // A driver that waits for its turn goes first.
    parked_ = true;
    handed_back_.wait(running, [this] { return !driven_.load(); });
    parked_ = false;
    owner_.store(self);
    if (!stopping_.load(std::memory_order_relaxed)) iterate(0);
  }
}

bool EpollLoop::drive(Nanos deadline, const std::function<bool()>& until) noexcept {
  if (!lends_ || in_loop_thread() || !here()) return false;
  if (driven_.exchange(true)) {
    wake_for_tasks();
    return false;
  }
  const WithoutSigpipe broken_connections_are_errors;
  std::unique_lock lock(running_);
  const bool can = started_ && !stopping_.load(std::memory_order_relaxed);
  Nanos soonest = kNoTimer;
  if (can) {
    owner_.store(std::this_thread::get_id());
    listen(false);
    run_tasks();
    run_deferred();
    while (!until() && !stopping_.load(std::memory_order_relaxed)) {
      const Nanos left = deadline - now();
      if (left <= 0) break;
      const int timeout = next_timeout_ms(), most = to_timeout_ms(left);
      if (!iterate(timeout < 0 ? most : std::min(timeout, most))) break;
    }
    listen(true);
    owner_.store(std::thread::id{});
    if (stopping_.load(std::memory_order_relaxed)) wake();
    soonest = next_timer();
  }
  driven_.store(false);
  const bool parked = parked_;
  lock.unlock();
  if (parked) {
    handed_back_.notify_one();
  } else if (soonest < asleep_until_.load() - kTimerSlack) {
    wake();
  }
  if (!can) wake_for_tasks();
  return can;
}

// A driver that has not set driven_ yet checks `until()` before it sleeps, so it needs no wake-up.
void EpollLoop::rouse_driver() {
  if (driven_.load()) wake();
}

// Sets whether events wake the loop's own thread.
void EpollLoop::listen(bool on) {
  epoll_event event{};
  if (on) event.events = EPOLLIN;
  event.data.fd = epoll_.get();
  epoll_ctl(bell_.get(), EPOLL_CTL_MOD, epoll_.get(), &event);
}

}  // namespace herring::transport
