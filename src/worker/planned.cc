#include "worker/planned.h"

#include <algorithm>
#include <future>

#include "base/hash.h"

namespace herring::worker {

// Where no node stage is needed, a buffer goes straight from the arena to the servers and back.
class Planned::Direct : public TransferOwner {
 public:
  explicit Direct(Planned& planned) : planned_(planned) {}
  Transfer transfer;
  std::shared_ptr<Round> round;

  void on_transfer_done(Transfer& done) override {
    planned_.buffer_done(std::exchange(round, nullptr), done.workers);
  }

 private:
  Planned& planned_;
};

Planned::Planned(Engine& engine, PlannedOptions options)
    : engine_(engine), options_(std::move(options)) {}

DType Planned::wire_of(uint32_t arena) const {
  const DType dtype = plan_.arenas[arena].dtype;
  return options_.narrow && dtype == DType::kFloat32 ? options_.wire : dtype;
}

Result<std::unique_ptr<Planned>> Planned::create(Engine& engine,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options) {
  for (const plan::Gradient& gradient : gradients) {
    HERRING_RETURN_IF_ERROR(check_reducible(gradient.dtype, options.op, 1.0, 1.0));
  }
  if (options.narrow && size_of(options.wire) != 2) {
    return Status(Code::kInvalidArgument, concat("wire_dtype is ", name_of(options.wire),
                                                 "; use float16 or bfloat16"));
  }
  const control::Cluster& cluster = engine.cluster();
  plan::Cluster shape{cluster.nodes, engine.weights()};
  plan::Options plan_options;
  plan_options.buffer_bytes =
      options.buffer_bytes != 0 ? options.buffer_bytes : engine.options().buffer_bytes;
  plan_options.segment_bytes = engine.options().links.segment_bytes;
  auto plan = plan::make_plan(gradients, shape, plan_options);
  if (!plan.ok()) return plan.status();

  std::unique_ptr<Planned> planned(new Planned(engine, std::move(options)));
  planned->plan_ = std::move(*plan);
  planned->stream_ = engine.next_stream();
  for (uint32_t a = 0; a < planned->plan_.arenas.size(); ++a) {
    const plan::Arena& arena = planned->plan_.arenas[a];
    for (const bool staging : {false, true}) {
      auto& list = staging ? planned->staging_ : planned->arenas_;
      if (staging && planned->wire_of(a) == arena.dtype) {
        list.push_back(nullptr);
        continue;
      }
      auto memory = engine.heap().allocate(staging ? arena.bytes / 2 : arena.bytes);
      if (!memory.ok()) return memory.status();
      list.push_back(static_cast<char*>(*memory));
    }
  }
  planned->staged_ = engine.uses_node_stage() ||
                     std::any_of(planned->staging_.begin(), planned->staging_.end(),
                                 [](const char* memory) { return memory != nullptr; });
  for (const plan::Buffer& buffer : planned->plan_.buffers) {
    const bool narrow = planned->staging_[buffer.arena] != nullptr;
    const size_t bytes = narrow ? buffer.range.bytes / 2 : buffer.range.bytes;
    planned->wire_shards_.push_back(cluster.nodes == 1
                                        ? std::vector<plan::Shard>{{0, 0, bytes}}
                                        : plan::shard_layout(bytes, engine.weights()));
    planned->direct_.push_back(std::make_unique<Direct>(*planned));
  }
  return planned;
}

Planned::~Planned() {
  // Nothing of a round may be left in the engine when the memory goes.
  std::shared_ptr<Round> round;
  {
    std::lock_guard lock(mutex_);
    round = round_;
  }
  if (round != nullptr && !round->completion->done()) {
    engine_.fail({Code::kShutdown,
                  concat("planned operation '", options_.name, "' was closed inside a round")});
    round->completion->wait_for(5 * kSecond);
  }
  for (auto* list : {&arenas_, &staging_}) {
    for (char* memory : *list) {
      if (memory != nullptr) engine_.heap().free(memory);
    }
  }
}

uint64_t Planned::signature() const {
  Fnv1a hash;
  for (uint64_t value : {plan_.hash, uint64_t{stream_}, static_cast<uint64_t>(options_.op),
                         static_cast<uint64_t>(options_.narrow),
                         static_cast<uint64_t>(options_.wire)}) {
    hash.add(value);
  }
  return hash.value();
}

Status Planned::begin(bool active) {
  HERRING_RETURN_IF_ERROR(engine_.incomplete());
  std::unique_lock lock(mutex_);
  if (round_ != nullptr && !round_->completion->done()) {
    return {Code::kInvalidArgument,
            concat("'", options_.name, "': begin() inside a round; wait() for it first")};
  }
  round_ = std::make_shared<Round>();
  round_->completion = std::make_shared<Completion>(engine_.loop());
  round_->number = next_round_++;
  round_->active = active;
  round_->buffers_left = static_cast<uint32_t>(plan_.buffers.size());
  ready_.assign(plan_.gradients.size(), !active);
  missing_.assign(plan_.buffers.size(), 0);
  if (active) {
    for (const auto& buffers : plan_.buffers_of) {
      for (uint32_t b : buffers) ++missing_[b];
    }
  }
  next_buffer_ = 0;
  if (plan_.buffers.empty()) {
    round_->completion->set({});
    return {};
  }
  const auto round = round_;
  run(round, [this, round] {
    if (Status status = engine_.failure(); !status.ok()) {
      round->completion->set(status);
    } else {
      engine_.track(round->completion);
    }
  });
  uint32_t to = 0;
  while (to < missing_.size() && missing_[to] == 0) ++to;
  if (to > 0) {
    next_buffer_ = to;
    launch(0, to, round);
  }
  return {};
}

Status Planned::ready(size_t index) {
  std::lock_guard lock(mutex_);
  if (round_ == nullptr || index >= ready_.size() || ready_[index]) {
    return {Code::kInvalidArgument,
            concat("'", options_.name, "': gradient ", index,
                   round_ == nullptr         ? " is ready before begin()"
                   : index >= ready_.size() ? " does not exist"
                                             : " is ready twice in one round")};
  }
  ready_[index] = true;
  for (uint32_t b : plan_.buffers_of[index]) --missing_[b];
  const uint32_t from = next_buffer_;
  while (next_buffer_ < missing_.size() && missing_[next_buffer_] == 0) ++next_buffer_;
  if (next_buffer_ > from) launch(from, next_buffer_, round_);
  return {};
}

Result<std::shared_ptr<Completion>> Planned::waiting() {
  std::lock_guard lock(mutex_);
  if (round_ == nullptr) {
    return Status(Code::kInvalidArgument, concat("'", options_.name, "': wait() before begin()"));
  }
  if (!round_->completion->done() && next_buffer_ < plan_.buffers.size()) {
    std::string missing;
    for (size_t i = 0, named = 0; i < ready_.size() && named < 10; ++i) {
      if (!ready_[i] && !plan_.buffers_of[i].empty()) {
        missing += (named++ == 0 ? "" : ", ") + std::to_string(i);
      }
    }
    return Status(Code::kInvalidArgument, concat("'", options_.name, "': wait() before gradients ",
                                                 missing, " were ready; call ready() for each"));
  }
  return round_->completion;
}

void Planned::run(const std::shared_ptr<Round>& round, std::function<void()> task) {
  if (Status status = engine_.run(std::move(task)); !status.ok()) round->completion->set(status);
}

void Planned::launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round) {
  run(round, [this, from, to, round] {
    for (uint32_t b = from; b < to && !round->completion->done(); ++b) launch_one(b, round);
  });
}

