// Collectives on lists of buffers, called from a compiled program. A key names the place of the
// call in the program. The n-th execution of a key on one rank meets the n-th on every other rank,
// in whatever order the program's runtime executes its keys.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "job/job.h"

namespace herring::bindings {

struct KeyedCall {
  std::string key;
  int64_t group = 0;            // number from KeyedCalls::add_group; 0: all ranks
  worker::Call call;            // of a list, without its name and group
  std::string refusal;          // not empty: this rank refuses the call and tells all ranks why
  std::vector<wire::Array> results;
};

// A call has two parts. start() takes the inputs and returns; finish() takes the results. So if a
// program starts its calls in the same order on all ranks, no call waits for another. This holds
// even if the runtime does one thing after the other.
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
  int64_t add_group(std::shared_ptr<worker::Group> group);

  using Key = std::pair<int64_t, std::string>;  // number of the group, and key

  // Starts a call. Its buffers' memory is not needed after that. Any thread, without the GIL.
  Status start(KeyedCall call);
  // Takes the results of the latest call with this key. The memory at `places` must stay valid
  // until `done` is called. Any thread, without the GIL.
  void finish(const Key& key, std::vector<char*> places, Done done);

 private:
  struct Executions {
    uint32_t joins = 0;  // of the group, at the time of counting
    uint64_t count = 0;
  };
  // A call from its start until its results are taken. If a program fails in between, the call is
  // left behind. It is dropped by the next execution or by the end of the job.
  struct Running {
    std::shared_ptr<worker::Operation> operation;  // null while being started
    bool claimed = false;
    bool is_left_behind() const { return operation && operation->done() && !claimed; }
  };

  // Returns the name of this execution, which contains the number of executions before it.
  std::string next_name(const Key& key, const worker::Group& group);
  // Returns an error if the last execution is still in flight.
  Status enter(const Key& key);
  Status submit(const Key& key, KeyedCall& call);

  std::shared_mutex attached_;      // held shared while a call is started
  job::Job* job_ = nullptr;         // guarded by attached_
  std::map<int64_t, std::shared_ptr<worker::Group>> groups_;  // guarded by attached_
  int64_t next_group_ = 1;          // never used twice; guarded by attached_

  std::mutex mutex_;  // guards what follows
  std::map<Key, Executions> executions_;
  std::map<Key, Running> running_;
};

}  // namespace herring::bindings
