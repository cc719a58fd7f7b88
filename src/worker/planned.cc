#include "worker/planned.h"

#include <algorithm>
#include <future>

#include "base/fork_guard.h"
#include "base/hash.h"
#include "worker/engine_core.h"

namespace herring::worker {

class Planned::Work : public std::enable_shared_from_this<Work> {
 public:
  Work(EngineCore& engine, PlannedOptions options, plan::Plan plan)
      : engine(engine), options(std::move(options)), plan(std::move(plan)),
        stream(*this->options.stream) {}
  ~Work();
  Status allocate();
  DType wire_of(uint32_t arena) const;

  // Queues a task for the engine thread; a round whose engine has ended fails.
  void run(const std::shared_ptr<Round>& round, std::function<void()> task);
  void begin(const std::shared_ptr<Round>& round);
  void launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round);
  const control::Group& members() const { return options.group->members(); }

  EngineCore& engine;
  const PlannedOptions options;
  const plan::Plan plan;
  const uint32_t stream;
  const uint32_t generation = fork_generation();
  std::vector<char*> arenas;
  std::atomic<uint32_t> contributors{0};

 private:
  class Direct;  // pushes a buffer without a node stage

  void launch_one(uint32_t buffer, const std::shared_ptr<Round>& round);
  void buffer_done(const std::shared_ptr<Round>& round, uint32_t workers);

  std::vector<char*> staging_;  // by arena; null where nothing is converted
  // All buffers go through the node stage, or none: one that did not would overtake those that do,
  // and the order of a stream must be the same on every worker.
  bool staged_ = false;
  std::vector<std::vector<plan::Shard>> wire_shards_;  // by buffer
  std::vector<std::unique_ptr<Direct>> direct_;        // by buffer; engine thread
};

// Where no node stage is needed, a buffer goes straight from the arena to the servers and back.
class Planned::Work::Direct : public TransferOwner {
 public:
  explicit Direct(Work& work) : work_(work) {}
  Transfer transfer;
  std::shared_ptr<Round> round;

  void on_transfer_done(Transfer& done) override {
    const std::shared_ptr<Round> ended = std::exchange(round, nullptr);
    // The round fails, or has failed, with what moved in its group.
    if (!done.called_off) work_.buffer_done(ended, done.workers);
  }

 private:
  Work& work_;
};

Planned::Planned(std::shared_ptr<Work> work) : work_(std::move(work)) {}

const plan::Plan& Planned::plan() const { return work_->plan; }
std::shared_ptr<char> Planned::arena(size_t i) const { return {work_, work_->arenas[i]}; }
uint32_t Planned::contributors() const { return work_->contributors.load(); }

DType Planned::Work::wire_of(uint32_t arena) const {
  const DType dtype = plan.arenas[arena].dtype;
  return options.narrow && dtype == DType::kFloat32 ? options.wire : dtype;
}

Status Planned::Work::allocate() {
  for (uint32_t a = 0; a < plan.arenas.size(); ++a) {
    const plan::Arena& arena = plan.arenas[a];
    for (const bool staging : {false, true}) {
      auto& list = staging ? staging_ : arenas;
      if (staging && wire_of(a) == arena.dtype) {
        list.push_back(nullptr);
        continue;
      }
      auto memory = engine.heap().allocate(staging ? arena.bytes / 2 : arena.bytes);
      if (!memory.ok()) return memory.status();
      list.push_back(static_cast<char*>(*memory));
    }
  }
  staged_ = options.group->uses_node_stage() ||
            std::any_of(staging_.begin(), staging_.end(),
                        [](const char* memory) { return memory != nullptr; });
  for (const plan::Buffer& buffer : plan.buffers) {
    const bool narrow = staging_[buffer.arena] != nullptr;
    const size_t bytes = narrow ? buffer.range.bytes / 2 : buffer.range.bytes;
    wire_shards_.push_back(
        members().nodes() == 1
            ? std::vector<plan::Shard>{{0, 0, bytes}}
            : plan::shard_layout(bytes, options.group->shards().weights));
    direct_.push_back(std::make_unique<Direct>(*this));
  }
  return {};
}

Planned::Work::~Work() {
  for (auto* list : {&arenas, &staging_}) {
    for (char* memory : *list) {
      if (memory != nullptr) engine.heap().free(memory);
    }
  }
}

