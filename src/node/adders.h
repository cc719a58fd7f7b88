// Threads that help the engine's with the node stage's sums and copies, on a node with more cores
// than ranks. Who computes an element makes no difference to its bits: blocks of a buffer are given
// out one by one, and each is worked on as NodeWork::work() would.
//
// The engine's thread takes part, and keeps the say: it begins a buffer, and it alone finishes or
// calls off one. A helper holds nothing but the block in its hand, and sleeps while there is none;
// a buffer often follows another at once, so it looks for some microseconds before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fork_guard.h"
#include "node/node_work.h"

namespace herring {

// Engine thread only.
class Adders {
 public:
  // From here on others help. One thread takes 30 to 50 us for it where the bytes are in no cache;
  // to wake the others takes 5 to 20.
  static constexpr size_t kLeastBytes = 512 << 10;
  // What a thread takes at a time, some ten microseconds' work. Whole elements of any dtype.
  static constexpr size_t kBlockBytes = 128 << 10;

  // `threads`: the engine's and helpers, which start with the first large buffer.
  explicit Adders(uint32_t threads) : threads_(threads) {}
  ~Adders();
  Adders(const Adders&) = delete;
  Adders& operator=(const Adders&) = delete;

  // Works on the slice of a buffer, of which nothing is done yet or add() has done a part; the
  // helpers do so too, and go on after it. Returns when this thread has done about `budget` > 0
  // bytes, or all is done by all; then `work.worked` is the whole slice. Returns what this thread
  // has done. What a helper throws is thrown here.
  size_t add(const std::shared_ptr<NodeWork>& work, size_t budget);
  // Whether add() is to be called for a buffer, or has been.
  bool helps(const NodeWork& work);
  // Nothing more of the group's buffers is worked on when this returns. It waits for the blocks in
  // helpers' hands. Without a number: of all groups.
  void call_off(uint32_t group);
  void call_off();
  // Likewise, and there are no helpers any more.
  void end();

  size_t helpers() const { return helpers_.size(); }

 private:
  // What helpers see. In a forked child they are gone, and may have left the lock taken.
  struct Shared {
    std::mutex mutex;
    std::condition_variable begun;     // something to work on, or the end
    std::condition_variable put_down;  // the last block in a hand
    NodeWork* work = nullptr;          // this and what follows are guarded by mutex
    size_t next = 0, end = 0;          // bytes of its slice that nobody has taken
    std::exception_ptr failed;
    bool ends = false;
    // These change under mutex; who waits for a short while reads them without.
    std::atomic<uint32_t> in_hand{0};  // blocks
    std::atomic<uint64_t> news{0};     // how often there was something begun, or the end
  };

  void start();
  static void help(Shared& shared);
  // Takes the next block and works on it; returns its bytes. With the lock, which is let go of
  // meanwhile.
  static size_t take_block(Shared& shared, std::unique_lock<std::mutex>& lock);
  // Until no helper has a block in its hand. With the lock.
  static void await_hands(Shared& shared, std::unique_lock<std::mutex>& lock);

  const uint32_t threads_;
  const uint32_t generation_ = fork_generation();
  bool started_ = false;
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  std::vector<std::thread> helpers_;
  std::shared_ptr<NodeWork> current_;  // what helpers work on
};

}  // namespace herring
