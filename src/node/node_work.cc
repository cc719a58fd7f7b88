#include "node/node_work.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace herring {
namespace {

// Bytes that are summed and then copied to the other ranks while they are in the first-level cache.
constexpr size_t kBlockBytes = 16 << 10;

}  // namespace

double wire_scale(const control::Group& members, DType wire, ReduceOp op) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  if (members.nodes() == 1 || wire != DType::kFloat16 || !sums) return 1.0;
  return 1.0 / static_cast<double>(std::bit_ceil(members.most_on_a_node()));
}

Status NodeWork::check_posted() const {
  for (const uint32_t r : group().locals()) {
    if (!ranks[r].here) {
      return breach("'", task.name, "'", group().members().suffix(),
                    " was posted by a rank that is not a member");
    }
    if (ranks[r].bytes != task.bytes && !task.exchanges) {
      return {Code::kMismatch,
              concat("ranks disagree about '", task.name, "': ", options.names[r], " has ",
                     counted(ranks[r].bytes, "byte"), ", ", options.names[options.local_rank], " ",
                     task.bytes, wire::kMakeSameCall)};
    }
  }
  return {};
}

// Finds where pieces begin. Each piece must lie in the buffer that its rank has posted.
Status NodeWork::find_pieces() {
  const std::vector<uint32_t>& here = group().locals();
  const auto lies_in = [](const Posted& rank, size_t offset, size_t bytes) {
    return offset <= rank.bytes && bytes <= rank.bytes - offset;
  };
  for (NodePiece& piece : task.pieces) {
    const bool all = piece.from == NodePiece::kAll;
    for (uint32_t place = all ? 0 : piece.from; place <= (all ? locals() - 1 : piece.from);
         ++place) {
      const Posted& rank = ranks[here[place]];
      bool fits = true;
      if (std::exchange(piece.told, false)) {
        uint64_t offset = 0;
        fits = lies_in(rank, piece.offset, sizeof(offset));
        if (fits) std::memcpy(&offset, rank.data.get() + piece.offset, sizeof(offset));
        piece.offset = offset;
      }
      if (fits && lies_in(rank, piece.offset, piece.bytes)) continue;
      return breach("'", task.name, "'", group().members().suffix(), ": ",
                    options.names[here[place]], " has posted ", rank.bytes, " bytes, but ",
                    piece.bytes, " bytes from offset ", piece.offset, " on are needed");
    }
    slice.bytes += piece.bytes;
  }
  return {};
}

std::vector<uint32_t> NodeWork::missing() const {
  std::vector<uint32_t> missing;
  for (const uint32_t r : group().locals()) {
    if (posted == locals() ? !ranks[r].done : !ranks[r].here) missing.push_back(r);
  }
  return missing;
}

// Who is missing may be stopped, so the others come first.
uint32_t NodeWork::turn_to_warn(const std::vector<uint32_t>& missing) const {
  std::vector<uint32_t> order = group().locals();
  std::ranges::stable_partition(order, [&missing](uint32_t local) {
    return std::ranges::find(missing, local) == missing.end();
  });
  return static_cast<uint32_t>(std::ranges::find(order, options.local_rank) - order.begin());
}

Status NodeWork::begin() {
  HERRING_RETURN_IF_ERROR(check_posted());
  for (const uint32_t r : group().locals()) workers += ranks[r].active;
  if (task.exchanges) return find_pieces();
  transfer.key = task.key;
  transfer.shards = task.shards;
  transfer.lockstep = task.lockstep;
  transfer.attempt = task.attempt;
  transfer.runs = plan::local_slice(transfer.shards, options.segment_bytes, group().local_index(),
                                    locals());
  for (const plan::SegmentRun& run : transfer.runs) {
    const plan::Range range = plan::run_range(transfer.shards, options.segment_bytes, run);
    if (slice.bytes == 0) slice.offset = range.offset;
    slice.bytes += range.bytes;
  }
  return {};
}

uint32_t NodeWork::active() const {
  uint32_t bits = 0;
  for (uint32_t place = 0; place < locals(); ++place) {
    bits |= uint32_t{ranks[group().locals()[place]].active} << place;
  }
  return bits;
}

void NodeWork::work(size_t bytes) {
  if (bytes > 0) work_on(worked, bytes);
  worked += bytes;
}

void NodeWork::work_on(size_t begin, size_t bytes) const {
  task.exchanges ? take(begin, bytes) : reduce(slice.offset + begin, bytes);
}

reduce::Stage NodeWork::stage() const {
  const bool last = last_stage();
  const double divisor = divisor_of(task.reduction, std::max(1u, workers));
  return {task.dtype,
          last ? task.dtype : task.wire,
          task.reduction.op,
          task.reduction.prescale,
          last ? divisor : 1.0,
          last ? task.reduction.postscale : scale()};
}

// A node of one worker has nothing to add up, and often nothing to change.
bool NodeWork::leaves_as_is() const {
  if (task.exchanges || locals() > 1 || !task.active) return false;
  const reduce::Stage does = stage();
  return does.out == does.in && does.prescale == 1.0 && does.divisor == 1.0 &&
         does.postscale == 1.0;
}

