// Threads that help the engine's thread with the sums and copies of the node stage, on a node with
// more cores than ranks. The blocks of a buffer are given out one by one, and each is processed as
// NodeWork::work() would. So the bits of an element do not depend on who computes it.
//
// The engine's thread takes part and stays in control: it begins a buffer, and it alone finishes or
// calls off one. A helper holds only its current block and sleeps while there is none. A buffer
// often follows another at once, so a helper spins for some microseconds before it sleeps.
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
  // Slices of at least this size use helpers: on the wire, or in the buffer if only the largest
  // numbers travel. One thread takes 30 to 50 us for this many bytes if they are in no cache;
  // waking the others takes 5 to 20 us.
  static constexpr size_t kLeastBytes = 512 << 10;
  // Bytes that a thread takes at a time: about ten microseconds of work. Whole elements of any
  // dtype.
  static constexpr size_t kBlockBytes = 128 << 10;

  // `threads`: the engine's thread and the helpers, which start with the first large buffer.
  explicit Adders(uint32_t threads) : threads_(threads) {}
  ~Adders();
  Adders(const Adders&) = delete;
  Adders& operator=(const Adders&) = delete;

  // Works on the slice of a buffer that is new or that add() has begun. Helpers do so, too, and
  // continue after this call. Returns the bytes that this thread has processed: about `budget` (>
  // 0), or fewer if all is done. When all is done, `work.worked` is the whole slice. An exception
  // in a helper is thrown here.
  size_t add(const std::shared_ptr<NodeWork>& work, size_t budget);
  // Returns whether add() must be called for a buffer, or has been.
  bool helps(const NodeWork& work);
  // Stops work on the group's buffers, or on all buffers. Waits for the blocks that helpers hold.
  // When it returns, nobody works on these buffers any more.
  void call_off(uint32_t group);
  void call_off();
  // Calls off all buffers and ends the helpers.
  void end();

  size_t helpers() const { return helpers_.size(); }

 private:
  // State shared with helpers. In a forked child, the helpers do not exist and the lock may be
  // taken.
  struct Shared {
    std::mutex mutex;
    std::condition_variable begun;     // there is something to work on, or the end
    std::condition_variable put_down;  // the last block in a hand is done
    NodeWork* work = nullptr;          // this and what follows are guarded by mutex
    size_t next = 0, end = 0;          // bytes of the slice that nobody has taken
    std::exception_ptr failed;
    bool ends = false;
    // These change under the mutex; a thread that waits briefly reads them without it.
    std::atomic<uint32_t> in_hand{0};  // number of blocks that threads hold
    std::atomic<uint64_t> news{0};     // counts begun buffers, and the end
  };

  void start();
  static void help(Shared& shared);
  // Takes the next block, works on it, and returns its size in bytes. The caller holds the lock,
  // which is released during the work.
  static size_t take_block(Shared& shared, std::unique_lock<std::mutex>& lock);
  // Waits until no helper holds a block. The caller holds the lock.
  static void await_hands(Shared& shared, std::unique_lock<std::mutex>& lock);

  const uint32_t threads_;
  const uint32_t generation_ = fork_generation();
  bool started_ = false;
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  std::vector<std::thread> helpers_;
  std::shared_ptr<NodeWork> current_;  // the buffer that helpers work on
};

}  // namespace herring
