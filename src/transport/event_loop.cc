#include "transport/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace herring::transport {

EventLoop::EventLoop()
    : epoll_(GuardedFd::open([] { return epoll_create1(EPOLL_CLOEXEC); })),
      wake_(GuardedFd::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
  if (epoll_.get() < 0 || wake_.get() < 0) {
    log(LogLevel::kError, "cannot create an epoll descriptor (limit of open files?)");
    std::abort();
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

EventLoop::~EventLoop() = default;

bool EventLoop::in_loop_thread() const { return owner_.load() == std::this_thread::get_id(); }

void EventLoop::post(Task task) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    wake = !std::exchange(awake_, true);
  }
  if (wake) {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
  }
}

void EventLoop::stop() {
  post([this] { stopping_.store(true); });
}

void EventLoop::add(int fd, uint32_t events, EventHandler* handler) {
  if (static_cast<size_t>(fd) >= handlers_.size()) handlers_.resize(fd + 1, nullptr);
  handlers_[fd] = handler;
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    log(LogLevel::kError, "epoll cannot watch descriptor ", fd, ": ", strerror(errno));
  }
}

void EventLoop::modify(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= handlers_.size()) return;
  handlers_[fd] = nullptr;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::call_at(Nanos when, Task task) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  return id;
}

void EventLoop::cancel(TimerId id) {
  const auto found = timer_times_.find(id);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, id});
  timer_times_.erase(found);
}

int EventLoop::next_timeout_ms() {
  if (timers_.empty()) return -1;
  const Nanos wait = timers_.begin()->first.first - monotonic_now();
  if (wait <= 0) return 0;
  return static_cast<int>(std::min<Nanos>((wait + kMillisecond - 1) / kMillisecond, 1 << 30));
}

void EventLoop::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    awake_ = false;
  }
  for (Task& task : tasks) task();
}

void EventLoop::run_timers() {
  if (timers_.empty()) return;
  const Nanos now = monotonic_now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::run_deferred() {
  // A deferred task may defer another; that one runs in this same end of iteration.
  while (!deferred_.empty()) {
    running_deferred_.swap(deferred_);
    for (size_t i = 0; i < running_deferred_.size(); ++i) {
      if (Task* task = running_deferred_[i]) (*task)();
    }
    running_deferred_.clear();
  }
}

void EventLoop::forget(const Task* task) {
  for (std::vector<Task*>* list : {&deferred_, &running_deferred_}) {
    std::replace(list->begin(), list->end(), const_cast<Task*>(task), static_cast<Task*>(nullptr));
  }
}

void EventLoop::run(const char* thread_name) {
  if (thread_name != nullptr) pthread_setname_np(pthread_self(), thread_name);
  // A write to a connection that broke must be an error, not a signal.
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken, nullptr);
  owner_.store(std::this_thread::get_id());
  constexpr int kBatch = 64;
  epoll_event events[kBatch];
  run_deferred();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const int n = epoll_wait(epoll_.get(), events, kBatch, next_timeout_ms());
    ++wakeups_;
    bool woken = false;
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_.get()) {
        uint64_t drained;
        [[maybe_unused]] ssize_t ignored = ::read(fd, &drained, sizeof(drained));
        woken = true;
      } else if (EventHandler* handler = handlers_[fd]) {
        handler->on_events(events[i].events);
      }
    }
    if (woken) run_tasks();
    run_timers();
    run_deferred();
  }
  run_tasks();  // what was posted together with stop() still runs
  run_deferred();
  owner_.store(std::thread::id{});
}

}  // namespace herring::transport
