#include "keyed.h"

#include "plan/split.h"

namespace herring::bindings {
namespace {

// Returns the size of the results in bytes, as a program compiled for `rank` of `size` ranks
// expects it.
uint64_t result_bytes(const worker::Call& call, uint32_t rank, uint32_t size) {
  uint64_t bytes = 0;
  for (const worker::Buffer& one : call.buffers) {
    bytes += wire::is<wire::ReduceScatter>(call.what)
                 ? plan::even_split(one.array.rows(), size, rank).count * one.array.row_bytes()
                 : one.array.bytes();
  }
  return wire::is<wire::AllGather>(call.what) ? bytes * size : bytes;
}

uint64_t bytes_of(const std::vector<wire::Array>& arrays) {
  uint64_t bytes = 0;
  for (const wire::Array& array : arrays) bytes += array.bytes();
  return bytes;
}

}  // namespace

KeyedCalls& KeyedCalls::instance() {
  static auto* const calls = new KeyedCalls;
  return *calls;
}

void KeyedCalls::attach(job::Job& job) {
  std::unique_lock lock(attached_);
  job_ = &job;
  groups_.clear();
  std::lock_guard calls(mutex_);
  executions_.clear();
}

void KeyedCalls::detach() {
  std::unique_lock lock(attached_);
  job_ = nullptr;
  groups_.clear();
  std::lock_guard calls(mutex_);
  std::erase_if(running_, [](const auto& one) { return one.second.is_left_behind(); });
}

void KeyedCalls::forget() {
  job_ = nullptr;  // locks may be held by threads that do not exist here
}

int64_t KeyedCalls::add_group(std::shared_ptr<worker::Group> group) {
  std::unique_lock lock(attached_);
  for (const auto& [number, known] : groups_) {
    if (known == group) return number;
  }
  groups_.emplace(next_group_, std::move(group));
  return next_group_++;
}

std::string KeyedCalls::next_name(const Key& key, const worker::Group& group) {
  const uint32_t joins = group.joins();
  std::lock_guard lock(mutex_);
  Executions& executions = executions_[key];
  if (executions.joins != joins) executions = {joins, 0};
  return concat(key.second, joins == 0 ? "" : concat("#", joins), ".", executions.count++);
}

Status KeyedCalls::enter(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto [last, first] = running_.try_emplace(key);
  if (first || last->second.is_left_behind()) {
    last->second = {};
    return {};
  }
  // The order of the two executions may differ between ranks.
  return {Code::kInvalidArgument,
          concat("'", key.second, "' is executed again while it is in flight: the program calls "
                 "one place twice, and neither call needs the other's result, so ranks may differ "
                 "in their order; give each call a name of its own (name=), or make one depend on "
                 "the other")};
}

Status KeyedCalls::start(KeyedCall call) {
  std::shared_lock lock(attached_);
  if (job_ == nullptr) {
    return {Code::kShutdown, concat("'", call.key, "': herring is not initialized in this process "
                                    "(call herring.init())")};
  }
  std::shared_ptr<worker::Group> group = job_->engine().world();
  if (call.group != 0) {
    const auto found = groups_.find(call.group);
    if (found == groups_.end()) {
      return {Code::kShutdown, concat("'", call.key, "' was compiled for a group of a job that has "
                                      "ended; compile it again (jax.clear_caches())")};
    }
    group = found->second;
  }
  const Key key(call.group, call.key);
  const std::string name = call.call.name = next_name(key, *group);
  const wire::Collective what = call.call.what;
  call.call.group = group;
  call.call.list = true;
  Status status = call.refusal.empty() ? enter(key) : Status(Code::kInvalidArgument, call.refusal);
  if (status.ok()) {
    status = submit(key, call);
    if (status.ok()) return status;
    std::lock_guard calls(mutex_);
    running_.erase(key);
  }
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kInternal) {
    job_->engine().refuse(group, what, name, status.message());
  }
  return status;
}

Status KeyedCalls::submit(const Key& key, KeyedCall& call) {
  const worker::Group& group = *call.call.group;
  if (bytes_of(call.results) != result_bytes(call.call, group.index(), group.size())) {
    return {Code::kInvalidArgument,
            concat("'", call.key, "' was compiled for another number of ranks, or another rank; "
                   "compile it again (jax.clear_caches())")};
  }
  auto submitted = job_->engine().submit(std::move(call.call));
  if (!submitted.ok()) return submitted.status();
  std::lock_guard calls(mutex_);
  running_[key].operation = std::move(*submitted);
  return {};
}

void KeyedCalls::finish(const Key& key, std::vector<char*> places, Done done) {
  std::shared_ptr<worker::Operation> operation;
  {
    std::lock_guard calls(mutex_);
    const auto found = running_.find(key);
    if (found != running_.end() && !std::exchange(found->second.claimed, true)) {
      operation = found->second.operation;
    }
  }
  if (operation == nullptr) {
    return Continuations::shared().put([key = key.second, done = std::move(done)] {
      done({Code::kShutdown, concat("the job in which '", key, "' was started has ended")});
    });
  }
  worker::Future& future = *operation;
  future.then(worker::Where::kThread, [this, key, operation = std::move(operation),
                                       places = std::move(places), done = std::move(done)] {
    const Status status = operation->status();
    status.ok() ? operation->take(places) : operation->drop_staging();
    {
      std::lock_guard lock(mutex_);
      running_.erase(key);
    }
    done(status);
  });
}

}  // namespace herring::bindings
