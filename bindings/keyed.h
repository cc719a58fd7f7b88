// Collectives on lists of buffers, called from a compiled program. A key names the place of the
// call in the program. The n-th execution of a key on one rank meets the n-th on every other rank,
// in whatever order the program's runtime executes its keys.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/copier.h"
#include "job/job.h"

namespace herring::bindings {

struct KeyedCall {
  std::string key;
  int64_t group = 0;            // number from KeyedCalls::add_group; 0: all ranks
  calls::Call call;            // a call on a list, without its name and group
  std::string refusal;          // not empty: this rank refuses the call and tells all ranks why
  Status failure;               // with a refusal: what start() returns
  std::vector<wire::Array> results;
};

// A call has two parts. start() takes the inputs and returns; finish() takes the results. So if a
// program starts its calls in the same order on all ranks, no call waits for another. This holds
// even if the runtime does one thing after the other.
//
// Arrays on a device take the same two steps, in the order of the stream in which the program runs.
// The program's kernels run while bytes move, and the host waits for nothing. So an operation may
// fail after its results were promised. Its results are then NaN (see Operation::return_to()), the
// failure is logged, and the next call on a device returns it.
class KeyedCalls {
 public:
  // Called once, on a thread that may block.
  using Done = std::function<void(const Status&)>;

  // Returns the only instance of the process; it is never destroyed.
  static KeyedCalls& instance();

  // Sends calls to this job from now on, numbered from 0. The job must outlive detach().
  void attach(job::Job& job);
  // Sends calls to no job. Waits for calls that are being started.
  void detach();
  // Must be called in a forked child, which has no job.
  void forget();
  // Returns the number of a group of the job, from 1 on. The same group keeps its number.
  int64_t add_group(std::shared_ptr<engine::Group> group);

  using Key = std::pair<int64_t, std::string>;  // number of the group, and key

  // Starts a call. Its buffers' memory is not needed after that. Any thread, without the GIL.
  Status start(KeyedCall call);
  // Takes the results of the latest call with this key. The memory at `places` must stay valid
  // until `done` is called. Any thread, without the GIL.
  void finish(const Key& key, std::vector<char*> places, Done done);

  // Starts a call whose buffers are on a device, where `stream` makes them. With `overwrites`, work
  // that is queued in the stream from now on may overwrite them. May wait for the results of an
  // earlier execution of this key, so that a host that runs ahead of its device does not take ever
  // more memory. Must run on a thread that may call the device's driver, without the GIL.
  Status start(KeyedCall call, int device, device::Stream stream, bool overwrites);
  // Queues the return of the results to `places` in `stream`. The places are in use until all work
  // that is queued in the stream now is done. Must run on a thread that may call the device's
  // driver, without the GIL.
  Status finish(const Key& key, std::vector<calls::Operation::Place> places,
                device::Stream stream);
  // Waits until the results of all executions are on their devices, but no longer than this.
  void settle(Nanos patience);
  // Returns why results on a device are missing, if no caller has been told. Returns OK afterwards.
  Status take_failure();

 private:
  struct Executions {
    uint32_t joins = 0;  // of the group, at the time of counting
    uint64_t count = 0;
  };
  // A call from its start until its results are taken. If a program fails in between, the call is
  // left behind. It is dropped by the next execution or by the end of the job.
  struct Running {
    std::shared_ptr<calls::Operation> operation;  // null while being started
    bool claimed = false;
    bool is_left_behind() const { return operation && operation->done() && !claimed; }
  };

  // Returns the name of this execution, which contains the number of executions before it.
  std::string next_name(const Key& key, const engine::Group& group);
  // Returns an error if the last execution is still in flight.
  Status enter(const Key& key);
  std::shared_ptr<calls::Operation> claim(const Key& key);
  // Returns the copier of a device, which the calls of all programs share.
  Result<std::shared_ptr<device::Copier>> copier_of(int device);
  // Waits until at most so many executions of the key are on their way back to a device.
  Status await_returns(const Key& key, size_t most);
  void returned(const Key& key, const std::shared_ptr<calls::Operation>& operation);
  void note_failure(const Key& key, const calls::Operation& operation, const Status& why);
  Status submit(const Key& key, KeyedCall& call);

  std::shared_mutex attached_;      // held shared while a call is started
  job::Job* job_ = nullptr;         // guarded by attached_
  std::map<int64_t, std::shared_ptr<engine::Group>> groups_;  // guarded by attached_
  int64_t next_group_ = 1;          // never used twice; guarded by attached_

  std::mutex mutex_;  // guards the members up to failure_
  std::map<Key, Executions> executions_;
  std::map<Key, Running> running_;
  std::condition_variable changed_;
  // Operations whose results are on their way back to a device, the first one first.
  std::map<Key, std::deque<std::shared_ptr<calls::Operation>>> returning_;
  Status failure_;

  std::mutex copiers_mutex_;
  std::map<int, std::shared_ptr<device::Copier>> copiers_;  // by device; guarded by copiers_mutex_
};

}  // namespace herring::bindings
