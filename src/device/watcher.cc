#include "device/watcher.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/signals.h"

namespace herring::device {
namespace {

// A copy of 2 MB takes about 80 us at 25 GB/s.
constexpr auto kShortest = std::chrono::microseconds(20), kLongest = std::chrono::microseconds(500);

thread_local const Watcher* watcher_here = nullptr;

}  // namespace

Watcher& Watcher::shared() {
  static auto* const watcher = new Watcher;
  return *watcher;
}

Watcher::~Watcher() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::vector<Flag> left;
  for (const auto& [word, queue] : queues_) left.push_back(queue.flag);
  for (const Flag& flag : left) give_up(flag, {Code::kShutdown, "herring was shut down"});
}

void Watcher::start() {
  std::lock_guard lock(mutex_);
  if (thread_.joinable()) return;
  const WithoutSignals mask;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "herring-device");
}

void Watcher::expect(const Flag& flag, uint32_t value, Then then) {
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[flag.word];
  queue.flag = flag;
  queue.expected.push_back({value, std::move(then)});
  ++left_;
  if (queues_.size() == 1 && queue.expected.size() == 1) changed_.notify_all();
}

void Watcher::give_up(const Flag& flag, const Status& why) {
  std::deque<Expected> left;
  {
    std::lock_guard lock(mutex_);
    const auto found = queues_.find(flag.word);
    if (found == queues_.end()) return;
    left = std::move(found->second.expected);
    queues_.erase(found);
  }
  changed_.notify_all();
  for (const Expected& one : left) one.then(why);
  left_ -= left.size();
}

void Watcher::settle(const Flag& flag) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !calls_ && !queues_.contains(flag.word); });
}

bool Watcher::collect(std::deque<Then>& come) {
  for (auto at = queues_.begin(); at != queues_.end();) {
    Queue& queue = at->second;
    while (!queue.expected.empty() && queue.flag.has(queue.expected.front().value)) {
      come.push_back(std::move(queue.expected.front().then));
      queue.expected.pop_front();
    }
    at = queue.expected.empty() ? queues_.erase(at) : std::next(at);
  }
  return !come.empty();
}

bool Watcher::here() const { return watcher_here == this; }

void Watcher::run() {
  watcher_here = this;
  auto rest = kShortest;
  std::deque<Then> come;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (queues_.empty()) {
      rest = kShortest;
      changed_.wait(lock, [this] { return ends_ || !queues_.empty(); });
      continue;
    }
    looks_.fetch_add(1, std::memory_order_relaxed);
    if (collect(come)) {
      rest = kShortest;
      calls_ = true;
      lock.unlock();
      for (const Then& then : come) then({});
      left_ -= come.size();
      come.clear();
      lock.lock();
      calls_ = false;
      changed_.notify_all();
      continue;
    }
    lock.unlock();
    std::this_thread::sleep_for(rest);
    rest = std::min(2 * rest, kLongest);
    lock.lock();
  }
}

}  // namespace herring::device
