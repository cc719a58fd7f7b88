// Where the buffers of a plan lie: in arenas, and in staging memory if they travel in another
// dtype. What rounding to 8 bits has lost of them.
#include <algorithm>
#include <utility>

#include "plan/plan.h"
#include "reduce/reduce.h"
#include "rounds/planned_work.h"

namespace herring::rounds {

// Whether such gradients can travel in packs does not depend on the number of nodes, so that a
// program that runs on one node does not fail on two.
Status Planned::check_packs(const std::vector<plan::Gradient>& gradients,
                            const PlannedOptions& options, size_t segment_bytes) {
  const auto refuse = [&](const auto&... why) {
    return Status(Code::kInvalidArgument, concat("'", options.name, "': wire_dtype ",
                                                 name_of(options.wire), " ", why...));
  };
  for (const plan::Gradient& gradient : gradients) {
    reduce::Stage stage{gradient.dtype, options.wire, options.op};
    if (!reduce::check_stage(stage).ok()) {
      return refuse("sends sums and averages of float32, float16 and bfloat16, but there is op '",
                    name_of(options.op), "' with a gradient in ", name_of(gradient.dtype));
    }
  }
  if (segment_bytes % kPackBytes != 0) {
    return refuse("needs segments of whole KiB, but HERRING_SEGMENT_BYTES is ", segment_bytes);
  }
  return {};
}

Planned::Work::~Work() {
  for (char* memory : memory_) core.heap->free(memory);
}

Status Planned::Work::take_memory(size_t bytes, char*& place) {
  auto memory = core.heap->allocate(bytes, options.use);
  if (!memory.ok()) return memory.status();
  place = memory_.emplace_back(static_cast<char*>(*memory));
  return {};
}

DType Planned::Work::wire_of(DType dtype) const {
  if (options.narrow && is_packed(options.wire)) {
    return members().nodes() > 1 ? options.wire : dtype;  // inside a node nothing travels
  }
  return options.narrow && dtype == DType::kFloat32 ? options.wire : dtype;
}

Status Planned::Work::allocate() {
  staged_ = options.group->uses_node_stage();
  for (const plan::Arena& arena : plan.arenas) {
    HERRING_RETURN_IF_ERROR(take_memory(arena.bytes, arenas.emplace_back()));
  }
  const auto on_wire = [this](DType dtype, size_t bytes) {
    const DType wire = wire_of(dtype);
    return wire == dtype ? 0 : bytes_for(bytes / size_of(dtype), wire);
  };
  const auto staging = places(on_wire);
  if (!staging.ok()) return staging.status();
  const auto results = places([&](DType dtype, size_t bytes) {
    const DType wire = wire_of(dtype);
    const bool in_place = result_of(wire) == wire && !is_sparse(wire);
    return in_place ? 0 : result_bytes(on_wire(dtype, bytes), wire);
  });
  if (!results.ok()) return results.status();
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const auto& [offset, bytes] = plan.buffers[b].range;
    const size_t arena = plan.buffers[b].arena;
    const DType dtype = plan.arenas[arena].dtype;
    staged_ |= (*staging)[b] != nullptr;
    add_part(arenas[arena] + offset, bytes, dtype, wire_of(dtype), options.op, (*staging)[b],
             (*results)[b]);
  }
  if (options.note_bytes > 0) {
    HERRING_RETURN_IF_ERROR(take_memory(options.note_bytes, note));
    add_part(note, options.note_bytes, DType::kUInt8, DType::kUInt8, ReduceOp::kMax, nullptr,
             nullptr);
  }
  if (!staged_ || options.group->local_size() == 1 || count() == 0) return {};
  HERRING_RETURN_IF_ERROR(take_memory(PlannedDevices::kCardBytes, card));
  cards_.assign(options.group->local_size() * PlannedDevices::kCardBytes, 0);
  return {};
}

// Returns where each buffer lies in memory of this size, which it shares with the others of its
// arena; null: it needs none.
template <typename Bytes>
Result<std::vector<char*>> Planned::Work::places(const Bytes& bytes_of) {
  const auto bytes = [&](const plan::Buffer& buffer) {
    return bytes_of(plan.arenas[buffer.arena].dtype, buffer.range.bytes);
  };
  std::vector<size_t> sizes(plan.arenas.size());
  for (const plan::Buffer& buffer : plan.buffers) sizes[buffer.arena] += bytes(buffer);
  std::vector<char*> next(sizes.size()), all;
  for (size_t arena = 0; arena < sizes.size(); ++arena) {
    if (sizes[arena] > 0) HERRING_RETURN_IF_ERROR(take_memory(sizes[arena], next[arena]));
  }
  for (const plan::Buffer& buffer : plan.buffers) {
    char*& place = next[buffer.arena];
    all.push_back(place);
    if (place != nullptr) place += bytes(buffer);
  }
  return all;
}

