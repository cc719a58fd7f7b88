// What a device does for one array whose pieces travel between ranks. Pieces that are sent are
// copied to host memory; pieces that have arrived there are combined with the array by a kernel. A
// thread of the user's queues all of it at once. From then on the device and the threads that move
// bytes tell each other by flags how far they are.
//
// The two streams of a relay wait for what other ranks send. So each array in flight has a relay of
// its own: ranks may have begun theirs in another order.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/copier.h"

namespace herring::device {

class Relay {
 public:
  // A copy out waits for everything before it in the list, a sum only for the sums before it.
  struct Piece {
    bool out = false;
    Copy copy;             // if it goes out
    Combination sum;       // otherwise; the relay adds the command
    bool divides = false;  // the sum is divided by the divisor
  };

  // Both outlive it.
  static Result<std::shared_ptr<Relay>> create(Flags& flags, Watcher& watcher);
  // When all that was queued is through.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // On a thread that may call the driver, when nothing is under way. The device begins when the
  // producers have made the array. `moved` is called on the watcher's thread after each piece, and
  // when all is through. kDevice: what the driver says; nothing touches the array any more then.
  Status queue(const std::vector<Stream>& producers, Kernel kernel, double divisor,
               const std::vector<Piece>& pieces, const Watcher::Then& moved);

  // Any thread, down to stop(). How many of the pieces that go out are in host memory; how many of
  // the others are done, plus one when all is through.
  uint32_t outs() const { return outs_.word->load(std::memory_order_acquire) - first_out_; }
  uint32_t ins() const { return ins_.word->load(std::memory_order_acquire) - first_in_; }
  // Nothing touches the array or the host's memory any more; or the device is lost.
  bool through() const;
  bool is_lost() const { return lost_.load(); }
  // The first so many of the pieces that do not go out may be done.
  void arrived(uint32_t ins);
  // Sums that have not begun touch nothing, and no stream waits for what has not arrived.
  void stop();

  // Runs the kernel over nothing, and waits for that: drivers load a kernel when it is run first,
  // for which they may wait until the device is idle. Nobody else may have the relay.
  Status try_kernel(Kernel kernel);
  // An error that the device is in; the relay is then stopped, and `moved` is told. On a thread
  // that may call the driver.
  Status check();
  // Calls `call` if nothing is under way; nothing begins meanwhile.
  void while_idle(const std::function<void()>& call);

 private:
  Relay(Flags& flags, Watcher& watcher)
      : device_(flags.device()), watcher_(watcher), flags_(flags) {}
  Status open();
  Status queue_pieces(const std::vector<Stream>& producers, Kernel kernel,
                      const std::vector<Piece>& pieces);
  void tell_commands(double divisor);

  Device& device_;
  Watcher& watcher_;
  Flags& flags_;
  std::mutex mutex_;  // guards the order of what is queued
  Stream outs_stream_ = 0, ins_stream_ = 0;
  Event event_ = 0;
  Flag outs_, ins_, arrived_;     // they count pieces, and go on from one array to the next
  std::array<Flag, 2> commands_;  // lines of registered memory: of sums, and of those that divide
  Address command_ = 0;           // of the sum that runs, on the device
  uint32_t first_out_ = 0, first_in_ = 0, first_arrived_ = 0;
  uint32_t all_ins_ = 0;
  std::atomic<bool> queued_{false};  // all of it
  std::atomic<bool> lost_{false};
};

}  // namespace herring::device
