#include "node/adders.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"

namespace herring {
namespace {

// A block that the engine waits for is nearly done, and the next buffer may be about to come.
// Sleeping and being woken would take longer.
constexpr Nanos kShortWait = 20 * kMicrosecond;

template <typename Done>
void wait_shortly(const Done& done) {
  const Nanos end = monotonic_now() + kShortWait;
  while (!done() && monotonic_now() < end) {
  }
}

}  // namespace

Adders::~Adders() {
  if (generation_ != fork_generation()) {  // a forked child does not have these threads
    for (std::thread& helper : helpers_) helper.detach();
    static_cast<void>(shared_.release());
    return;
  }
  end();
}

void Adders::end() {
  call_off();
  {
    std::lock_guard lock(shared_->mutex);
    shared_->ends = true;
    shared_->news.fetch_add(1);
  }
  shared_->begun.notify_all();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

bool Adders::helps(const NodeWork& work) {
  if (&work == current_.get()) return true;
  if (threads_ <= 1 || work.leaves_as_is()) return false;
  if (work.bytes_in(work.slice.bytes) < kLeastBytes) return false;
  if (!std::exchange(started_, true)) start();
  return !helpers_.empty();
}

// Starts as many helpers as the system allows.
void Adders::start() {
  const WithoutSignals mask;
  helpers_.reserve(threads_ - 1);
  try {
    while (helpers_.size() < threads_ - 1) {
      helpers_.emplace_back([shared = shared_.get()] { help(*shared); });
      pthread_setname_np(helpers_.back().native_handle(), "herring-adder");
    }
  } catch (const std::system_error& error) {
    log(LogLevel::kWarning, "the node stage adds with ", counted(helpers_.size() + 1, "thread"),
        " instead of ", threads_, " (HERRING_NODE_THREADS): ", error.what());
  }
}

size_t Adders::add(const std::shared_ptr<NodeWork>& work, size_t budget) {
  Shared& shared = *shared_;
  const bool begins = work != current_;
  if (begins) call_off();
  std::unique_lock lock(shared.mutex);
  if (begins) {
    current_ = work;
    shared.work = work.get();
    shared.next = 0;
    shared.end = work->slice.bytes;
    shared.news.fetch_add(1);
    lock.unlock();
    shared.begun.notify_all();
    lock.lock();
  }
  size_t here = 0;
  while (here < budget && shared.next < shared.end) here += take_block(shared, lock);
  if (shared.next < shared.end) return here;
  await_hands(shared, lock);
  current_.reset();
  if (std::exception_ptr failed = std::exchange(shared.failed, nullptr)) {
    std::rethrow_exception(failed);
  }
  work->worked = work->slice.bytes;
  return here;
}

void Adders::call_off(uint32_t group) {
  if (current_ && current_->task.key.group == group) call_off();
}

void Adders::call_off() {
  if (!current_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->next = shared_->end;
  await_hands(*shared_, lock);
  shared_->failed = nullptr;
  current_.reset();
}

void Adders::await_hands(Shared& shared, std::unique_lock<std::mutex>& lock) {
  if (shared.in_hand.load() > 0) {
    lock.unlock();
    wait_shortly([&shared] { return shared.in_hand.load() == 0; });
    lock.lock();
  }
  shared.put_down.wait(lock, [&shared] { return shared.in_hand.load() == 0; });
}

size_t Adders::take_block(Shared& shared, std::unique_lock<std::mutex>& lock) {
  NodeWork& work = *shared.work;
  const size_t steps = std::max<size_t>(kBlockBytes / work.step_bytes(), 1);
  const size_t begin = shared.next, bytes = std::min(steps * kPackBytes, shared.end - begin);
  shared.next += bytes;
  shared.in_hand.fetch_add(1);
  lock.unlock();
  std::exception_ptr failed;
  try {
    work.work_on(begin, bytes);
  } catch (...) {  // no memory
    failed = std::current_exception();
  }
  lock.lock();
  if (failed) {
    shared.failed = failed;
    shared.next = shared.end;
  }
  if (shared.in_hand.fetch_sub(1) == 1 && shared.next == shared.end) shared.put_down.notify_one();
  return bytes;
}

void Adders::help(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.begun.wait(lock, [&shared] { return shared.ends || shared.next < shared.end; });
    if (shared.ends) return;
    while (shared.next < shared.end) take_block(shared, lock);
    const uint64_t known = shared.news.load();
    lock.unlock();
    wait_shortly([&shared, known] { return shared.news.load() != known; });
    lock.lock();
  }
}

}  // namespace herring
