#include "rounds/planned_work.h"

#include <algorithm>

#include "base/fork_guard.h"
#include "base/hash.h"
#include "base/log.h"

namespace herring::rounds {

Planned::RoundFuture::RoundFuture(const Work& work, uint32_t number)
    : Future(work.core.loop), title_(work.title), number_(number) {}

Planned::Planned(std::shared_ptr<Work> work) : work_(std::move(work)) {}

const plan::Plan& Planned::plan() const { return work_->plan; }
std::shared_ptr<char> Planned::arena(size_t i) const { return {work_, work_->arenas[i]}; }
uint32_t Planned::contributors() const { return work_->contributors.load(); }
bool Planned::has_note() const { return work_->note != nullptr; }

void Planned::Work::log_choices() const {
  size_t bytes = 0;
  for (const plan::Arena& arena : plan.arenas) bytes += arena.bytes;
  log(LogLevel::kInfo, "'", options.name, "'", members().suffix(), ": ",
      counted(plan.gradients.size(), "gradient"), ", ", bytes / 1e6, " MB in ",
      counted(plan.buffers.size(), "fusion buffer"), "; ",
      options.narrow || options.casts
          ? concat(is_packed(options.wire) ? "all" : "float32", " travels as ",
                   name_of(options.wire), options.casts ? ", from the GPU on" : "")
          : std::string("gradients travel in their own dtype"));
}

Result<std::unique_ptr<Planned>> Planned::create(Rounds& rounds,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options) {
  Core& core = rounds.core();
  if (!options.group) options.group = core.groups.world();
  // A stream is taken even if creation fails below: the next plan must have the same stream on all
  // ranks.
  if (!options.stream) options.stream = options.group->next_stream();
  if (options.narrow && is_packed(options.wire)) {
    HERRING_RETURN_IF_ERROR(check_packs(gradients, options, core.options.links.segment_bytes));
  }
  for (const plan::Gradient& gradient : gradients) {
    HERRING_RETURN_IF_ERROR(check_reducible(gradient.dtype, {options.op}));
  }
  plan::Cluster shape{options.group->members().nodes(), options.group->shards().weights};
  plan::Options plan_options;
  plan_options.buffer_bytes =
      options.buffer_bytes != 0 ? options.buffer_bytes : core.options.buffer_bytes;
  plan_options.segment_bytes = core.options.links.segment_bytes;
  plan_options.on_devices = options.on_devices;
  plan_options.alone = shape.nodes == options.group->members().size();
  auto plan = plan::make_plan(gradients, shape, plan_options);
  if (!plan.ok()) return plan.status();

  auto work = std::make_shared<Work>(rounds, std::move(options), std::move(*plan));
  HERRING_RETURN_IF_ERROR(work->allocate());
  work->log_choices();
  return std::unique_ptr<Planned>(new Planned(std::move(work)));
}

Planned::~Planned() {
  if (work_->generation != fork_generation()) return;  // a forked child is not a member of the job
  std::lock_guard lock(mutex_);
  if (round_ == nullptr || round_->future->done() || next_buffer_ == work_->count()) {
    return;
  }
  // If there is no memory to tell the others, they wait until their timeout.
  static_cast<void>(without_exceptions([this]() -> Status {
    work_->core.ending.abort(
        {Code::kShutdown,
         concat("planned operation '", work_->options.name, "'", work_->members().suffix(),
                " was closed inside round ", round_->number, ", before ", missing(),
                "; wait() for the round before close()")});
    return {};
  }));
}

Nanos Planned::timeout() const { return work_->core.timeout_ms(0) * kMillisecond; }

uint64_t Planned::signature() const {
  Fnv1a hash;
  const PlannedOptions& options = work_->options;
  for (uint64_t value : {plan().hash, uint64_t{work_->stream}, static_cast<uint64_t>(options.op),
                         uint64_t{options.divide_by_all}, static_cast<uint64_t>(options.narrow),
                         static_cast<uint64_t>(options.wire), uint64_t{options.note_bytes}}) {
    hash.add(value);
  }
  return hash.value();
}

Status Planned::begin(bool active, bool held) {
  HERRING_RETURN_IF_ERROR(work_->core.ending.incomplete(*work_->options.group));
  std::unique_lock lock(mutex_);
  if (round_ != nullptr && !round_->future->done()) {
    return {Code::kInvalidArgument,
            concat("'", work_->options.name, "': begin() inside a round; wait() for it first")};
  }
  // Allocates first, so that nothing has changed if there is no memory.
  auto round = std::make_shared<Round>();
  round->future = std::make_shared<RoundFuture>(*work_, next_round_);
  round->number = next_round_++;
  round->active = active;
  round->buffers_left = work_->count();
  if (work_->card != nullptr && round->number < PlannedDevices::kCardRounds) {
    ++round->buffers_left;
    std::fill_n(work_->card, PlannedDevices::kCardBytes, 0);
    if (work_->options.devices) work_->options.devices->write_card(round->number, work_->card);
  }
  observe::Entry entry = work_->entry_of(*round);
  entry.kind = observe::Kind::kRound;
  entry.at[static_cast<size_t>(observe::Moment::kCalled)] = work_->core.loop->now();
  for (const plan::Arena& arena : plan().arenas) entry.bytes += arena.bytes;
  round->future->begin(work_->core.program, entry);
  round_ = std::move(round);
  ready_.assign(plan().gradients.size(), !active);
  missing_.assign(work_->count(), 0);
  if (active) {
    if (has_note()) missing_.back() = 1;
    for (const auto& buffers : plan().buffers_of) {
      for (uint32_t b : buffers) ++missing_[b];
    }
  }
  next_buffer_ = 0;
  held_ = held;
  if (missing_.empty()) {
    round_->future->mark().at(observe::Moment::kReady, entry.when(observe::Moment::kCalled));
    round_->future->set({});
    return {};
  }
  work_->begin(round_);
  advance();
  return {};
}

void Planned::let_go() {
  std::lock_guard lock(mutex_);
  held_ = false;
  advance();
}

void Planned::advance() {
  if (held_) return;
  const uint32_t from = next_buffer_;
  while (next_buffer_ < missing_.size() && missing_[next_buffer_] == 0) ++next_buffer_;
  if (next_buffer_ == from) return;
  const Nanos now = work_->core.loop->now();
  work_->core.program->called(now);
  if (next_buffer_ == missing_.size()) round_->future->mark().at(observe::Moment::kReady, now);
  work_->launch(from, next_buffer_, round_, now);
}

Status Planned::may_be_ready(size_t index) const {
  if (round_ != nullptr && index < ready_.size() && !ready_[index]) return {};
  return {Code::kInvalidArgument,
          concat("'", work_->options.name, "': gradient ", index,
                 round_ == nullptr         ? " is ready before begin()"
                 : index >= ready_.size() ? " does not exist"
                                           : " is ready twice in one round")};
}

Status Planned::ready_in(size_t index, uint32_t buffer) {
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(may_be_ready(index));
  ready_[index] = buffer == plan().buffers_of[index].back();
  --missing_[buffer];
  advance();
  return {};
}

Status Planned::ready(size_t index) {
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(may_be_ready(index));
  ready_[index] = true;
  for (uint32_t b : plan().buffers_of[index]) --missing_[b];
  advance();
  return {};
}

Status Planned::note(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  const size_t expected = work_->options.note_bytes;
  if (bytes.size() != expected || round_ == nullptr || !has_note() || missing_.back() == 0) {
    return {Code::kInvalidArgument,
            concat("'", work_->options.name, "': a note ",
                   bytes.size() != expected
                       ? concat("of ", counted(bytes.size(), "byte"), "; this plan has ", expected)
                       : round_ == nullptr ? "before begin()" : "twice in one round")};
  }
  std::copy(bytes.begin(), bytes.end(), work_->note);
  missing_.back() = 0;
  advance();
  return {};
}

Result<std::string> Planned::notes() {
  std::lock_guard lock(mutex_);
  if (round_ == nullptr || !round_->future->done()) {
    return Status(Code::kInvalidArgument,
                  concat("'", work_->options.name,
                         "': notes are available after wait() has returned"));
  }
  HERRING_RETURN_IF_ERROR(round_->future->status());
  return std::string(work_->note, work_->options.note_bytes);
}

bool Planned::lacks_note() const {
  std::lock_guard lock(mutex_);
  return has_note() && round_ != nullptr && missing_.back() != 0;
}

std::shared_ptr<Future> Planned::round() const {
  std::lock_guard lock(mutex_);
  return round_ == nullptr ? nullptr : round_->future;
}

void Planned::added(uint32_t buffer) { report(&NodeStage::added, buffer); }
void Planned::given(uint32_t buffer) { report(&NodeStage::given, buffer); }

void Planned::report(void (NodeStage::*what)(const wire::Key& key), uint32_t buffer) {
  std::shared_ptr<Round> round;
  {
    std::lock_guard lock(mutex_);
    round = round_;
  }
  work_->run(round, [work = work_, what, round, buffer] {
    const wire::Key key{work->stream, round->number, buffer, work->members().id()};
    ((*work->core.node_stage).*what)(key);
  });
}

uint32_t Planned::rounds() const {
  std::lock_guard lock(mutex_);
  return next_round_;
}

const PlannedOptions& Planned::options() const { return work_->options; }

PlanOnNode Planned::on_node() const {
  const PlannedOptions& options = work_->options;
  PlanOnNode found{&work_->plan,     options.group,
                   options.name,     options.op,
                   options.narrow,   work_->core.options.node_stage,
                   work_->core.heap, work_->arenas,
                   {}};
  for (uint32_t buffer = 0; buffer < plan().buffers.size(); ++buffer) {
    std::vector<plan::Range>& slices = found.slices.emplace_back();
    for (uint32_t place = 0; place < options.group->local_size(); ++place) {
      slices.push_back(work_->slice(buffer, place));
    }
  }
  return found;
}

void Planned::fail(const Status& why) { work_->core.ending.abort(why); }

std::string Planned::missing() const {
  std::string missing;
  size_t count = 0;
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i] || plan().buffers_of[i].empty()) continue;
    if (count++ < 10) missing += (missing.empty() ? "gradients " : ", ") + std::to_string(i);
  }
  if (count > 10) missing += concat(" and ", count - 10, " more");
  if (count > 0) missing += " were ready";
  if (!has_note() || missing_.back() == 0) return missing;
  return concat(missing, missing.empty() ? "" : " and ", "the note was given");
}

