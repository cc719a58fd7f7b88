// How bytes leave a device and come back. User threads queue the copies, the device's copy engines
// make them, and flags tell when they are done. So only streams of the device wait for the device.
//
// All copies out share one stream, and all copies back share another, so that both directions of
// the link are busy at the same time. A copy back that waits for a flag holds up the copies back
// behind it. So callers whose order may differ between ranks need a copier each.
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

// The two ends of a copy.
struct Copy {
  Address device = 0;
  char* host = nullptr;
  size_t bytes = 0;
};

// A range of memory on the device.
struct Stretch {
  Address address = 0;
  size_t bytes = 0;
};

// One launch of a kernel.
struct Launch {
  Kernel kernel = 0;
  Combination what;
  uint32_t blocks = 1;
};

// User threads make these calls. A kDevice error carries the driver's message. Everything that
// out(), back() or when_back() had queued is then through, or the copier keeps what it was given
// forever (kPatienceAfterError).
class Copier {
 public:
  // `flags` and `watcher` must outlive the copier, and whatever waits for one of the flags. If the
  // last share is dropped on the watcher's thread, the copier ends later; see leave_to_unmap().
  static Result<std::shared_ptr<Copier>> create(Flags& flags, Watcher& watcher);
  // Waits for copies as drain() does, for kPatience. If some are still on their way then, the
  // driver keeps its streams, and its flags are never used again; that is logged.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  Device& device() const { return device_; }
  Flags& flags() { return flags_; }
  // The NUMA node on which host memory for the copies should lie; -1: any.
  int memory_node() const { return memory_node_; }
  // The stream of the copies out, for producers that can make this stream wait for them themselves.
  Stream out_stream() const { return out_; }

  // Casts in the first of the `producers` streams. When everything that is then queued in these
  // streams is through, copies out and calls `then` on the watcher's thread. Until then all memory
  // must stay.
  Status out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
             Watcher::Then then, const std::vector<Launch>& casts = {});
  // Copies back without waiting for a flag. `owner` has a share of the memory at both ends.
  Status back(const std::vector<Copy>& copies, std::shared_ptr<const void> owner = nullptr);
  // Copies back when the flag has reached the value. Until then later copies back wait, too.
  Status back_when(Flag flag, uint32_t value, const std::vector<Copy>& copies);
  // Casts when all copies back that are queued now are done; what comes after them comes after the
  // casts as well.
  Status cast_back(const std::vector<Launch>& casts);
  // Sets all bits of this memory when everything that is queued now is through: copies out, sums
  // and copies back. Every float is a NaN then, in each format. What comes after the copies back
  // comes after this as well.
  Status poison(const std::vector<Stretch>& memory);
  // Calls `then` on the watcher's thread when all copies back that are queued now are done. Until
  // then their host memory must stay.
  Status when_back(Watcher::Then then);
  // Makes what is queued in `consumer` from now on wait for all copies back that are queued now.
  Status join(Stream consumer);
  // Makes what is queued in `producer` from now on wait for all copies out that are queued now, so
  // that it may overwrite what they read.
  Status join_out(Stream producer);
  // Makes later copies back wait for all that is queued in `consumer` now, and with `out_too` later
  // copies out as well.
  Status follow(Stream consumer, bool out_too = false);
  // Waits until the copies out that are queued are done and their callbacks have returned, but not
  // beyond the deadline. Returns false if they are not.
  bool settle_out(Nanos deadline);

  // When the flag has reached the value, copies in, combines, copies out, and calls `then` on the
  // watcher's thread. Each of the three steps has a stream of its own. Until the flag has the
  // value, later sums wait. All memory must stay until `then` is called.
  struct Sum {
    std::vector<Copy> in, out;
    Launch launch;
  };
  Status combine_when(Flag flag, uint32_t value, const Sum& sum, Watcher::Then then);
  // Does the same with a result on its way back. All steps are among the copies back, which wait
  // meanwhile, and nothing is copied out.
  Status give_when(Flag flag, uint32_t value, const Sum& sum, Watcher::Then then);

  // How long an object that ends waits for its device.
  static constexpr Nanos kPatience = 5 * kSecond;
  // How long a call that the driver has refused waits for what it had queued before. A kernel that
  // does not end may hold that up. Its memory is then never freed, which is logged.
  static constexpr Nanos kPatienceAfterError = kSecond;

  // Waits until no copy is under way and all callbacks have returned, but not beyond the deadline.
  // The flags of back_when() must be set by others. Returns kTimeout if copies are still under way:
  // the memory at both their ends must then stay. Returns kDevice if the device is in an error:
  // nothing is under way any more.
  Status drain(Nanos deadline);
  // Waits until no copy is under way, but not beyond the deadline. Returns whether that is so; a
  // device in an error has no copies under way.
  bool await_idle(Nanos deadline);
  // Returns an error that the device is in, without waiting. All expected callbacks are then called
  // with the error.
  Status check();

  // Runs `call` if no copy is under way, and holds up new ones meanwhile. A device in an error
  // counts as busy.
  void while_idle(const std::function<void()>& call);

 private:
  Copier(Flags& flags, Watcher& watcher)
      : device_(flags.device()), watcher_(watcher), flags_(flags),
        memory_node_(near_node(device_.properties())) {}
  Status open();
  Status open_sums();
  std::vector<Stream> streams() const;
  std::vector<Stream> all_streams();  // takes the lock
  std::vector<Flag> flags_in_use() const;
  Status queue_out(const std::vector<Stream>& producers, const std::vector<Copy>& copies,
                   const std::vector<Launch>& casts);
  Status queue_out(const std::vector<Copy>& copies, Stream stream);
  Status queue_back(const std::vector<Copy>& copies, Stream stream);
  Status launch(const std::vector<Launch>& all, Stream stream);
  Status queue_sum(Flag flag, uint32_t value, const Sum& sum);
  Status queue_gift(Flag flag, uint32_t value, const Sum& sum);
  // Like Device::empty_by(), but tells an error that the device is in to all expected callbacks.
  Result<bool> idle_by(Nanos deadline, const std::vector<Stream>& streams);
  Status lose(const Status& why);
  // Waits until nothing that was queued in the stream before the failure reaches host memory any
  // more, or keeps `owner` forever. The caller holds the lock.
  template <typename Owner>
  Status give_up(Stream stream, const Status& why, Owner owner);
  Status join(Stream stream, Stream follower);

  Device& device_;
  Watcher& watcher_;
  Flags& flags_;
  const int memory_node_;
  std::mutex mutex_;  // guards what follows, and the order of what is queued
  Stream out_ = 0, back_ = 0;
  Stream sums_stream_ = 0, results_ = 0;  // created at the first sum
  Event combined_ = 0;
  Event produced_ = 0, consumed_ = 0, returned_ = 0;
  // The values of these flags count the calls of out(), when_back(), combine_when() and
  // give_when(). The last two are taken at the first such call.
  Flag is_out_, is_back_, is_combined_, is_given_;
  uint32_t outs_ = 0, backs_ = 0, sums_ = 0, gifts_ = 0;
};

}  // namespace herring::device