Result<std::unique_ptr<Planned>> Planned::create(Engine& face,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options) {
  EngineCore& engine = *face.core_;
  if (!options.group) options.group = engine.world();
  // Also of a plan that fails here: the next one must have the same on all ranks.
  if (!options.stream) options.stream = options.group->next_stream();
  for (const plan::Gradient& gradient : gradients) {
    HERRING_RETURN_IF_ERROR(check_reducible(gradient.dtype, {options.op}));
  }
  if (options.narrow && size_of(options.wire) != 2) {
    return Status(Code::kInvalidArgument, concat("wire_dtype is ", name_of(options.wire),
                                                 "; use float16 or bfloat16"));
  }
  plan::Cluster shape{options.group->members().nodes(), options.group->shards().weights};
  plan::Options plan_options;
  plan_options.buffer_bytes =
      options.buffer_bytes != 0 ? options.buffer_bytes : engine.options().buffer_bytes;
  plan_options.segment_bytes = engine.options().links.segment_bytes;
  auto plan = plan::make_plan(gradients, shape, plan_options);
  if (!plan.ok()) return plan.status();

  auto work = std::make_shared<Work>(engine, std::move(options), std::move(*plan));
  HERRING_RETURN_IF_ERROR(work->allocate());
  return std::unique_ptr<Planned>(new Planned(std::move(work)));
}

Planned::~Planned() {
  if (work_->generation != fork_generation()) return;  // a child is no member of the job
  std::lock_guard lock(mutex_);
  if (round_ == nullptr || round_->future->done() || next_buffer_ == plan().buffers.size()) {
    return;
  }
  // Without the memory to say so, the others wait until their time-out.
  static_cast<void>(without_exceptions([this]() -> Status {
    work_->engine.abort(
        {Code::kShutdown,
         concat("planned operation '", work_->options.name, "'", work_->members().suffix(),
                " was closed inside round ", round_->number, ", before gradients ", missing(),
                " were ready; wait() for the round before close()")});
    return {};
  }));
}

uint64_t Planned::signature() const {
  Fnv1a hash;
  const PlannedOptions& options = work_->options;
  for (uint64_t value : {plan().hash, uint64_t{work_->stream}, static_cast<uint64_t>(options.op),
                         static_cast<uint64_t>(options.narrow),
                         static_cast<uint64_t>(options.wire)}) {
    hash.add(value);
  }
  return hash.value();
}

Status Planned::begin(bool active) {
  HERRING_RETURN_IF_ERROR(work_->engine.incomplete(*work_->options.group));
  std::unique_lock lock(mutex_);
  if (round_ != nullptr && !round_->future->done()) {
    return {Code::kInvalidArgument,
            concat("'", work_->options.name, "': begin() inside a round; wait() for it first")};
  }
  // Before anything changes: there may be no memory for it.
  auto round = std::make_shared<Round>();
  round->future = std::make_shared<Future>(work_->engine.loop());
  round->number = next_round_++;
  round->active = active;
  round->buffers_left = static_cast<uint32_t>(plan().buffers.size());
  round_ = std::move(round);
  ready_.assign(plan().gradients.size(), !active);
  missing_.assign(plan().buffers.size(), 0);
  if (active) {
    for (const auto& buffers : plan().buffers_of) {
      for (uint32_t b : buffers) ++missing_[b];
    }
  }
  next_buffer_ = 0;
  if (plan().buffers.empty()) {
    round_->future->set({});
    return {};
  }
  work_->begin(round_);
  while (next_buffer_ < missing_.size() && missing_[next_buffer_] == 0) ++next_buffer_;
  if (next_buffer_ > 0) work_->launch(0, next_buffer_, round_);
  return {};
}

Status Planned::ready(size_t index) {
  std::lock_guard lock(mutex_);
  if (round_ == nullptr || index >= ready_.size() || ready_[index]) {
    return {Code::kInvalidArgument,
            concat("'", work_->options.name, "': gradient ", index,
                   round_ == nullptr         ? " is ready before begin()"
                   : index >= ready_.size() ? " does not exist"
                                             : " is ready twice in one round")};
  }
  ready_[index] = true;
  for (uint32_t b : plan().buffers_of[index]) --missing_[b];
  const uint32_t from = next_buffer_;
  while (next_buffer_ < missing_.size() && missing_[next_buffer_] == 0) ++next_buffer_;
  if (next_buffer_ > from) work_->launch(from, next_buffer_, round_);
  return {};
}

