#include "keyed.h"

#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "bindings.h"
#include "device/copiers.h"
#include "plan/split.h"

namespace herring::bindings {
namespace {

// The most executions of one place of a program whose results a device may not have yet.
constexpr size_t kMostAhead = 2;

// Returns the size of the results in bytes, as a program compiled for `rank` of `size` ranks
// expects it.
uint64_t result_bytes(const calls::Call& call, uint32_t rank, uint32_t size) {
  uint64_t bytes = 0;
  for (const calls::Buffer& one : call.buffers) {
    bytes += wire::is<wire::ReduceScatter>(call.what)
                 ? plan::even_split(one.array.rows(), size, rank).count * one.array.row_bytes()
                 : one.array.bytes();
  }
  return wire::is<wire::AllGather>(call.what) ? bytes * size : bytes;
}

Status has_ended(const KeyedCalls::Key& key) {
  return {Code::kShutdown, concat("the job in which '", key.second, "' was started has ended")};
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
  failure_ = {};
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

int64_t KeyedCalls::add_group(std::shared_ptr<engine::Group> group) {
  std::unique_lock lock(attached_);
  for (const auto& [number, known] : groups_) {
    if (known == group) return number;
  }
  groups_.emplace(next_group_, std::move(group));
  return next_group_++;
}

std::string KeyedCalls::next_name(const Key& key, const engine::Group& group) {
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
                                    "(call init())")};
  }
  std::shared_ptr<engine::Group> group = job_->engine().world();
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
  const Status failure = call.failure;
  Status status = !failure.ok()          ? failure
                  : call.refusal.empty() ? enter(key)
                                         : Status(Code::kInvalidArgument, call.refusal);
  if (status.ok()) {
    status = submit(key, call);
    if (status.ok()) return status;
    std::lock_guard calls(mutex_);
    running_.erase(key);
  }
  if (!failure.ok() || status.code() == Code::kInvalidArgument ||
      status.code() == Code::kInternal) {
    job_->engine().refuse(group, what, name, status.message());
  }
  return status;
}

Status KeyedCalls::submit(const Key& key, KeyedCall& call) {
  const engine::Group& group = *call.call.group;
  if (bytes_of(call.results) != result_bytes(call.call, group.index(), group.size())) {
    return {Code::kInvalidArgument,
            concat("'", call.key, "' was compiled for another number of ranks, or another rank; "
                   "compile it again (jax.clear_caches())")};
  }
  HERRING_ASSIGN_OR_RETURN(auto& submitted, job_->engine().submit(std::move(call.call)));
  std::lock_guard calls(mutex_);
  running_[key].operation = std::move(submitted);
  return {};
}

std::shared_ptr<calls::Operation> KeyedCalls::claim(const Key& key) {
  std::lock_guard calls(mutex_);
  const auto found = running_.find(key);
  if (found == running_.end() || std::exchange(found->second.claimed, true)) return nullptr;
  return found->second.operation;
}

void KeyedCalls::finish(const Key& key, std::vector<char*> places, Done done) {
  const std::shared_ptr<calls::Operation> operation = claim(key);
  if (operation == nullptr) {
    return Continuations::shared().put([key, done = std::move(done)] { done(has_ended(key)); });
  }
  engine::Future& future = *operation;
  future.note_program_waits();  // so that messages of other ranks say where this rank is
  future.then(engine::Where::kThread, [this, key, operation = std::move(operation),
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

Result<std::shared_ptr<device::Copier>> KeyedCalls::copier_of(int device) {
  std::lock_guard lock(copiers_mutex_);
  std::shared_ptr<device::Copier>& copier = copiers_[device];
  if (copier == nullptr) {
    HERRING_RETURN_IF_ERROR(device::own_copier(device).move_to(copier));
  }
  return copier;
}

Status KeyedCalls::start(KeyedCall call, int device, device::Stream stream, bool overwrites) {
  const Key key(call.group, call.key);
  auto copier = copier_of(device);
  call.failure = await_returns(key, kMostAhead - 1);
  if (call.failure.ok()) call.failure = take_failure();
  if (call.failure.ok()) call.failure = copier.status();
  if (call.failure.ok()) {
    call.call.copier = *copier;
    call.call.streams = {stream};
  }
  HERRING_RETURN_IF_ERROR(start(std::move(call)));
  return overwrites ? (*copier)->join_out(stream) : Status();
}

Status KeyedCalls::await_returns(const Key& key, size_t most) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = returning_.find(key);
    if (found == returning_.end() || found->second.size() <= most) return {};
    const std::shared_ptr<calls::Operation> first = found->second.front();
    // The device may never reach the results of a failed operation.
    if (first->done() && !first->status().ok()) return first->status();
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    lock.unlock();
    static_cast<void>(first->check_device());
    lock.lock();
  }
}

Status KeyedCalls::finish(const Key& key, std::vector<calls::Operation::Place> places,
                          device::Stream stream) {
  HERRING_RETURN_IF_ERROR(take_failure());
  const std::shared_ptr<calls::Operation> operation = claim(key);
  if (operation == nullptr) return has_ended(key);
  {
    // The host may come to the next execution before the device has come to this one.
    std::lock_guard lock(mutex_);
    running_.erase(key);
    returning_[key].push_back(operation);
  }
  Status queued = operation->return_to(
      std::move(places), {stream},
      [this, key, operation] { note_failure(key, *operation, operation->status()); },
      [this, key, operation](const Status& there) {
        note_failure(key, *operation, there);
        returned(key, operation);
      });
  if (!queued.ok()) {
    returned(key, operation);
    return queued;
  }
  return {};
}

void KeyedCalls::note_failure(const Key& key, const calls::Operation& operation,
                              const Status& why) {
  if (why.ok()) return;
  log(LogLevel::kError, "'", key.second, "': the results on GPU ",
      operation.copier()->device().index(), " are undefined (NaN in floats): ",
      class_of(why.code()), ": ", why.message());
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = why;
}

void KeyedCalls::returned(const Key& key, const std::shared_ptr<calls::Operation>& operation) {
  std::lock_guard lock(mutex_);
  const auto found = returning_.find(key);
  std::erase(found->second, operation);
  if (found->second.empty()) returning_.erase(found);
  changed_.notify_all();
}

Status KeyedCalls::take_failure() {
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void KeyedCalls::settle(Nanos patience) {
  const Nanos deadline = monotonic_now() + patience;
  std::unique_lock lock(mutex_);
  while (!returning_.empty() && monotonic_now() < deadline) {
    const std::shared_ptr<calls::Operation> first = returning_.begin()->second.front();
    changed_.wait_for(lock, std::chrono::milliseconds(100));
    lock.unlock();
    static_cast<void>(first->check_device());
    lock.lock();
  }
}

}  // namespace herring::bindings