Result<std::shared_ptr<Future>> Planned::waiting() {
  std::lock_guard lock(mutex_);
  const std::string& name = work_->options.name;
  if (round_ == nullptr) {
    return Status(Code::kInvalidArgument, concat("'", name, "': wait() before begin()"));
  }
  if (!round_->future->done() && next_buffer_ < work_->count() && !held_) {
    return Status(Code::kInvalidArgument,
                  concat("'", name, "': wait() before ", missing(), "; call ready() for each ",
                         "gradient", has_note() ? " and note() once" : ""));
  }
  return std::shared_ptr<Future>(round_->future);
}

void Planned::Work::run(const std::shared_ptr<Round>& round, std::function<void()> task) {
  if (Status status = core.run(std::move(task)); !status.ok()) round->future->set(status);
}

void Planned::Work::begin(const std::shared_ptr<Round>& round) {
  const auto tracks = [this, round] {
    if (Status status = core.ending.failure(); !status.ok()) {
      round->future->set(status);
    } else if (Status off = options.group->called_off(); !off.ok()) {
      round->future->set(off);
    } else {
      rounds.track(round->future, *options.group);
    }
  };
  run(round, [self = shared_from_this(), round, tracks] {
    or_tell([&](const Status& why) { round->future->set(why); }, tracks);
    if (self->card != nullptr && round->number < PlannedDevices::kCardRounds &&
        !round->future->done()) {
      self->exchange_cards(round);
    }
  });
}