void Planned::Work::add_part(char* data, size_t bytes, DType dtype, DType wire, ReduceOp op,
                             char* staging, char* results) {
  const size_t wire_bytes = bytes_for(bytes / size_of(dtype), wire);
  const std::vector<double>& weights = options.group->shards().weights;
  Part& part = *parts_.emplace_back(std::make_unique<Part>(*this));
  NodeTask& task = part.task;
  task.group = options.group;
  task.key = {stream, 0, count() - 1, members().id()};
  task.name = options.name;
  task.lockstep = true;
  task.data = data;
  task.bytes = bytes;
  task.dtype = dtype;
  task.wire = wire;
  task.staging = staging;
  task.results = results;
  task.reduction.op = op;
  if (options.divide_by_all) task.reduction.divisor = static_cast<uint32_t>(members().size());
  if (members().nodes() == 1 || (data == note && bytes <= plan.segment_bytes)) {
    const auto heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
    task.shards = {{static_cast<uint32_t>(heaviest), 0, wire_bytes}};  // in one piece
  } else {
    task.shards = plan::shard_layout(wire_bytes, weights,
                                     is_packed(wire) ? kPackBytes : plan::kAlignment);
  }
  if (!is_packed(wire) || !options.error_feedback) return;
  const size_t numbers = slice(count() - 1, options.group->local_index()).bytes / size_of(dtype);
  part.residual.resize(numbers);
  task.residual = part.residual.data();
  if (!is_sparse(wire)) return;
  part.before.resize(numbers);
  task.before = part.before.data();
  task.changes = &part.changed;
}

// Uses the same slices as NodeWork.
plan::Range Planned::Work::slice(uint32_t part, uint32_t place) const {
  const NodeTask& task = parts_[part]->task;
  const std::vector<plan::Shard>& shards = task.shards;
  plan::Range whole;  // at first in bytes on the wire
  for (const plan::SegmentRun& run :
       plan::local_slice(shards, plan.segment_bytes, place, options.group->local_size())) {
    const plan::Range range = plan::run_range(shards, plan.segment_bytes, run);
    if (whole.bytes == 0) whole.offset = range.offset;
    whole.bytes += range.bytes;
  }
  const auto before = [&task](size_t wire_byte) {
    return std::min(numbers_in(wire_byte, task.wire) * size_of(task.dtype), task.bytes);
  };
  return {before(whole.offset), before(whole.end()) - before(whole.offset)};
}

std::vector<float>& Planned::Work::residual(uint32_t part) const { return parts_[part]->residual; }

void Planned::Work::take_back() const {
  for (const auto& part : parts_) {
    if (!std::exchange(part->changed, false)) continue;
    std::ranges::copy(part->before, part->residual.begin());
  }
}

Status Planned::check_rest() const {
  if (round_ == nullptr || round_->future->done()) return {};
  return {Code::kInvalidArgument, concat("'", work_->options.name, "': the residual changes ",
                                         "inside a round; wait() for it first")};
}

template <typename Visit>
Status Planned::visit_residual(size_t i, const Visit& visit) const {
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(check_rest());
  const size_t item = size_of(plan().arenas[i].dtype);
  for (uint32_t b = 0; b < plan().buffers.size(); ++b) {
    const plan::Buffer& buffer = plan().buffers[b];
    std::vector<float>& values = work_->residual(b);
    if (buffer.arena != i || values.empty()) continue;
    const size_t offset = work_->slice(b, work_->options.group->local_index()).offset;
    visit((buffer.range.offset + offset) / item, values);
  }
  return {};
}

Result<std::vector<float>> Planned::residual(size_t i) const {
  std::vector<float> all(plan().arenas[i].bytes / size_of(plan().arenas[i].dtype));
  HERRING_RETURN_IF_ERROR(visit_residual(i, [&all](size_t first, const std::vector<float>& values) {
    std::ranges::copy(values, all.begin() + static_cast<ptrdiff_t>(first));
  }));
  return all;
}

Status Planned::set_residual(size_t i, const std::vector<float>& values) {
  return visit_residual(i, [&values](size_t first, std::vector<float>& part) {
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(first), part.size(), part.begin());
  });
}

Status Planned::take_back() {
  std::lock_guard lock(mutex_);
  HERRING_RETURN_IF_ERROR(check_rest());
  work_->take_back();
  return {};
}

}  // namespace herring::rounds
