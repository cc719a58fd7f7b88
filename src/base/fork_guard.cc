#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace herring {
namespace {

// One bit per descriptor, up to the kernel's default limit (fs.nr_open). All of this state is
// constant-initialized, so it is usable before main() and after static destructors.
constexpr int kMaxFds = 1 << 20;
constexpr int kWordBits = 64;
constinit std::atomic<uint64_t> guarded[kMaxFds / kWordBits] = {};
constinit std::atomic<int> words_in_use{0};
constinit std::atomic<uint32_t> generation{0};

pthread_mutex_t section_mutex = PTHREAD_MUTEX_INITIALIZER;
thread_local int section_depth = 0;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

void before_fork() {
  if (section_depth == 0) pthread_mutex_lock(&section_mutex);
}

void after_fork_in_parent() {
  if (section_depth == 0) pthread_mutex_unlock(&section_mutex);
}

// Makes async-signal-safe calls only: other threads of the parent may have held any lock.
void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  int saved = errno;
  const int words = words_in_use.load(std::memory_order_relaxed);
  for (int w = 0; w < words; ++w) {
    uint64_t bits = guarded[w].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) ::close(w * kWordBits + __builtin_ctzll(bits));
  }
  errno = saved;
  if (section_depth == 0) pthread_mutex_unlock(&section_mutex);
}

void install_handlers() {
  static const bool installed = [] {
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
      std::fputs("herring: out of memory while installing fork handlers\n", stderr);
      std::abort();
    }
    return true;
  }();
  (void)installed;
}

// Installs the handlers before there are threads. A fork() while another thread is about to install
// them would leave the child with a mutex that nobody unlocks.
[[gnu::constructor]] void install_when_loaded() { install_handlers(); }

}  // namespace

ForkSection::ForkSection() {
  install_handlers();
  if (section_depth++ == 0) pthread_mutex_lock(&section_mutex);
}

ForkSection::~ForkSection() {
  if (--section_depth == 0) pthread_mutex_unlock(&section_mutex);
}

uint32_t fork_generation() { return generation.load(std::memory_order_relaxed); }

GuardedFd::GuardedFd(UniqueFd fd) {
  if (!fd.valid()) return;
  ForkSection section;
  fd_ = fd.release();
  generation_ = fork_generation();
  if (fd_ >= kMaxFds) return;  // Descriptors beyond the table are only CLOEXEC.
  const int word = fd_ / kWordBits;
  guarded[word].fetch_or(uint64_t{1} << (fd_ % kWordBits), std::memory_order_relaxed);
  int seen = words_in_use.load(std::memory_order_relaxed);
  while (seen <= word &&
         !words_in_use.compare_exchange_weak(seen, word + 1, std::memory_order_relaxed)) {
  }
}

UniqueFd GuardedFd::release() {
  ForkSection section;
  int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != fork_generation()) return UniqueFd();
  if (fd < kMaxFds) {
    guarded[fd / kWordBits].fetch_and(~(uint64_t{1} << (fd % kWordBits)),
                                      std::memory_order_relaxed);
  }
  return UniqueFd(fd);
}

void GuardedFd::reset() {
  if (fd_ < 0) return;
  ForkSection section;  // No fork may happen between deregistration and close.
  release().reset();
}

}  // namespace herring
