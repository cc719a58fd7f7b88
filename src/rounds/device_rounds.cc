#include "rounds/device_rounds.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "device/copiers.h"
#include "device/kept.h"

namespace herring::rounds {
namespace {

// How much of what is ready at once is copied out before it is reported.
constexpr size_t kReportedBytes = 4 << 20;

}  // namespace

Result<std::unique_ptr<DeviceRounds>> DeviceRounds::create(
    Rounds& all, const std::vector<plan::Gradient>& gradients, PlannedOptions options,
    std::shared_ptr<device::Copier> copier, std::shared_ptr<DeviceCasts> casts) {
  auto flags = std::make_shared<Flags>();
  options.use = Use::devices_at(copier->memory_node());
  options.averaged = [flags](uint32_t buffer) {
    flags->of_buffers[buffer].set(flags->values[buffer]);
  };
  auto node = std::make_shared<DeviceNode>(*copier);
  options.devices = node;
  options.casts = casts != nullptr;
  if (casts) options.narrow = false;
  std::unique_ptr<DeviceRounds> rounds(
      new DeviceRounds(std::move(copier), casts, flags, std::move(node)));
  HERRING_RETURN_IF_ERROR(Planned::create(all, casts ? casts->narrowed(gradients) : gradients,
                                          std::move(options))
                              .move_to(rounds->planned_));
  if (casts) rounds->wide_ = casts->widened(rounds->planned_->plan());
  rounds->node_->attach(rounds->planned_->on_node(), {});
  HERRING_RETURN_IF_ERROR(rounds->take_flags());
  return rounds;
}

Status DeviceRounds::take_flags() {
  for (size_t i = 0; i < planned_->plan().buffers.size(); ++i) {
    HERRING_ASSIGN_OR_RETURN(auto& flag, copier_->flags().take());
    flags_->of_buffers.push_back(flag);
    flags_->values.push_back(flag.word->load());
  }
  return {};
}

bool DeviceRounds::may_be_written() const {
  const std::shared_ptr<Future> round = planned_->round();
  return node_->level() == DeviceNode::kIpc && round && !(round->done() && round->status().ok());
}

DeviceRounds::~DeviceRounds() { static_cast<void>(end()); }

bool DeviceRounds::end() {
  if (std::exchange(ended_, true)) return true;
  const std::shared_ptr<Future> round = planned_ ? planned_->round() : nullptr;
  const auto wait_for_round = [&round, this] {
    while (round && !round->done() && round->loop().here() && copier_->check().ok()) {
      static_cast<void>(round->wait_for(100 * kMillisecond));
    }
  };
  // A round goes on if all its gradients are on their way. If this device adds in the node, wait
  // until it has.
  if (planned_ && std::find(out_.begin(), out_.end(), false) == out_.end()) {
    const bool out = copier_->settle_out(monotonic_now() + planned_->timeout());
    if (out && node_->level() != DeviceNode::kHost && !planned_->lacks_note()) wait_for_round();
  }
  // If the round has failed, other ranks may go on, and the node stage waits for adders here.
  bool hangs = false;
  if (round && round->done() && !round->status().ok()) {
    const Status idle = copier_->drain(monotonic_now() + device::Copier::kPatience);
    hangs = idle.code() == Code::kTimeout;
  }
  {
    std::lock_guard lock(alive_->mutex);
    alive_->rounds = nullptr;
  }
  // The arenas live until all copies are done.
  const std::string name = planned_ ? planned_->options().name : std::string();
  std::vector<std::shared_ptr<char>> arenas;
  for (size_t i = 0; planned_ && i < planned_->plan().arenas.size(); ++i) {
    arenas.push_back(planned_->arena(i));
  }
  if (planned_) node_->part_with_arenas();
  planned_.reset();
  wait_for_round();
  const Nanos patience = hangs ? 0 : device::Copier::kPatience;
  const Status lost = copier_->drain(monotonic_now() + patience);
  if (lost.code() == Code::kTimeout) {
    log(LogLevel::kWarning, "'", name, "': ", lost.message(),
        "; the memory of the plan is kept for ever, as the GPU may still use it");
    device::keep_for_ever(std::tuple(copier_, flags_, node_, memory(), std::move(arenas)));
    return false;
  }
  if (lost.ok()) {
    node_->let_go();
    device::unmap_if_idle();
  }
  // The engine may set the flags of a failed round once more, so do not give them back: nobody else
  // may use them.
  if (!lost.ok() || (round && (!round->done() || !round->status().ok()))) return true;
  for (const device::Flag& flag : flags_->of_buffers) copier_->flags().give_back(flag);
  node_->give_back_flags();
  return true;
}

Status DeviceRounds::place(std::vector<device::Address> arenas) {
  const size_t expected = planned_->plan().arenas.size();
  if (arenas.size() != expected) {
    return {Code::kInvalidArgument,
            concat(arenas.size(), " arenas on the device; this plan has ", expected)};
  }
  if (planned_->rounds() > 0) {
    return {Code::kInvalidArgument,
            "place() after begin(): the other ranks of the node already use the arenas"};
  }
  if (casts_) {
    HERRING_RETURN_IF_ERROR(casts_->place(planned_->plan(), std::move(arenas)));
    arenas = casts_->arenas();
  }
  arenas_ = std::move(arenas);
  pinned_ = is_pinned();
  node_->attach(planned_->on_node(), arenas_);
  return {};
}

device::Copy DeviceRounds::place_of(uint32_t arena, const plan::Range& range) const {
  return {arenas_[arena] + range.offset, planned_->arena(arena).get() + range.offset, range.bytes};
}

Status DeviceRounds::failed(const Status& why) {
  if (why.code() == Code::kDevice) planned_->fail(why);
  return why;
}

Status DeviceRounds::begin(device::Stream stream, bool active) {
  return failed(copier_->device().together([&] { return begin_there(stream, active); }));
}

Status DeviceRounds::begin_there(device::Stream stream, bool active) {
  const plan::Plan& plan = planned_->plan();
  if (arenas_.size() != plan.arenas.size()) {
    return {Code::kInvalidArgument, "begin() before place()"};
  }
  HERRING_RETURN_IF_ERROR(copier_->device().check_not_capturing(stream));
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Future> before = planned_->round();
  if (before == nullptr || before->done()) {
    for (uint32_t& value : flags_->values) ++value;  // nobody reads them now
    node_->count_on();
    if (before == nullptr || before->status().ok()) node_->prepare(planned_->rounds());
  }
  // An inactive rank lets the round go when its arenas are free of earlier work, such as the copy
  // back of the last round. Other ranks write to these arenas, on the device or in host memory.
  const bool held = !active;
  HERRING_RETURN_IF_ERROR(planned_->begin(active, held));
  // If the round fails, streams that wait for it go on.
  planned_->round()->then(Where::kEngine, [flags = flags_, node = node_,
                                           round = planned_->round()] {
    if (!round->status().ok()) release(*flags, *node);
  });
  poisoned_ = false;
  out_.assign(plan.gradients.size(), !active);
  missing_.assign(plan.buffers.size(), 0);
  if (active) {
    for (const auto& buffers : plan.buffers_of) {
      for (const uint32_t buffer : buffers) ++missing_[buffer];
    }
  }
  next_back_ = 0;
  late_.clear();
  rest_queued_ = false;
  const bool out_too = held || node_->level() != DeviceNode::kHost;
  HERRING_RETURN_IF_ERROR(copier_->follow(stream, out_too));
  if (held) {
    const auto let_go = [](DeviceRounds& self, const Status& status) {
      status.ok() ? self.planned_->let_go() : self.planned_->fail(status);
    };
    HERRING_RETURN_IF_ERROR(copier_->out({}, {}, later(let_go)));
  }
  return queue_back();
}

void DeviceRounds::release(const Flags& flags, DeviceNode& node) {
  node.release();
  for (size_t i = 0; i < flags.of_buffers.size(); ++i) flags.of_buffers[i].set(flags.values[i]);
}

Status DeviceRounds::ready(device::Stream stream, const std::vector<size_t>& indices) {
  return failed(copier_->device().together([&] { return ready_there(stream, indices); }));
}

Status DeviceRounds::ready_there(device::Stream stream, const std::vector<size_t>& indices) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Future> round = planned_->round();
  if (poisoned_) return round->status();
  for (const size_t index : indices) {
    if (round != nullptr && index < out_.size() && !out_[index]) continue;
    return {Code::kInvalidArgument,
            concat("gradient ", index,
                   round == nullptr        ? " is ready before begin()"
                   : index >= out_.size() ? " does not exist"
                                           : " is ready twice in one round")};
  }
  HERRING_RETURN_IF_ERROR(copier_->device().check_not_capturing(stream));
  HERRING_RETURN_IF_ERROR(queue_out(stream, indices));
  for (const size_t index : indices) {
    out_[index] = true;
    for (const uint32_t buffer : planned_->plan().buffers_of[index]) --missing_[buffer];
  }
  return queue_back();
}

