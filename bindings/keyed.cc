#include "keyed.h"

#include <cstring>
#include <numeric>

namespace herring::bindings {
namespace {

constexpr size_t kDigestBytes = 8;               // before what is broadcast: all else is compared

// Rows of a reduce-scatter for one of `size` ranks: the first, and how many.
std::pair<uint64_t, uint64_t> rows_for(uint64_t rows, uint32_t size, uint32_t rank) {
  const uint64_t even = rows / size, more = rows % size;
  return {rank * even + std::min<uint64_t>(rank, more), even + (rank < more ? 1 : 0)};
}

size_t total_bytes(const std::vector<Buffer>& buffers) {
  size_t bytes = 0;
  for (const Buffer& one : buffers) bytes += one.bytes();
  return bytes;
}

void append(char*& at, const char* from, size_t bytes) {
  if (bytes > 0) std::memcpy(at, from, bytes);
  at += bytes;
}

// What ranks agree on travels in a field that these operations do not use.
std::string in_terms_of_the_list(std::string text, const KeyedCall& call) {
  const std::string field = ", root ";
  size_t at = 0;
  while ((at = text.find(field, at)) != std::string::npos) {
    const size_t first = at + field.size(), end = text.find_first_not_of("0123456789", first);
    const std::string number = text.substr(first, end - first);
    char hex[16];
    std::snprintf(hex, sizeof hex, "%llx", std::strtoull(number.c_str(), nullptr, 10));
    text.replace(at, field.size() + number.size(), concat(", leaves #", hex));
    ++at;
  }
  std::string leaves;
  for (const Buffer& one : call.inputs) {
    if (leaves.size() > 200) {
      leaves += ", ...";
      break;
    }
    leaves += leaves.empty() ? "(" : ", (";
    for (size_t i = 0; i < one.shape.size(); ++i) leaves += concat(i > 0 ? ", " : "", one.shape[i]);
    leaves += ")";
  }
  char hex[16];
  std::snprintf(hex, sizeof hex, "%x", call.digest);
  return concat(text, "; this rank has leaves #", hex, " of shapes ", leaves);
}

}  // namespace

size_t Buffer::row_bytes() const {
  if (shape.empty()) return item;
  return std::accumulate(shape.begin() + 1, shape.end(), item, std::multiplies<>());
}

size_t Buffer::bytes() const { return rows() * row_bytes(); }

// A call from its start until its results are taken. One whose program fails between the two is
// left behind, and is dropped by the next execution or the end of the job.
struct KeyedCalls::Running {
  Key key;
  KeyedCall call;
  std::shared_ptr<worker::Operation> operation;
  SharedHeap* heap = nullptr;
  char* staging = nullptr;
  size_t bytes = 0;  // of the staging
  uint32_t rank = 0, size = 1;

  // Who sets the second of the two delivers.
  bool complete = false, claimed = false;
  std::vector<Buffer> outputs;
  Done done;

  ~Running() { free(); }

  void free() {
    if (staging != nullptr) heap->free(std::exchange(staging, nullptr));
  }
  Status pack();
  Status unpack() const;
  Status unpack_gathered() const;
};

Status KeyedCalls::Running::pack() {
  const bool broadcast = call.kind == wire::Collective::kBroadcast;
  bytes = total_bytes(call.inputs) + (broadcast ? kDigestBytes : 0);
  auto allocated = heap->allocate(bytes);
  if (!allocated.ok()) return allocated.status();
  staging = static_cast<char*>(*allocated);
  char* at = staging;
  if (call.kind == wire::Collective::kReduceScatter) {
    for (uint32_t to = 0; to < size; ++to) {  // the parts of one rank lie together
      for (const Buffer& one : call.inputs) {
        const auto [first, count] = rows_for(one.rows(), size, to);
        append(at, one.data + first * one.row_bytes(), count * one.row_bytes());
      }
    }
    return {};
  }
  if (broadcast) {
    const uint64_t digest = call.digest;
    append(at, reinterpret_cast<const char*>(&digest), kDigestBytes);
    if (rank != call.root) return {};
  }
  for (const Buffer& one : call.inputs) append(at, one.data, one.bytes());
  return {};
}

// By rank, each with its part of every buffer.
Status KeyedCalls::Running::unpack_gathered() const {
  for (uint32_t from = 0; from < size; ++from) {
    if (operation->counts.size() == size && operation->counts[from] == bytes) continue;
    const uint64_t theirs = from < operation->counts.size() ? operation->counts[from] : 0;
    return {Code::kMismatch,
            concat("'", call.key, "': rank ", from, " gives ", theirs, " bytes and this one ",
                   bytes, "; in a compiled program all ranks give arrays of equal shapes")};
  }
  const char* from = operation->result.get();
  for (uint32_t r = 0; r < size; ++r) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const size_t part = call.inputs[i].bytes();
      if (part > 0) std::memcpy(outputs[i].data + r * part, from, part);
      from += part;
    }
  }
  return {};
}

Status KeyedCalls::Running::unpack() const {
  const char* from = staging;
  switch (call.kind) {
    case wire::Collective::kAllgather: return unpack_gathered();
    case wire::Collective::kReduceScatter: from = operation->result.get(); break;
    case wire::Collective::kBroadcast: {
      uint64_t digest = 0;
      std::memcpy(&digest, from, kDigestBytes);
      from += kDigestBytes;
      if (digest == call.digest) break;
      return {Code::kMismatch,
              in_terms_of_the_list(concat("ranks disagree about '", call.key, "': root ", call.root,
                                          " has other leaves, of as many bytes"),
                                   call)};
    }
    default: break;
  }
  for (const Buffer& one : outputs) {
    if (one.bytes() > 0) std::memcpy(one.data, from, one.bytes());
    from += one.bytes();
  }
  return {};
}

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
  std::erase_if(running_, [](const auto& one) {
    return one.second->complete && !one.second->claimed;
  });
}

