// Collectives on lists of buffers, called from a compiled program: a key names the place of the
// call there, and the n-th execution of a key on one rank meets the n-th on every other, whatever
// order the program's runtime executes its keys in. Buffers of a call go through one staging area.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "continuations.h"
#include "job/job.h"

namespace herring::bindings {

struct Buffer {
  char* data = nullptr;
  size_t item = 1;              // bytes of an element
  std::vector<uint64_t> shape;

  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  size_t bytes() const;
  size_t row_bytes() const;
};

struct KeyedCall {
  wire::Collective kind = wire::Collective::kAllreduce;
  std::string key;
  int64_t group = 0;            // as KeyedCalls::add_group has numbered it; 0: all ranks
  uint32_t digest = 0;          // of what ranks must agree on: shapes and dtypes of the list
  DType dtype = DType::kUInt8;  // of what is reduced
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0, postscale = 1.0, timeout = 0;
  uint32_t root = 0;            // of a broadcast
  std::string refusal;          // not "": this rank does not make the call, and tells all why
  std::vector<Buffer> inputs;
  uint64_t result_bytes = 0;
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
  // What was started last with this key. Any thread, without the GIL; the buffers stay until `done`
  // is called.
  void finish(const Key& key, std::vector<Buffer> outputs, Done done);

 private:
  struct Running;
  struct Executions {
    uint32_t joins = 0;  // of the group, when they were counted
    uint64_t count = 0;
  };

  // Of this execution: how many came before it is counted.
  std::string next_name(const Key& key, const worker::Group& group);
  // An error: the last execution is still in flight.
  Status enter(const std::shared_ptr<Running>& running);
  Status submit(const std::shared_ptr<Running>& running, const std::string& name,
                const std::shared_ptr<worker::Group>& group);
  void completed(const std::shared_ptr<Running>& running);
  void deliver(Running& running);

  std::shared_mutex attached_;      // held shared while a call is started or finished
  job::Job* job_ = nullptr;         // guarded by attached_
  std::map<int64_t, std::shared_ptr<worker::Group>> groups_;  // guarded by attached_
  int64_t next_group_ = 1;          // never used twice; guarded by attached_

  std::mutex mutex_;  // guards what follows, and whether each call is complete
  std::map<Key, Executions> executions_;
  std::map<Key, std::shared_ptr<Running>> running_;
  Continuations continuations_;
};

}  // namespace herring::bindings