Status DeviceRounds::queue_out(device::Stream stream, const std::vector<size_t>& indices) {
  const plan::Plan& plan = planned_->plan();
  std::vector<device::Stream> producers = {stream};
  Batch batch;
  for (const size_t index : indices) {
    const auto& [arena, range] = plan.placements[index];
    for (const uint32_t buffer : plan.buffers_of[index]) {
      const plan::Range& whole = plan.buffers[buffer].range;
      const size_t from = std::max(range.offset, whole.offset);
      const size_t to = std::min(range.end(), whole.end());
      add(arena, buffer, {from, to - from}, batch);
      batch.parts.push_back({index, buffer});
      if (batch.bytes < kReportedBytes) continue;
      // What is out is added and pushed while the rest is on its way.
      HERRING_RETURN_IF_ERROR(queue_out(producers, std::exchange(batch, {})));
      if (!casts_) producers = {};  // whose work the copies in this stream follow already
    }
  }
  if (batch.parts.empty()) return {};
  return queue_out(producers, std::move(batch));
}

// Adds the casts and copies of a range. Adjacent gradients are copied together.
void DeviceRounds::add(uint32_t arena, uint32_t buffer, const plan::Range& range,
                       Batch& batch) const {
  if (casts_) casts_->narrow(arena, range, batch.casts);
  for (const plan::Range& part : node_->to_copy_out(buffer, range)) {
    const device::Copy copy = place_of(arena, part);
    batch.bytes += part.bytes;
    std::vector<device::Copy>& copies = batch.copies;
    if (!copies.empty() && arena == batch.last_arena &&
        copies.back().host + copies.back().bytes == copy.host) {
      copies.back().bytes += copy.bytes;
    } else {
      copies.push_back(copy);
    }
    batch.last_arena = arena;
  }
}