void KeyedCalls::forget() {
  job_ = nullptr;  // whoever held a lock did not come along
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

Status KeyedCalls::enter(const std::shared_ptr<Running>& running) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Running>& last = running_[running->key];
  if (last == nullptr || (last->complete && !last->claimed)) {
    last = running;
    return {};
  }
  // Which of the two comes first may differ between ranks.
  return {Code::kInvalidArgument,
          concat("'", running->key.second, "' is executed again while it is in flight: one place "
                 "of the program, called twice where neither call needs the other's result, is in "
                 "no order that all ranks share; give each call a name of its own (name=), or make "
                 "one depend on the other")};
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
                                      "ended; compile it anew (jax.clear_caches())")};
    }
    group = found->second;
  }
  auto running = std::make_shared<Running>();
  running->key = {call.group, call.key};
  running->heap = &job_->engine().heap();
  running->size = group->size();
  running->rank = group->index();
  running->call = std::move(call);
  const std::string name = next_name(running->key, *group);
  const std::string& refusal = running->call.refusal;
  Status status = refusal.empty() ? enter(running) : Status(Code::kInvalidArgument, refusal);
  if (status.ok()) {
    status = submit(running, name, group);
    if (status.ok()) return status;
    std::lock_guard calls(mutex_);
    running_.erase(running->key);
  }
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kInternal) {
    job_->engine().refuse(group, running->call.kind, name, status.message());
  }
  return status;
}

Status KeyedCalls::submit(const std::shared_ptr<Running>& running, const std::string& name,
                          const std::shared_ptr<worker::Group>& group) {
  const KeyedCall& call = running->call;
  const bool reduces = call.kind == wire::Collective::kAllreduce ||
                       call.kind == wire::Collective::kReduceScatter;
  size_t expected = total_bytes(call.inputs);
  if (call.kind == wire::Collective::kAllgather) expected *= running->size;
  if (call.kind == wire::Collective::kReduceScatter) {
    expected = 0;
    for (const Buffer& one : call.inputs) {
      expected += rows_for(one.rows(), running->size, running->rank).second * one.row_bytes();
    }
  }
  if (call.result_bytes != expected) {
    return {Code::kInvalidArgument,
            concat("'", call.key, "' was compiled for another number of ranks, or another rank; "
                   "compile it anew (jax.clear_caches())")};
  }
  HERRING_RETURN_IF_ERROR(running->pack());
  worker::Request request;
  request.group = group;
  request.kind = call.kind;
  request.name = name;
  request.timeout = call.timeout;
  request.root = call.kind == wire::Collective::kBroadcast ? call.root : call.digest;
  request.shape = {running->bytes};
  if (reduces) {
    const size_t item = size_of(call.dtype);
    request.dtype = call.dtype;
    request.op = call.op;
    request.prescale = call.prescale;
    request.postscale = call.postscale;
    request.shape = {running->bytes / item};
    if (call.kind == wire::Collective::kReduceScatter) {
      for (uint32_t to = 0; to < running->size; ++to) {
        uint64_t elements = 0;
        for (const Buffer& one : call.inputs) {
          elements += rows_for(one.rows(), running->size, to).second * one.row_bytes() / item;
        }
        request.splits.push_back(elements);
      }
    }
  }
  request.send = request.receive = running->staging;
  auto submitted = job_->engine().submit(std::move(request));
  if (!submitted.ok()) return submitted.status();
  running->operation = std::move(*submitted);
  running->operation->completion.then([this, running] { completed(running); });
  return {};
}

// On the engine's thread: the job, and with it the staging, ends only after that.
void KeyedCalls::completed(const std::shared_ptr<Running>& running) {
  if (!running->operation->completion.status().ok()) running->free();
  {
    std::lock_guard lock(mutex_);
    running->complete = true;
    if (!running->claimed) return;
  }
  deliver(*running);
}

void KeyedCalls::finish(const Key& key, std::vector<Buffer> outputs, Done done) {
  std::shared_lock lock(attached_);  // the staging stays meanwhile
  std::shared_ptr<Running> running;
  {
    std::lock_guard calls(mutex_);
    const auto found = running_.find(key);
    if (found != running_.end() && !found->second->claimed) {
      running = found->second;
      running->claimed = true;
      running->outputs = std::move(outputs);
      running->done = std::move(done);
      if (!running->complete) return;
    }
  }
  if (running != nullptr) return deliver(*running);
  continuations_.put([key = key.second, done = std::move(done)] {
    done({Code::kShutdown, concat("the job in which '", key, "' was started has ended")});
  });
}

void KeyedCalls::deliver(Running& running) {
  Status status = running.operation->completion.status();
  if (status.ok()) {
    status = running.unpack();
  } else if (status.code() == Code::kMismatch) {
    status = Status(status.code(), in_terms_of_the_list(status.message(), running.call));
  }
  running.free();
  Done done = std::move(running.done);
  {
    std::lock_guard lock(mutex_);
    running_.erase(running.key);
  }
  continuations_.put([done = std::move(done), status] { done(status); });
}

}  // namespace herring::bindings
