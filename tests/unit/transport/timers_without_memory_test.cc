// A timer that cannot be stored is not there: nobody could cancel it, so its task would run after
// what it uses has gone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "transport/epoll_loop.h"

namespace {

// Allocations of this thread that still succeed; below 0: all do.
thread_local int g_allocations_left = -1;

}  // namespace

void* operator new(size_t bytes) {
  const bool fails = g_allocations_left == 0;
  if (g_allocations_left > 0) --g_allocations_left;
  void* const memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer brings its own, whose memory free() may not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace herring::transport {
namespace {

TEST(EventLoop, ATimerWithoutMemoryNeverRuns) {
  EpollLoop loop;
  int ran = 0, refused = 0;
  for (int allocations = 0; allocations < 4; ++allocations) {
    bool taken = true;
    g_allocations_left = allocations;
    try {
      loop.call_after(0, [&ran] { ++ran; });
    } catch (const std::bad_alloc&) {
      taken = false;
    }
    g_allocations_left = -1;
    refused += !taken;
  }
  loop.call_after(kMillisecond, [&loop] { loop.stop(); });
  loop.run();
  EXPECT_GE(refused, 2);  // the time, and then the task
  EXPECT_EQ(ran, 4 - refused);
}

}  // namespace
}  // namespace herring::transport