Status DeviceRounds::queue_out(const std::vector<device::Stream>& producers, Batch batch) {
  const auto out = [parts = std::move(batch.parts)](DeviceRounds& self, const Status& status) {
    self.is_out(parts, status);
  };
  return copier_->out(producers, batch.copies, later(out), batch.casts);
}

void DeviceRounds::is_out(const std::vector<Part>& parts, const Status& status) {
  Status told = status;
  for (size_t i = 0; told.ok() && i < parts.size(); ++i) {
    told = planned_->ready_in(parts[i].gradient, parts[i].buffer);
  }
  if (!told.ok()) planned_->fail(told);
}

bool DeviceRounds::is_pinned() const {
  const PlanOnNode here = planned_->on_node();
  for (size_t i = 0; i < arenas_.size(); ++i) {
    if (here.plan->arenas[i].bytes > 0 && !here.heap->is_pinned(here.arenas[i])) return false;
  }
  return true;
}

Status DeviceRounds::queue_back() {
  for (; next_back_ < missing_.size() && missing_[next_back_] == 0; ++next_back_) {
    const auto buffer = static_cast<uint32_t>(next_back_);
    HERRING_RETURN_IF_ERROR(
        node_->queue(buffer, later([buffer](DeviceRounds& self, const Status& status) {
          status.ok() ? self.planned_->added(buffer) : self.planned_->fail(status);
        }), later([buffer](DeviceRounds& self, const Status& status) {
          status.ok() ? self.planned_->given(buffer) : self.planned_->fail(status);
        })));
    // If neighbours write the averages to this device, nothing is copied back; the end of the round
    // says that they are there.
    const std::vector<device::Copy> back = node_->to_copy_back(buffer);
    if (back.empty()) continue;
    // A copy of memory that is not pinned may block this thread until the average is there. Other
    // ranks may wait for what this thread is to do until then.
    if (!pinned_) {
      late_.insert(late_.end(), back.begin(), back.end());
      continue;
    }
    HERRING_RETURN_IF_ERROR(
        copier_->back_when(flags_->of_buffers[buffer], flags_->values[buffer], back));
  }
  return {};
}