// Exchanges the cards through the node stage: each rank reads its neighbours' cards from their
// memory.
void Planned::Work::exchange_cards(const std::shared_ptr<Round>& round) {
  NodeTask task;
  task.group = options.group;
  task.key = {stream, round->number, count(), members().id()};
  task.name = options.name;
  task.data = card;
  task.bytes = PlannedDevices::kCardBytes;
  task.dtype = task.wire = DType::kUInt8;
  task.deadline = core.deadline(0);
  task.exchanges = true;
  for (uint32_t place = 0; place < options.group->local_size(); ++place) {
    NodePiece& piece = task.pieces.emplace_back();
    piece.from = place;
    piece.receive = place * PlannedDevices::kCardBytes;
    piece.bytes = PlannedDevices::kCardBytes;
  }
  task.out = cards_.data();
  task.on_done = [this, round](uint32_t) {
    if (options.devices) options.devices->read_cards(cards_);
    if (options.group->called_off().ok()) part_done(round, count(), contributors.load());
    rounds.part_ended(round->future);
  };
  task.keeps = shared_from_this();
  rounds.part_begins(round->future);
  core.node_stage->post(std::move(task));
}

observe::Entry Planned::Work::entry_of(const Round& round) const {
  observe::Entry entry;
  entry.group = members().id();
  entry.stream = stream;
  entry.round = round.number;
  entry.set_name(options.name);
  return entry;
}

