#include "server/aggregator.h"

#include <algorithm>
#include <cstring>

#include "plan/plan.h"

namespace herring::server {

using reduce::kTreeGroup;

namespace {

Block g_all_released;

}  // namespace

Block* const Aggregator::kAllReleased = &g_all_released;

Aggregator::Aggregator(const control::Cluster& cluster, const GroupTable& groups,
                       size_t segment_bytes, size_t most_open, Deliver deliver,
                       std::function<Nanos()> now, observe::Recorder& recorder)
    : cluster_(cluster),
      groups_(groups),
      segment_bytes_(segment_bytes),
      most_open_(most_open),
      deliver_(std::move(deliver)),
      now_(std::move(now)),
      recorder_(recorder),
      lanes_(segment_bytes),
      wide_lanes_(2 * segment_bytes),
      widest_lanes_(4 * segment_bytes),
      servers_(control::ServerSet::all(cluster.servers.size())),
      open_(cluster.size),
      lateness_(cluster.size) {}

Aggregator::~Aggregator() = default;

uint32_t Aggregator::expected_by(const control::Group& group, const wire::Open& open) {
  switch (open.participants) {
    case wire::Participants::kNodes: return group.nodes();
    case wire::Participants::kRanks: return group.size();
    case wire::Participants::kPair: break;
  }
  return 2;
}

uint32_t Aggregator::contributor_of(const control::Group& group, const wire::Open& open,
                                    uint32_t rank) {
  const uint32_t index = group.index_of(rank);
  if (index == control::Group::kNobody) return kNobody;
  switch (open.participants) {
    case wire::Participants::kNodes: return group.node_of(index);
    case wire::Participants::kRanks: return index;
    case wire::Participants::kPair:
      return index == open.pair_a ? 0 : index == open.pair_b ? 1 : kNobody;
  }
  return kNobody;
}

// Checks the opening alone, independently of other contributors.
Status Aggregator::check(const control::Group& group, const wire::Open& open,
                         uint32_t rank) const {
  HERRING_RETURN_IF_ERROR(reduce::check_stage(reduce::whole(open.dtype, open.reduction)));
  const auto wrong = [&](const auto&... what) {
    return breach("rank ", rank, " opens '", open.name, "'", group.suffix(), " ", what...);
  };
  if (!group.has(rank)) return wrong("without being a member");
  if (is_packed(open.dtype) && segment_bytes_ % kPackBytes != 0) {
    return wrong("in ", name_of(open.dtype), ", but segments have ", segment_bytes_, " bytes");
  }
  if (contributor_of(group, open, rank) == kNobody ||
      (open.participants == wire::Participants::kPair &&
       (open.pair_a >= open.pair_b || open.pair_b >= group.size()))) {
    return wrong("between ranks ", open.pair_a, " and ", open.pair_b);
  }
  if (open.workers > group.size()) return wrong("for ", open.workers, " workers");
  if (open.shard_bytes / segment_bytes_ >= kMostSegments) {
    return wrong("with a shard of ", open.shard_bytes, " bytes");
  }
  return {};
}

Result<Operation*> Aggregator::add(const Key& key, std::shared_ptr<JobGroup> group,
                                   const wire::Open& open, uint32_t rank) {
  const uint32_t segments = plan::segment_count(open.shard_bytes, segment_bytes_);
  if (open_[rank] >= most_open_ || segments_ + segments > kMostSegments) {
    return breach("rank ", rank, " opens '", open.name, "' with ", segments,
                  " segments in addition to ", open_[rank], " operations of its own and ",
                  segments_, " segments in total");
  }
  auto op = std::make_unique<Operation>();
  op->key = key;
  op->open = open;
  op->since = op->called = now_();
  op->expected = op->unopened = expected_by(group->members, open);
  if (is_sparse(open.dtype)) op->together = op->expected;  // partial sums would have to be dense
  op->compares = op->expected > 1 && !key.outlives_members();
  op->group = std::move(group);
  op->contributors.resize(op->expected);
  op->first_rank = rank;
  op->segments = segments;
  op->blocks.assign((segments + kBlockSegments - 1) / kBlockSegments, nullptr);
  ++open_[rank];
  segments_ += segments;
  observe::Entry entry;
  entry.kind = observe::Kind::kSum;
  entry.group = key.group;
  entry.stream = key.stream;
  entry.round = key.round;
  entry.buffer = key.buffer;
  entry.bytes = open.shard_bytes;
  entry.at[static_cast<size_t>(observe::Moment::kCalled)] = op->called;
  entry.set_name(open.name);
  op->mark = {&recorder_, recorder_.begin(entry)};
  if (goes_on_without(*op)) {
    for (const uint32_t lost : lost_) op->unopened -= op->group->members.has(lost);
  }
  return (operations_[key] = std::move(op)).get();
}

// Another contributor has opened the operation, or never will.
void Aggregator::opened(Operation& op) {
  if (--op.unopened == 0) op.mark.at(observe::Moment::kReady, now_());
}

Status Aggregator::open(const Key& key, wire::Open open, uint32_t rank) {
  const std::shared_ptr<JobGroup> group = groups_.find(key.group);
  if (!group) {
    return breach("rank ", rank, " opens '", open.name, "' in group ", key.group,
                  ", which it did not define");
  }
  HERRING_RETURN_IF_ERROR(check(group->members, open, rank));
  std::vector<Slot*> over;
  Status status;
  {
    std::lock_guard lock(mutex_);
    status = open_locked(key, group, std::move(open), rank, over);
  }
  for (Slot* slot : over) result_sent(*slot);
  return status;
}

Status Aggregator::open_locked(const Key& key, const std::shared_ptr<JobGroup>& group,
                               wire::Open open, uint32_t rank, std::vector<Slot*>& over) {
  const auto differs = [](const wire::Open& a, const wire::Open& b) {
    return a.dtype != b.dtype || a.reduction != b.reduction || a.participants != b.participants ||
           a.shard_bytes != b.shard_bytes || a.pair_a != b.pair_a || a.pair_b != b.pair_b;
  };
  if (group->called_off && !key.outlives_members()) return {};
  if (!open.stays && has_moved(key, *group)) return {};
  const auto found = operations_.find(key);
  Operation* op = found != operations_.end() ? found->second.get() : nullptr;
  if (op == nullptr) {
    auto added = add(key, group, open, rank);
    if (!added.ok()) return added.status();
    op = *added;
  } else if (differs(op->open, open)) {
    const wire::Open& first = op->open;
    return {Code::kMismatch,
            concat("ranks disagree about '", first.name, "'", group->members.suffix(), ": ",
                   cluster_.describe_rank(rank),
                   " pushes ", open.shard_bytes, " bytes of ", herring::name_of(open.dtype), " (",
                   herring::name_of(open.reduction.op), "); others push ", first.shard_bytes,
                   " bytes of ", herring::name_of(first.dtype), " (",
                   herring::name_of(first.reduction.op), ")", wire::kMakeSameCall)};
  }
  // Each local rank of a node and each flow of a rank opens the operation; only the first one
  // counts.
  const uint32_t contributor = contributor_of(group->members, open, rank);
  if (!std::exchange(op->contributors[contributor].opened, true)) {
    op->workers += open.workers;
    opened(*op);
    note_later(key, contributor, over);
  }
  uint32_t& in_result = op->contributors[contributor].result_workers;
  in_result = std::max(in_result, open.result_workers);
  if (open.again && !std::exchange(op->again, true)) again_.push_back(op);
  op->open.deadline = shorter(op->open.deadline, open.deadline);
  return {};
}

Slot* Aggregator::slot_of(const Operation& op, uint32_t segment) {
  const Block* block = op.blocks[segment / kBlockSegments];
  return block == nullptr ? nullptr : block->slots[segment % kBlockSegments];
}

bool Aggregator::is_done(const Operation& op, uint32_t segment) {
  const Block* block = op.blocks[segment / kBlockSegments];
  return block == kAllReleased ||
         (block != nullptr && (block->done >> segment % kBlockSegments & 1) != 0);
}

void Aggregator::mark_done(const Slot& slot) {
  slot.op->blocks[slot.segment / kBlockSegments]->done |= uint64_t{1}
                                                          << slot.segment % kBlockSegments;
}

Result<Aggregator::Begun> Aggregator::begin(const wire::FrameHeader& header, uint32_t rank,
                                            Peer* from, transport::Destinations& out,
                                            Slot** slots) {
  const Key key{header.stream, header.round, header.buffer, header.group, header.home,
                header.epoch};
  std::lock_guard lock(mutex_);
  const auto found = operations_.find(key);
  if (found == operations_.end()) {
    const std::shared_ptr<JobGroup> group = groups_.find(header.group);
    if (group && group->called_off && group->members.has(rank)) return Begun::kCalledOff;
    if (group && has_moved(key, *group)) return Begun::kMoved;
    // Nobody lacks this result any more. The rank that gives it could not know.
    const bool gives = header.flags & wire::kFlagGives;
    if (gives && group && group->members.has(rank)) return Begun::kMoved;
    return breach("rank ", rank, " sent data for an operation that it did not open");
  }
  Operation& op = *found->second;
  // This applies whether the operation was opened before or after the group was called off.
  if (op.moved) return Begun::kMoved;
  if (op.group->called_off && !goes_on_without(op) && op.group->members.has(rank)) {
    return Begun::kCalledOff;
  }
  const uint32_t contributor = contributor_of(op.group->members, op.open, rank);
  const uint64_t first = header.first_segment, count = header.segments;
  if (contributor == kNobody || !op.contributors[contributor].opened ||
      count > transport::Destinations::kMaxPieces || first + count > op.segments) {
    return breach("rank ", rank, " sent segments ", first, "+", count, " of '", op.open.name,
                  "', which has ", op.segments);
  }
  const uint64_t begin = first * segment_bytes_;
  const uint64_t end = std::min((first + count) * segment_bytes_, op.open.shard_bytes);
  const bool empty = header.flags & wire::kFlagEmpty;
  const bool gives = header.flags & wire::kFlagGives;
  const uint64_t bytes = gives ? result_bytes(end - begin, op.open.dtype) : end - begin;
  if (header.payload != (empty ? 0 : bytes) || (gives && (empty || !op.again))) {
    return breach("rank ", rank, " sent ", header.payload, " bytes, but '", op.open.name,
                  "' needs ", bytes);
  }
  for (auto s = static_cast<uint32_t>(first); s < first + count; ++s) {
    const Slot* slot = slot_of(op, s);
    if (is_done(op, s) ||
        (slot != nullptr && slot->contributions[contributor].state != Contribution::kNone)) {
      return breach("rank ", rank, " sent segment ", s, " of '", op.open.name, "' twice");
    }
  }
  for (auto s = static_cast<uint32_t>(first); s < first + count; ++s) {
    Slot* slot = slot_of(op, s);
    if (slot == nullptr) slot = take_slot(op, s);
    Contribution& contribution = slot->contributions[contributor];
    contribution.from = from;
    contribution.rank = rank;
    contribution.state = Contribution::kReceiving;
    contribution.wants_result = header.flags & wire::kFlagWant;
    contribution.gives = gives;
    if (!empty) {
      contribution.lane = pool_of(*slot, contribution).take();
      ++slot->added;
      out.add(contribution.lane, gives ? slot->result_bytes : slot->bytes);
    }
    slots[s - first] = slot;
  }
  return Begun::kTaken;
}

Slot* Aggregator::take_slot(Operation& op, uint32_t segment) {
  if (free_slots_.empty()) {
    all_slots_.push_back(std::make_unique<Slot>());
    free_slots_.push_back(all_slots_.back().get());
  }
  Slot* slot = free_slots_.back();
  free_slots_.pop_back();
  const uint64_t begin = uint64_t{segment} * segment_bytes_;
  slot->op = &op;
  ++op.slots;
  slot->segment = segment;
  slot->bytes = static_cast<uint32_t>(std::min(segment_bytes_, op.open.shard_bytes - begin));
  slot->result_bytes = static_cast<uint32_t>(result_bytes(slot->bytes, op.open.dtype));
  slot->groups_done = 0;
  const size_t times = (result_bytes(kPackBytes, op.open.dtype) + kPackBytes - 1) / kPackBytes;
  slot->results = &pool_for(times);
  slot->result = nullptr;
  slot->added = 0;
  slot->arrived = 0;
  slot->newest = 0;
  slot->called_off = slot->given = slot->over = slot->unread = false;
  slot->combining = 0;
  slot->contributions.assign(op.expected, {});
  const uint32_t groups = (op.expected + op.together - 1) / op.together;
  slot->groups.assign(groups, {});
  for (uint32_t g = 0; g < groups; ++g) {
    slot->groups[g].members = std::min(op.together, op.expected - g * op.together);
  }
  Block*& block = op.blocks[segment / kBlockSegments];
  if (block == nullptr) {
    if (free_blocks_.empty()) {
      all_blocks_.push_back(std::make_unique<Block>());
      free_blocks_.push_back(all_blocks_.back().get());
    }
    block = free_blocks_.back();
    free_blocks_.pop_back();
    *block = {};
  }
  block->slots[segment % kBlockSegments] = slot;
  if (goes_on_without(op)) {
    for (uint32_t rank : lost_) {
      const uint32_t index = op.group->members.index_of(rank);
      if (index == control::Group::kNobody) continue;
      slot->contributions[index].state = Contribution::kLost;
      Subtree& group = slot->groups[index / op.together];
      if (++group.arrived == group.members && groups > 1) ++slot->groups_done;
    }
  }
  return slot;
}

// Returns whether the operation goes on without members that are gone: only a round of a partial
// all-reduce does. Other operations fail at the workers, and must not complete before the workers
// know.
bool Aggregator::goes_on_without(const Operation& op) {
  return op.key.outlives_members() &&
         op.open.participants == wire::Participants::kRanks;
}

void Aggregator::arrived(Slot& slot, uint32_t rank, Nanos now) {
  settle(slot, contributor_of(slot.op->group->members, slot.op->open, rank), Contribution::kHere,
         now);
}

// Counts who came last, as far as others have waited for it.
void Aggregator::compare(Slot& slot, uint32_t rank, Nanos now) {
  observe::Lateness& lateness = lateness_[rank];
  ++lateness.segments;
  if (slot.arrived == slot.op->expected && !slot.called_off) {
    ++lateness.last_segments;
    // Proxies read the clock before they lock the table, so moments may come out of order.
    lateness.segments_waited += std::max<Nanos>(now - slot.newest, 0);
  }
}

// Nothing more of this contribution will come.
void Aggregator::settle(Slot& slot, uint32_t contributor, Contribution::State state, Nanos now) {
  uint32_t group_index;
  std::vector<uint32_t> answers;  // of a slot whose result was given
  bool given = false, over = false;
  {
    std::lock_guard lock(mutex_);
    moved_ = std::max(moved_, now);
    Contribution& contribution = slot.contributions[contributor];
    contribution.state = state;
    // Threads that send a given result read this.
    const bool goes_on = goes_on_without(*slot.op) && !slot.op->moved;
    if (state == Contribution::kLost && !slot.given && !goes_on) slot.called_off = true;
    slot.op->broken |= slot.called_off;
    ++slot.arrived;
    if (state == Contribution::kHere) {
      if (slot.op->compares) compare(slot, contribution.rank, now);
      slot.newest = std::max(slot.newest, now);
      slot.op->newest = std::max(slot.op->newest, now);
    }
    ++slot.op->contributors[contributor].arrived;
    if (contribution.gives && state == Contribution::kHere && !slot.given) {
      take_given(slot, contributor);
    }
    given = slot.given;
    if (given) {
      if (contribution.lane != nullptr) {
        pool_of(slot, contribution).give(std::exchange(contribution.lane, nullptr));
      }
      for (uint32_t c = 0; c < slot.contributions.size(); ++c) {
        Contribution& one = slot.contributions[c];
        if (one.state != Contribution::kHere || std::exchange(one.answered, true)) continue;
        answers.push_back(c);
      }
      slot.results_pending.fetch_add(static_cast<uint32_t>(answers.size()),
                                     std::memory_order_relaxed);
      over = end_given(slot);
    } else {
      group_index = contributor / slot.op->together;
      Subtree& group = slot.groups[group_index];
      if (++group.arrived < group.members) return;
      if (slot.groups.size() == 1) {
        mark_done(slot);
      } else {
        group.combining = true;
        ++slot.combining;
      }
    }
  }
  if (given) {
    if (!answers.empty()) deliver_(slot, answers);
    if (over) result_sent(slot);
    return;
  }
  // From here on, no other thread accesses this group (or this slot, if it has only one group).
  if (slot.groups.size() > 1) {
    combine_group(slot, group_index);
    std::lock_guard lock(mutex_);
    Subtree& group = slot.groups[group_index];
    group.combining = false;
    --slot.combining;
    given = slot.given;
    if (given) {
      // The result came meanwhile, so nobody needs the sum.
      if (group.partial != nullptr) {
        group.pool->give(std::exchange(group.partial, nullptr));
      }
      over = end_given(slot);
    } else {
      if (++slot.groups_done < slot.groups.size()) return;
      mark_done(slot);
    }
  }
  if (given) {
    if (over) result_sent(slot);
    return;
  }
  finish(slot);
  deliver_(slot, {});
  result_sent(slot);  // deliver_ may have found that nobody is left to send the result to
}

LanePool& Aggregator::pool_for(size_t times) {
  return times <= 1 ? lanes_ : times == 2 ? wide_lanes_ : widest_lanes_;
}

LanePool& Aggregator::pool_of(const Slot& slot, const Contribution& contribution) {
  return contribution.gives ? *slot.results : lanes_;
}

void Aggregator::combine_group(Slot& slot, uint32_t group_index) {
  const wire::Open& open = slot.op->open;
  Subtree& group = slot.groups[group_index];
  const void* sources[kTreeGroup];
  char* lanes[kTreeGroup];
  size_t n = 0;
  for (uint32_t i = 0; i < group.members; ++i) {
    if (char*& lane = slot.contributions[group_index * kTreeGroup + i].lane) {
      lanes[n] = lane;
      sources[n++] = std::exchange(lane, nullptr);
    }
  }
  if (n == 0) return;
  const DType accumulator = accumulator_of(open.dtype);
  group.pool = &pool_for(is_packed(open.dtype) ? 4 : size_of(accumulator) / size_of(open.dtype));
  const bool wide = group.pool != &lanes_;
  if (wide) {
    std::lock_guard lock(mutex_);
    group.partial = group.pool->take();
  } else {
    group.partial = lanes[0];
  }
  const reduce::Stage stage{open.dtype, accumulator, open.reduction.op, open.reduction.prescale};
  reduce::combine(sources, n, group.partial, numbers_in(slot.bytes, open.dtype), stage);
  std::lock_guard lock(mutex_);
  for (size_t i = wide ? 0 : 1; i < n; ++i) lanes_.give(lanes[i]);
}

// Computes and rounds the result: from the lanes if there is one group, otherwise from partial
// sums.
void Aggregator::finish(Slot& slot) {
  const wire::Open& open = slot.op->open;
  slot.results_pending.store(
      1 + static_cast<uint32_t>(std::count_if(
          slot.contributions.begin(), slot.contributions.end(),
          [](const Contribution& one) { return one.state != Contribution::kLost; })),
      std::memory_order_relaxed);
  const bool single = slot.groups.size() == 1;
  const size_t count = numbers_in(slot.bytes, open.dtype);
  const void* few[64];
  std::vector<const void*> many;
  const size_t limit = single ? slot.op->expected : slot.groups.size();
  const void** sources = few;
  if (limit > 64) {
    many.resize(limit);
    sources = many.data();
  }
  size_t n = 0;
  for (size_t i = 0; i < limit; ++i) {
    const char* source = single ? slot.contributions[i].lane : slot.groups[i].partial;
    if (source != nullptr) sources[n++] = source;
  }
  bool apart = slot.results != &lanes_;  // the result fits into none of the sources
  for (const Subtree& group : slot.groups) apart |= group.pool != nullptr && group.pool != &lanes_;
  if (n == 0 || apart) {
    std::lock_guard lock(mutex_);
    slot.result = slot.results->take();
  } else {
    slot.result = static_cast<char*>(const_cast<void*>(sources[0]));
  }
  reduce::Stage stage = reduce::whole(open.dtype, open.reduction, slot.op->workers);
  if (!single) {
    stage.in = accumulator_of(open.dtype);
    stage.prescale = 1.0;
  }
  if (n == 0) {
    std::memset(slot.result, 0, slot.result_bytes);  // nobody had anything to add
  } else {
    reduce::combine(sources, n, slot.result, count, stage);
  }
  std::lock_guard lock(mutex_);
  for (Contribution& contribution : slot.contributions) {
    if (contribution.lane != nullptr && contribution.lane != slot.result) {
      lanes_.give(contribution.lane);
    }
    contribution.lane = nullptr;
  }
  for (Subtree& group : slot.groups) {
    if (group.partial != nullptr && group.partial != slot.result) {
      group.pool->give(group.partial);
    }
    group.partial = nullptr;
  }
  Operation& op = *slot.op;
  if (++op.combined == op.segments) op.mark.at(observe::Moment::kSummed, now_());
}

void Aggregator::result_unread(Slot& slot) {
  {
    std::lock_guard lock(mutex_);
    slot.unread = true;
  }
  result_sent(slot);
}

void Aggregator::result_sent(Slot& slot) {
  if (slot.results_pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::lock_guard lock(mutex_);
  const Nanos now = now_();
  moved_ = std::max(moved_, now);
  Operation& op = *slot.op;
  if (!slot.unread) slot.results->give(slot.result);
  Block*& block = op.blocks[slot.segment / kBlockSegments];
  block->slots[slot.segment % kBlockSegments] = nullptr;
  free_slots_.push_back(&slot);
  ++op.released;
  --op.slots;
  const uint32_t first = slot.segment / kBlockSegments * kBlockSegments;
  if (++block->released == std::min(kBlockSegments, op.segments - first)) {
    free_blocks_.push_back(block);
    block = kAllReleased;
  }
  if (op.released == op.segments || (has_ended(op) && op.slots == 0)) erase(op, now);
}

void Aggregator::erase(Operation& op, Nanos now) {
  const bool whole = op.released == op.segments && !op.broken;
  op.mark.end(now, whole ? Code::kOk : Code::kPeerLost);
  const Nanos handed = op.handed.load(std::memory_order_relaxed);
  if (whole && handed != 0) {
    ++sums_;
    sum_time_ += std::max<Nanos>(handed - op.newest, 0);
  }
  for (Block* block : op.blocks) {
    if (block != nullptr && block != kAllReleased) free_blocks_.push_back(block);
  }
  --open_[op.first_rank];
  segments_ -= op.segments;
  if (op.again) std::erase(again_, &op);
  operations_.erase(op.key);
}

}  // namespace herring::server