std::string Planned::missing() const {
  std::string missing;
  size_t count = 0;
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i] || plan().buffers_of[i].empty()) continue;
    if (count++ < 10) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  }
  return count > 10 ? concat(missing, " and ", count - 10, " more") : missing;
}

Result<std::shared_ptr<Future>> Planned::waiting() {
  std::lock_guard lock(mutex_);
  const std::string& name = work_->options.name;
  if (round_ == nullptr) {
    return Status(Code::kInvalidArgument, concat("'", name, "': wait() before begin()"));
  }
  if (!round_->future->done() && next_buffer_ < plan().buffers.size()) {
    return Status(Code::kInvalidArgument, concat("'", name, "': wait() before gradients ",
                                                 missing(), " were ready; call ready() for each"));
  }
  return round_->future;
}

void Planned::Work::run(const std::shared_ptr<Round>& round, std::function<void()> task) {
  if (Status status = engine.run(std::move(task)); !status.ok()) round->future->set(status);
}

void Planned::Work::begin(const std::shared_ptr<Round>& round) {
  const auto tracks = [this, round] {
    if (Status status = engine.failure(); !status.ok()) {
      round->future->set(status);
    } else if (Status off = options.group->called_off(); !off.ok()) {
      round->future->set(off);
    } else {
      engine.track(round->future, *options.group,
                   concat("'", options.name, "'", members().suffix(), " (round ",
                          round->number, ")"));
    }
  };
  run(round, [self = shared_from_this(), round, tracks] {
    or_tell([&](const Status& why) { round->future->set(why); }, tracks);
  });
}

void Planned::Work::launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round) {
  run(round, [self = shared_from_this(), from, to, round] {
    for (uint32_t b = from; b < to && !round->future->done(); ++b) self->launch_one(b, round);
  });
}

void Planned::Work::launch_one(uint32_t index, const std::shared_ptr<Round>& round) {
  const plan::Buffer& buffer = plan.buffers[index];
  const DType dtype = plan.arenas[buffer.arena].dtype;
  char* data = arenas[buffer.arena] + buffer.range.offset;
  char* staging = staging_[buffer.arena];
  if (staged_) {
    NodeTask task;
    task.group = options.group;
    task.key = {stream, round->number, index, members().id()};
    task.name = options.name;
    task.data = data;
    task.bytes = buffer.range.bytes;
    task.dtype = dtype;
    task.wire = wire_of(buffer.arena);
    task.staging = staging == nullptr ? nullptr : staging + buffer.range.offset / 2;
    task.reduction.op = options.op;
    task.active = round->active;
    task.deadline = engine.deadline(0);
    task.shards = wire_shards_[index];
    task.on_done = [this, round](uint32_t workers) {
      if (options.group->called_off().ok()) buffer_done(round, workers);
    };
    task.keeps = shared_from_this();
    engine.node_stage().post(std::move(task));
    return;
  }
  Direct& direct = *direct_[index];
  direct.round = round;
  Transfer& transfer = direct.transfer;
  transfer.key = {stream, round->number, index, members().id()};
  transfer.open.dtype = dtype;
  transfer.open.reduction.op = options.op;
  transfer.open.workers = round->active ? 1 : 0;
  transfer.open.deadline = engine.deadline(0);
  transfer.open.name = options.name;
  transfer.send = round->active ? data : nullptr;
  transfer.receive = data;
  transfer.shards = wire_shards_[index];
  transfer.runs = plan::local_slice(transfer.shards, engine.options().links.segment_bytes, 0, 1);
  transfer.owner = &direct;
  const Status pushed = engine.links().push(transfer, shared_from_this());
  if (!pushed.ok()) engine.fail_now(pushed);
}

void Planned::Work::buffer_done(const std::shared_ptr<Round>& round, uint32_t workers) {
  contributors.store(workers);
  if (--round->buffers_left > 0) return;
  engine.untrack(round->future);
  round->future->set({});
}

}  // namespace herring::worker