Result<std::shared_ptr<Future>> DeviceRounds::when_back() {
  const std::shared_ptr<Future> round = planned_->round();
  if (round == nullptr) return Status(Code::kInvalidArgument, "wait() before begin()");
  auto back = std::make_shared<Future>(round->loop_of());
  back->continue_from(*round);
  Status queued = queue_rest();
  if (queued.ok()) {
    queued = copier_->when_back([back](const Status& status) { back->set(status); });
  }
  if (!queued.ok()) return failed(queued);
  return back;
}

std::vector<device::Stretch> DeviceRounds::to_poison() const {
  std::vector<device::Stretch> all;
  const auto add = [&all](device::Address arena, const plan::Range& range) {
    if (range.bytes > 0) all.push_back({arena + range.offset, range.bytes});
  };
  const std::vector<device::Address>& callers = casts_ ? casts_->wide_arenas() : arenas_;
  // A neighbour that does not know of the failure may still complete the round. So its device must
  // find the gradients that it adds.
  const auto shared = [&](uint32_t arena) {
    return node_->level() == DeviceNode::kIpc && callers[arena] == arenas_[arena];
  };
  for (uint32_t i = 0; i < callers.size(); ++i) {
    if (!shared(i)) add(callers[i], {0, plan().arenas[i].bytes});
  }
  for (uint32_t i = 0; i < plan().buffers.size(); ++i) {
    const uint32_t arena = plan().buffers[i].arena;
    if (shared(arena)) add(callers[arena], node_->own_slice(i));
  }
  return all;
}

void DeviceRounds::poison(const std::vector<device::Stream>& consumers) {
  const std::shared_ptr<Future> round = planned_->round();
  if (round == nullptr || !round->done() || round->status().ok()) return;
  if (!round->loop().here()) return;  // a forked child must not call the driver
  const Status queued = copier_->device().together([&]() -> Status {
    std::lock_guard lock(mutex_);
    if (!std::exchange(poisoned_, true)) {
      late_.clear();
      rest_queued_ = true;
      // The consumers wait for these streams below, and the engine may not have come to this yet.
      release(*flags_, *node_);
      HERRING_RETURN_IF_ERROR(copier_->poison(to_poison()));
    }
    for (const device::Stream consumer : consumers) {
      HERRING_RETURN_IF_ERROR(copier_->join(consumer));
    }
    return {};
  });
  if (queued.ok() && consumers.empty()) {
    copier_->await_idle(monotonic_now() + device::Copier::kPatienceAfterError);
  }
  // The round's own error is more important.
  if (!queued.ok()) {
    log(LogLevel::kInfo, "'", planned_->options().name, "': the arenas on GPU ",
        copier_->device().index(), " are undefined after the failed round: ", queued.message());
  }
}

// Queues the copies that were not queued before, and the casts of the averages, once in a round.
// The round is over, so that no kernel waits for a flag: others would wait behind it.
Status DeviceRounds::queue_rest() {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Future> round = planned_->round();
  if (round == nullptr || !round->done() || std::exchange(rest_queued_, true)) return {};
  if (!late_.empty()) HERRING_RETURN_IF_ERROR(copier_->back(std::exchange(late_, {})));
  if (!casts_) return {};
  std::vector<device::Launch> casts;
  for (uint32_t i = 0; i < arenas_.size(); ++i) {
    casts_->widen(i, {0, planned_->plan().arenas[i].bytes}, casts);
  }
  return copier_->cast_back(casts);
}

Result<std::shared_ptr<Future>> DeviceRounds::waiting() {
  std::lock_guard lock(mutex_);
  const bool all = std::find(out_.begin(), out_.end(), false) == out_.end();
  const bool given = all && !planned_->lacks_note() && planned_->round() != nullptr;
  return given ? planned_->round() : planned_->waiting();
}

Status DeviceRounds::join(device::Stream stream) {
  return failed(copier_->device().together([&]() -> Status {
    HERRING_RETURN_IF_ERROR(queue_rest());
    return copier_->join(stream);
  }));
}

}  // namespace herring::rounds