void Planned::launch_one(uint32_t index, const std::shared_ptr<Round>& round) {
  const plan::Buffer& buffer = plan_.buffers[index];
  const DType dtype = plan_.arenas[buffer.arena].dtype;
  char* data = arenas_[buffer.arena] + buffer.range.offset;
  char* staging = staging_[buffer.arena];
  if (staged_) {
    NodeTask task;
    task.key = {stream_, round->number, index};
    task.name = options_.name;
    task.data = data;
    task.bytes = buffer.range.bytes;
    task.dtype = dtype;
    task.wire = wire_of(buffer.arena);
    task.staging = staging == nullptr ? nullptr : staging + buffer.range.offset / 2;
    task.op = options_.op;
    task.active = round->active;
    task.timeout_ms = engine_.timeout_ms(0);
    task.warn_ms = engine_.warn_ms();
    task.shards = wire_shards_[index];
    task.on_done = [this, round](uint32_t workers) { buffer_done(round, workers); };
    engine_.node_stage().post(std::move(task));
    return;
  }
  Direct& direct = *direct_[index];
  direct.round = round;
  Transfer& transfer = direct.transfer;
  transfer.key = {stream_, round->number, index};
  transfer.open.dtype = dtype;
  transfer.open.op = options_.op;
  transfer.open.workers = round->active ? 1 : 0;
  transfer.open.timeout_ms = engine_.timeout_ms(0);
  transfer.open.warn_ms = engine_.warn_ms();
  transfer.open.name = options_.name;
  transfer.send = round->active ? data : nullptr;
  transfer.receive = data;
  transfer.shards = wire_shards_[index];
  transfer.runs =
      plan::local_slice(transfer.shards, engine_.options().links.segment_bytes, 0, 1);
  transfer.owner = &direct;
  engine_.links().push(transfer);
}

void Planned::buffer_done(const std::shared_ptr<Round>& round, uint32_t workers) {
  contributors_.store(workers);
  if (--round->buffers_left > 0) return;
  engine_.untrack(round->completion);
  round->completion->set({});
}

}  // namespace herring::worker