void NodeWork::reduce(size_t begin, size_t bytes) const {
  if (leaves_as_is()) return;
  const size_t item = size_of(task.dtype);
  const bool last = last_stage(), packs = !last && is_packed(task.wire);
  const reduce::Stage stage = this->stage();
  size_t element = numbers_before(begin);
  const size_t end = numbers_before(begin + bytes);
  std::vector<const void*> sources;
  while (element < end) {
    const size_t together = packs ? pack_numbers(task.wire) : kBlockBytes / item;
    const size_t count = std::min(together, end - element);
    sources.clear();
    for (const uint32_t local : group().locals()) {
      const Posted& rank = ranks[local];
      if (rank.active) sources.push_back(rank.data.get() + element * item);
    }
    char* out = last || !converts() ? task.data + element * item
                                    : task.staging + bytes_for(element, task.wire);
    if (sources.empty()) {
      std::memset(out, 0, bytes_for(count, stage.out));
    } else if (packs) {
      pack(sources, element, count);
    } else {
      reduce::combine(sources.data(), sources.size(), out, count, stage);
    }
    if (last) share(element, count);
    element += count;
  }
}

void NodeWork::pack(const std::vector<const void*>& sources, size_t element, size_t count) const {
  reduce::Stage sum = stage();
  sum.out = DType::kFloat32;
  thread_local std::vector<float> sums;
  const float* values;
  if (sources.size() == 1 && sum.in == DType::kFloat32 && sum.prescale == 1.0) {
    values = static_cast<const float*>(sources[0]);
  } else {
    sums.resize(std::max(sums.size(), count));
    reduce::combine(sources.data(), sources.size(), sums.data(), count, sum);
    values = sums.data();
  }
  const size_t at = element - numbers_before(slice.offset);
  float* const residual = task.residual == nullptr ? nullptr : task.residual + at;
  if (task.before != nullptr) std::copy_n(residual, count, task.before + at);
  reduce::pack(values, count, task.wire, task.staging + bytes_for(element, task.wire), residual);
}

// Keeps what was sent of numbers for which others have sent more, and which the result lacks.
void NodeWork::give_back(size_t element, size_t count) const {
  if (task.residual == nullptr || transfer.send == nullptr) return;
  const size_t together = pack_numbers(task.wire), begin = numbers_before(slice.offset);
  for (const size_t end = element + count; element < end; element += together) {
    const size_t at = bytes_for(element, task.wire);
    reduce::give_back(transfer.send + at, transfer.receive + at,
                      std::min(together, end - element), task.residual + element - begin);
  }
}

// Copies finished elements from this rank's buffer to the other ranks' buffers.
void NodeWork::share(size_t element, size_t elements) const {
  const size_t item = size_of(task.dtype);
  const size_t offset = element * item, bytes = elements * item;
  for (const uint32_t r : group().locals()) {
    if (r == options.local_rank) continue;
    std::memcpy(ranks[r].data.get() + offset, task.data + offset, bytes);
  }
}

void NodeWork::take(size_t begin, size_t bytes) const {
  const reduce::Stage stage = reduce::whole(task.dtype, task.reduction, std::max(1u, workers));
  const size_t item = size_of(task.dtype), end = begin + bytes;
  size_t first = 0;  // of the piece
  for (const NodePiece& piece : task.pieces) {
    size_t at = std::max(begin, first);
    const size_t to = std::min(end, first + piece.bytes);
    while (at < to) {
      const size_t offset = piece.offset + at - first;
      char* const out = task.out + piece.receive + at - first;
      if (piece.from != NodePiece::kAll) {
        std::memcpy(out, ranks[group().locals()[piece.from]].data.get() + offset, to - at);
        break;
      }
      const size_t some = std::min(kBlockBytes, to - at);
      std::vector<const void*> sources;
      for (const uint32_t r : group().locals()) {
        sources.push_back(ranks[r].data.get() + offset);
      }
      reduce::combine(sources.data(), sources.size(), out, some / item, stage);
      at += some;
    }
    first += piece.bytes;
  }
}

wire::Open NodeWork::open() const {
  wire::Open open;
  open.dtype = task.wire;
  open.reduction.op = task.reduction.op;
  open.reduction.divisor = task.reduction.divisor;
  open.participants = wire::Participants::kNodes;
  open.workers = workers;
  open.reduction.postscale = task.reduction.postscale / scale();
  open.deadline = task.deadline;
  open.name = task.name;
  return open;
}

void NodeWork::prepare_push() {
  char* const base = converts() ? task.staging : task.data;
  transfer.open = open();
  transfer.send = workers > 0 ? base : nullptr;
  transfer.receive = task.results != nullptr ? task.results : base;
  transfer.mark = task.mark;
  if (task.changes != nullptr) *task.changes = workers > 0;
  pushed = true;
}

void NodeWork::place(plan::Range range) {
  if (task.adder) return;
  const size_t item = size_of(task.dtype);
  const size_t element = numbers_before(range.offset);
  const size_t count = numbers_before(range.end()) - element;
  if (converts()) {
    const DType result = result_of(task.wire);
    const size_t together = pack_numbers(result), whole = count / together * together;
    const char* const from = transfer.receive + links::of_results(transfer, range).offset;
    char* const to = task.data + element * item;
    reduce::convert(from, result, to, task.dtype, whole, 1.0);
    if (whole < count) {
      std::vector<float> last(together);
      reduce::convert(from + bytes_for(whole, result), result, last.data(), DType::kFloat32,
                      together, 1.0);
      reduce::convert(last.data(), DType::kFloat32, to + whole * item, task.dtype, count - whole,
                      1.0);
    }
    if (is_sparse(task.wire)) give_back(element, count);
  }
  share(element, count);
}

}  // namespace herring
