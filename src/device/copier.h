// The way of bytes out of a device and back: queued by threads of the user's, made by the device's
// copy engines, and heard of by flags. So nobody waits for a device but other streams of its.
//
// The copies out of all calls follow one another in one stream, those back in another; the two
// directions of the link are busy at the same time. What waits for a flag holds up what comes back
// later: so whatever may be in another order on another rank has a copier of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "device/flags.h"
#include "device/numa.h"
#include "device/watcher.h"

namespace herring::device {

// Bytes at both ends of a copy.
struct Copy {
  Address device = 0;
  char* host = nullptr;
  size_t bytes = 0;
};

// Calls are made by threads of the user's. kDevice: what the driver says; then all that was queued
// is through.
class Copier {
 public:
  // Both outlive it, and whatever waits for one of the flags.
  static Result<std::shared_ptr<Copier>> create(Flags& flags, Watcher& watcher);
  // Waits for copies as drain() does, for kPatience. If some are still on their way then, the
  // driver keeps its streams, and its flags are never used again; that is logged.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  Device& device() const { return device_; }
  Flags& flags() { return flags_; }
  // Where host memory for its copies is best: a NUMA node; -1: anywhere.
  int memory_node() const { return memory_node_; }
  // For producers that can be made to wait themselves: what they have put before this.
  Stream out_stream() const { return out_; }

  // Copies out what the producers have made when all is through that is queued there now, then
  // calls `then` on the watcher's thread. Until then both ends stay.
  Status out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
             Watcher::Then then);
  // Copies back at once.
  Status back(const std::vector<Copy>& copies);
  // Copies back once the flag has the value; until then it also holds up what comes back later.
  Status back_when(Flag flag, uint32_t value, const std::vector<Copy>& copies);
  // Calls `then` on the watcher's thread when all that was to come back until now is there; so long
  // the memory that it comes from stays.
  Status when_back(Watcher::Then then);
  // What is queued in `consumer` from now on comes after all that was to come back.
  Status join(Stream consumer);
  // What is queued in `producer` from now on comes after the copies out that are queued now: it may
  // overwrite what they read.
  Status join_out(Stream producer);
  // Copies back come after all that is queued in `consumer` now; with `out_too` those out as well.
  Status follow(Stream consumer, bool out_too = false);
  // Waits until what was to be copied out is there, and that was told, but no longer. False: it is
  // not there.
  bool settle_out(Nanos deadline);

  // Once the flag has the value, copies in, combines, copies out and calls `then` on the watcher's
  // thread: in streams of their own, where each of the three follows what came before it. Until
  // then the flag holds up what is to be combined later, and all of it stays where it is.
  struct Sum {
    std::vector<Copy> in, out;
    Kernel kernel = 0;
    Combination what;
    uint32_t blocks = 0;
  };
  Status combine_when(Flag flag, uint32_t value, const Sum& sum, Watcher::Then then);

  // How long the end of something waits for its device.
  static constexpr Nanos kPatience = 5 * kSecond;

  // Waits until no copy is on its way, and all was told, but no longer. What back_when() waits for
  // must come by itself. kTimeout: copies are still on their way, so the memory at both their ends
  // must stay. kDevice: an error that the device is in; nothing is on its way any more.
  Status drain(Nanos deadline);
  // Waits until no copy is on its way, but no longer. An error of the device counts as none.
  bool await_idle(Nanos deadline);
  // An error that the device is in, without waiting for it. What is expected is then told of it.
  Status check();

  // Calls it if no copy is on its way, and none begins meanwhile. An error of the device counts as
  // one that is.
  void while_idle(const std::function<void()>& call);

 private:
  Copier(Flags& flags, Watcher& watcher)
      : device_(flags.device()), watcher_(watcher), flags_(flags),
        memory_node_(near_node(device_.properties())) {}
  Status open();
  Status open_sums();
  std::vector<Stream> streams() const;
  std::vector<Stream> all_streams();  // without the lock
  std::vector<Flag> flags_in_use() const;
  Status queue_out(const std::vector<Stream>& producers, const std::vector<Copy>& copies);
  Status queue_out(const std::vector<Copy>& copies, Stream stream);
  Status queue_back(const std::vector<Copy>& copies, Stream stream);
  Status queue_sum(Flag flag, uint32_t value, const Sum& sum);
  // With the lock.
  bool is_idle();
  // Whether nothing is queued any more in the streams, when that is so or at the deadline. An error
  // that the device is in: what is expected is told of it.
  Result<bool> idle_by(Nanos deadline, const std::vector<Stream>& streams);
  Status lose(const Status& why);
  // Of what was queued before something failed, nothing reaches the host's memory any more.
  Status give_up(Stream stream, const Status& why);
  Status join(Stream stream, Stream follower);

  Device& device_;
  Watcher& watcher_;
  Flags& flags_;
  const int memory_node_;
  std::mutex mutex_;  // guards what follows, and the order of what is queued
  Stream out_ = 0, back_ = 0;
  Stream sums_stream_ = 0, results_ = 0;  // made when they are needed
  Event combined_ = 0;
  Event produced_ = 0, consumed_ = 0, returned_ = 0;
  // They count the calls of out(), when_back() and combine_when().
  Flag is_out_, is_back_, is_combined_;
  uint32_t outs_ = 0, backs_ = 0, sums_ = 0;
};

}  // namespace herring::device
