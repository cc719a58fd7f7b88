// Collectives on lists of buffers, called from a compiled program: a key names the place of the
// call there, and the n-th execution of a key on one rank meets the n-th on every other, whatever
// order the program's runtime executes its keys in.
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
  int64_t group = 0;            // as KeyedCalls::add_group has numbered it; 0: all ranks
  worker::Call call;            // of a list, but for its name and group
  std::string refusal;          // not "": this rank does not make the call, and tells all why
  std::vector<wire::Array> results;
};

// A call has two parts. start() takes what it is made of and returns; so a program that starts its
// calls in the same order on all ranks never has one wait for another, even where a runtime does
// one thing after the other. finish() takes the results.
class KeyedCalls {
 public:
  // Called once, on a thread that may be blocked.
  using Done = std::function<void(const Status&)>;

  // The process's; never destroyed.
  static KeyedCalls& instance();

  // Calls go to this job from now on, numbered from 0. It outlives detach().
  void attach(job::Job& job);
  // To none. Waits for those that are being started.
  void detach();
  // In a forked child, which has no job.
  void forget();
  // Numbers a group of the job, from 1 on; the same one again for the same group.
  int64_t add_group(std::shared_ptr<worker::Group> group);

  using Key = std::pair<int64_t, std::string>;  // with the number of its group

  // Any thread, without the GIL. The memory of its buffers is not needed any more.
  Status start(KeyedCall call);
  // What was started last with this key. Any thread, without the GIL; the places of the results
  // stay until `done` is called.
  void finish(const Key& key, std::vector<char*> places, Done done);

 private:
  struct Executions {
    uint32_t joins = 0;  // of the group, when they were counted
    uint64_t count = 0;
  };
  // From its start until its results are taken. One whose program fails between the two is left
  // behind, and is dropped by the next execution or the end of the job.
  struct Running {
    std::shared_ptr<worker::Operation> operation;  // null: is being started
    bool claimed = false;
    bool is_left_behind() const { return operation && operation->done() && !claimed; }
  };

  // Of this execution: how many came before it is counted.
  std::string next_name(const Key& key, const worker::Group& group);
  // An error: the last execution is still in flight.
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
