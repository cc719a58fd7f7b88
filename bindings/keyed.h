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
#include "worker/job.h"

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
  std::vector<Buffer> inputs, outputs;
};

class KeyedCalls {
 public:
  // The process's; never destroyed.
  static KeyedCalls& instance();

  // Calls go to this job from now on, numbered from 0. It outlives detach().
  void attach(worker::Job& job);
  // To none. Waits for those that are being started.
  void detach();
  // In a forked child, which has no job.
  void forget();
  // Numbers a group of the job, from 1 on; the same one again for the same group.
  int64_t add_group(std::shared_ptr<worker::Group> group);
  // All ranks of the group (null: of the job) have joined it, after different numbers of calls:
  // those that follow are numbered from 0 again, under other names.
  void number_anew(const std::shared_ptr<worker::Group>& group);

  // Any thread, without the GIL. Unless it returns an error, `done` is called once, on a thread
  // that may be blocked; the buffers stay until then.
  Status start(KeyedCall call, std::function<void(const Status&)> done);

 private:
  using Key = std::pair<int64_t, std::string>;  // with the number of its group
  struct Running;

  // Of this execution: how many came before it is counted.
  std::string next_name(const Key& key, const worker::Group* group);
  // An error: the last execution is still in flight.
  Status enter(const Key& key);
  void leave(const Key& key);
  Status submit(const std::shared_ptr<Running>& running, const std::string& name,
                const std::shared_ptr<worker::Group>& group);
  void complete(Running& running);

  std::shared_mutex attached_;      // held shared while a call is started
  worker::Job* job_ = nullptr;      // guarded by attached_
  std::map<int64_t, std::shared_ptr<worker::Group>> groups_;  // guarded by attached_
  int64_t next_group_ = 1;          // never used twice; guarded by attached_

  std::mutex mutex_;
  std::map<Key, uint64_t> rounds_;  // executions since the last join; guarded by mutex_
  std::map<uint32_t, uint64_t> joins_;  // of groups, by their numbers in the job; guarded by mutex_
  std::set<Key> running_;           // guarded by mutex_
  Continuations continuations_;
};

}  // namespace herring::bindings