void Planned::Work::launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round,
                           Nanos now) {
  run(round, [self = shared_from_this(), from, to, round, now] {
    for (uint32_t p = from; p < to && !round->future->done(); ++p) self->launch_one(p, round, now);
  });
}

void Planned::Work::launch_one(uint32_t index, const std::shared_ptr<Round>& round, Nanos now) {
  Part& part = *parts_[index];
  part.mark = {};
  if (core.recorder().on()) {
    observe::Entry entry = entry_of(*round);
    entry.kind = observe::Kind::kBuffer;
    entry.buffer = index;
    entry.bytes = part.task.bytes;
    entry.at[static_cast<size_t>(observe::Moment::kReady)] = now;
    part.mark = {&core.recorder(), core.recorder().begin(entry)};
  }
  rounds.part_begins(round->future);
  NodeTask task = part.task;
  task.mark = part.mark;
  task.key.round = round->number;
  task.active = round->active;
  task.deadline = core.deadline(0);
  if (staged_) {
    task.on_done = [this, round, index](uint32_t workers) {
      if (options.group->called_off().ok()) part_done(round, index, workers);
      rounds.part_ended(round->future);
    };
    task.keeps = shared_from_this();
    if (options.devices && index < plan.buffers.size() && options.group->local_size() > 1) {
      task.adder = options.devices->adder(index);
      if (round->number == 0) {
        task.on_posted = [devices = options.devices, index](std::vector<PostedMemory> memory) {
          devices->learn(index, std::move(memory));
        };
      }
    }
    core.node_stage->post(std::move(task));
    return;
  }
  part.round = round;
  links::Transfer& transfer = part.transfer;
  transfer.key = task.key;
  transfer.lockstep = true;
  transfer.open.dtype = task.dtype;
  transfer.open.reduction = task.reduction;
  transfer.open.workers = task.active ? 1 : 0;
  transfer.open.deadline = task.deadline;
  transfer.open.name = task.name;
  transfer.send = task.active ? task.data : nullptr;
  transfer.receive = task.data;
  transfer.shards = task.shards;
  transfer.runs = plan::local_slice(transfer.shards, core.options.links.segment_bytes, 0, 1);
  transfer.owner = &part;
  transfer.mark = part.mark;
  const Status pushed = core.links->push(transfer, shared_from_this());
  if (!pushed.ok()) core.ending.fail_now(pushed);
}

void Planned::Work::part_done(const std::shared_ptr<Round>& round, uint32_t part,
                              uint32_t workers) {
  contributors.store(workers);
  if (part < count() && parts_[part]->mark) parts_[part]->mark.end(core.loop->now());
  if (options.averaged && part < plan.buffers.size()) options.averaged(part);
  if (--round->buffers_left > 0) return;
  rounds.untrack(round->future);
  round->future->set({});
}

}  // namespace herring::rounds
