#include "tests/random/program.h"

#include <algorithm>

namespace herring::random_test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                             DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                             DType::kUInt8,   DType::kBool};

class Maker {
 public:
  Maker(uint64_t seed, uint32_t index, const Layout& layout, uint32_t features)
      : random_({seed, 2, index}), group_random_({seed, 3, index}),
        join_random_({seed, 4, index}), leave_random_({seed, 5, index}),
        message_random_({seed, 6, index}), packed_random_({seed, 7, index}),
        sparse_random_({seed, 8, index}),
        layout_(layout), features_(features) {
    program_.index = index;
    std::vector<uint32_t> all;
    for (uint32_t rank = 0; rank < layout.size; ++rank) all.push_back(rank);
    program_.groups.push_back({"", std::move(all), false});
  }

  Program make(bool may_end) {
    if (has(kGroups)) make_groups(may_end);
    if (has(kPlans)) make_plans();
    program_.lanes.resize(layout_.lanes);
    for (uint32_t lane = 0; lane < layout_.lanes; ++lane) make_lane(lane);
    mark_last_rounds();
    if (may_end) choose_ending();
    if (may_end && program_.ending == Ending::kNone) choose_departure();
    return std::move(program_);
  }

 private:
  bool has(Feature feature) const { return features_ & feature; }

  // Picks sizes around which behaviour changes: nothing, one element, where operations no longer
  // travel with their announcement, where a segment ends, and sometimes megabytes.
  uint64_t some_elements(DType dtype, bool large) {
    const uint64_t item = size_of(dtype);
    const auto near = [&](uint64_t bytes) {
      return std::max<int64_t>(0, static_cast<int64_t>(bytes / item) +
                                      static_cast<int64_t>(random_.below(3)) - 1);
    };
    const uint64_t kind = random_.below(100);
    if (kind < 8) return 0;
    if (kind < 16) return 1;
    if (kind < 60 || !large) return random_.from_to(2, 300);
    if (kind < 78) return near(layout_.small_bytes);
    if (kind < 92) return near(layout_.segment_bytes * random_.from_to(1, 12 * layout_.nodes));
    if (kind < 98) return random_.from_to(1, 200'000) / item;
    return random_.from_to(1, 4'000'000) / item;
  }

  // Picks any ranks, those of a node, one of each node, all, one, or those that are not in the last
  // group.
  std::vector<uint32_t> some_ranks() {
    Random& random = group_random_;
    const uint32_t size = layout_.size;
    const auto in_last = [&](uint32_t rank) {
      const auto& last = program_.groups.back().ranks;
      return std::binary_search(last.begin(), last.end(), rank);
    };
    const uint64_t kind = random.below(10);
    const uint32_t node = layout_.node_of[random.below(size)];
    const double share = random.pick({0.3, 0.5, 0.8});
    std::vector<bool> node_has(layout_.nodes, false);
    std::vector<uint32_t> ranks;
    for (const uint32_t rank : random.order(size)) {
      const uint32_t own = layout_.node_of[rank];
      const bool chosen = kind < 4    ? random.chance(share)
                          : kind == 4 ? own == node
                          : kind == 5 ? !node_has[own]
                          : kind == 6 ? true
                          : kind == 7 ? ranks.empty()
                                      : !in_last(rank);
      if (!chosen) continue;
      node_has[own] = true;
      ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(static_cast<uint32_t>(random.below(size)));
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  // Names may repeat: name and ranks together identify a group.
  uint32_t add_group(std::string name, std::vector<uint32_t> ranks, bool formed_by_lane) {
    program_.groups.push_back({std::move(name), std::move(ranks), formed_by_lane});
    return static_cast<uint32_t>(program_.groups.size() - 1);
  }

  void make_groups(bool may_end) {
    if (group_random_.chance(0.1)) return;
    for (uint64_t n = group_random_.from_to(1, 4); n > 0; --n) {
      std::vector<uint32_t> ranks = some_ranks();
      const auto& groups = program_.groups;
      const bool twice = std::any_of(groups.begin() + 1, groups.end(), [&](const GroupSpec& one) {
        return one.ranks == ranks;
      });
      const std::string number = twice ? std::to_string(groups.size()) : "";
      add_group(concat("p", program_.index, ".group", number), std::move(ranks), false);
    }
    first_group_ = may_end && has(kEndings) && group_random_.chance(0.4) ? 1 : 0;
    if (may_end && (has(kLeaving) || has(kDeaths)) && leave_random_.chance(0.2)) first_group_ = 1;
    usable_.assign(program_.groups.size(), Usable{});
    program_.all_take_part = first_group_ == 0;
  }

  // Picks a group for a step in batch `b` of a lane.
  uint32_t some_group(uint32_t lane, uint32_t b) {
    if (program_.groups.size() == 1) return 0;
    if (first_group_ == 0 && group_random_.chance(0.4)) return 0;
    std::vector<uint32_t> groups;
    for (uint32_t g = 1; g < usable_.size(); ++g) {
      const Usable& usable = usable_[g];
      if (usable.lane == kAnyLane || (usable.lane == lane && usable.from <= b)) groups.push_back(g);
    }
    return groups[group_random_.below(groups.size())];
  }

  // Forms a new group or one of the first groups again. Only one lane does so, because calls of a
  // name have an order.
  uint32_t form_step(uint32_t lane, uint32_t b) {
    std::string name = concat("p", program_.index, ".l", lane, ".group", program_.groups.size());
    std::vector<uint32_t> ranks = some_ranks();
    const auto again = static_cast<uint32_t>(group_random_.below(usable_.size()));
    if (again % layout_.lanes == lane && usable_[again].lane == kAnyLane && again > 0 &&
        !std::exchange(usable_[again].formed_again, true)) {
      name = program_.groups[again].name;
      ranks = program_.groups[again].ranks;
    }
    const uint32_t group = add_group(std::move(name), std::move(ranks), true);
    usable_.push_back({lane, b + kDeferral + 1, false});
    Step step = blank(Kind::kFormGroup, group);
    for (Part& part : step.parts) part.drops = false;
    step.name = program_.groups[group].name;
    return add(std::move(step));
  }

  PlanSpec some_plan(uint32_t number) {
    PlanSpec plan;
    plan.group = some_group(kAnyLane, 0);
    plan.name = concat("p", program_.index, ".plan", number);
    const bool average = random_.chance(0.6);
    plan.op = average ? ReduceOp::kAverage
                      : random_.pick({ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax});
    plan.narrow = random_.chance(0.25);
    plan.wire = random_.pick({DType::kFloat16, DType::kBFloat16});
    if (random_.chance(0.7)) {
      plan.buffer_bytes = layout_.segment_bytes * random_.from_to(1, 24);
    }
    const bool mixed = random_.chance(0.4);
    for (uint64_t n = random_.from_to(1, 12); n > 0; --n) {
      const DType dtype = !mixed ? DType::kFloat32
                                 : average ? kDTypes[random_.below(4)] : kDTypes[random_.below(10)];
      plan.gradients.push_back({some_elements(dtype, has(kLarge)), dtype});
    }
    if (random_.chance(0.5)) plan.note_bytes = some_elements(DType::kUInt8, false);
    constexpr int kPacked = static_cast<int>(kFirstSparse);
    if (has(kEightBits) && packed_random_.chance(0.3)) {
      pack(plan, kNumDTypes, kPacked, packed_random_);
    }
    if (has(kTopK) && sparse_random_.chance(0.3)) {
      pack(plan, kPacked, kNumWireDTypes, sparse_random_);
    }
    return plan;
  }

  // Lets a plan travel in packs of a dtype from `first` to before `end`, if its segments are whole
  // packs.
  void pack(PlanSpec& plan, int first, int end, Random& random) {
    if (layout_.segment_bytes % kPackBytes != 0) return;
    plan.narrow = true;
    plan.wire = static_cast<DType>(first + static_cast<int>(random.below(end - first)));
    if (plan.op != ReduceOp::kAverage) plan.op = ReduceOp::kSum;
    for (plan::Gradient& gradient : plan.gradients) {
      if (!is_float(gradient.dtype) || gradient.dtype == DType::kFloat64) {
        gradient.dtype = random.pick({DType::kFloat32, DType::kBFloat16});
      }
    }
  }

  void make_plans() {
    for (uint64_t n = random_.below(3); n > 0; --n) {
      program_.plans.push_back(some_plan(static_cast<uint32_t>(program_.plans.size())));
    }
  }

  void make_lane(uint32_t lane) {
    std::vector<uint32_t> plans;  // this lane's: only one thread may begin rounds
    for (uint32_t p = lane; p < program_.plans.size(); p += layout_.lanes) plans.push_back(p);
    std::vector<uint32_t> used_plans(plans.size(), 0);
    std::vector<std::map<uint32_t, uint32_t>> used_names(6);  // by group: the last batch
    auto& batches = program_.lanes[lane];
    const uint64_t count = random_.from_to(2, 10);
    for (uint32_t b = kDeferral + 1; batches.size() < count; ++b) {
      std::vector<uint32_t> batch;
      if (has(kLateness) && random_.chance(0.12)) {
        batch.push_back(add(late_step(lane, some_group(lane, b))));
      } else if (has(kPartials) && random_.chance(0.05)) {
        batch.push_back(add(partial_step(lane, some_group(lane, b))));
      } else {
        const uint64_t most = random_.chance(0.4) ? 1 : random_.from_to(2, 8);
        while (batch.size() < most) {
          const uint32_t group = some_group(lane, b);
          Step step = some_step(group);
          // A name or a plan is used again only when no rank can still wait for its last use.
          const size_t name = random_.below(2 * used_names.size());
          if (name < used_names.size() && used_names[name][group] + kDeferral < b) {
            used_names[name][group] = b;
            step.name = concat("p", program_.index, ".l", lane, ".again", name);
            for (Part& part : step.parts) part.drops = false;
          }
          batch.push_back(add(std::move(step)));
        }
        for (size_t p = 0; p < plans.size(); ++p) {
          if (used_plans[p] + kDeferral >= b || !random_.chance(0.5)) continue;
          used_plans[p] = b;
          batch.push_back(add(planned_step(plans[p])));
        }
        if (program_.groups.size() > 1 && group_random_.chance(0.12)) {
          batch.push_back(form_step(lane, b));
        }
      }
      if (has(kMessages)) add_messages(lane, b, batch);
      batches.push_back(std::move(batch));
      if (has(kJoins) && join_random_.chance(0.2)) join_batch(lane, b, batches);
    }
  }

  void add_messages(uint32_t lane, uint32_t b, std::vector<uint32_t>& batch) {
    if (layout_.size == 1 || !message_random_.chance(0.4)) return;
    std::swap(random_, message_random_);
    for (uint64_t n = random_.from_to(1, 5); n > 0; --n) {
      const uint32_t group = some_group(lane, b);
      const std::vector<uint32_t>& members = program_.groups[group].ranks;
      if (members.size() == 1) continue;
      const std::vector<uint32_t> order = random_.order(members.size());
      Step step = blank(Kind::kMessage, group);
      step.ranks = {members[std::min(order[0], order[1])], members[std::max(order[0], order[1])]};
      step.parts.resize(2);
      step.root = order[0] < order[1] ? 0 : 1;
      step.any_source = random_.chance(0.3);
      step.dtype = kDTypes[random_.below(10)];
      step.rows.assign(2, some_elements(step.dtype, has(kLarge)));
      if (has(kMismatches) && random_.chance(0.04)) step.parts[0].contradicts = true;
      batch.push_back(add(std::move(step)));
    }
    std::swap(random_, message_random_);
  }

  // Uses a group that no other lane uses: a rank that has joined calls nothing in it until all have
  // joined.
  void join_batch(uint32_t lane, uint32_t b, std::vector<std::vector<uint32_t>>& batches) {
    std::vector<uint32_t> groups;
    if (layout_.lanes == 1 && first_group_ == 0) groups.push_back(0);
    for (uint32_t g = 1; g < usable_.size(); ++g) {
      const bool own = usable_[g].lane == lane && usable_[g].from <= b;
      if (own || (layout_.lanes == 1 && usable_[g].lane == kAnyLane)) groups.push_back(g);
    }
    if (groups.empty()) return;
    const uint32_t group = groups[join_random_.below(groups.size())];
    std::swap(random_, join_random_);
    std::vector<uint32_t> batch;
    const double share = random_.pick({0.2, 0.5, 0.9});
    for (uint64_t n = random_.below(6); n > 0; --n) {
      Step step = blank(Kind::kAllreduce, group);
      step.dtype = kDTypes[random_.below(10)];
      choose_reduction(step);
      step.rows.assign(step.size(), some_elements(step.dtype, has(kLarge)));
      for (Part& part : step.parts) part.active = random_.chance(share);
      if (random_.chance(0.3)) {  // a name that all ranks may call before and after
        step.name = concat("p", program_.index, ".l", lane, ".joined", n);
        for (Part& part : step.parts) part.drops = false;
      }
      batch.push_back(add(std::move(step)));
    }
    Step join = blank(Kind::kJoin, group);
    for (Part& part : join.parts) part.drops = false;
    batch.push_back(add(std::move(join)));
    batches.push_back(std::move(batch));
    std::swap(random_, join_random_);
  }

  uint32_t add(Step step) {
    step.id = static_cast<uint32_t>(program_.steps.size());
    step.salt = random_.next();
    if (step.name.empty()) step.name = concat("p", program_.index, ".s", step.id);
    program_.steps.push_back(std::move(step));
    return program_.steps.back().id;
  }

  Step blank(Kind kind, uint32_t group) {
    Step step;
    step.kind = kind;
    step.group = group;
    step.ranks = program_.groups[group].ranks;
    step.parts.resize(step.size());
    step.rows.assign(step.size(), 1);
    const bool heap = random_.chance(0.5);
    for (Part& part : step.parts) {
      part.shared = heap && random_.chance(0.8);
      if (has(kDrops) && random_.chance(0.03)) {
        part.drops = true;
        part.forgets = random_.chance(0.5);
      }
    }
    return step;
  }

  void choose_reduction(Step& step) {
    step.op = random_.pick({ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                            ReduceOp::kMax, ReduceOp::kProduct});
    if (step.op == ReduceOp::kAverage) step.dtype = kDTypes[random_.below(4)];
    const bool scales = step.op == ReduceOp::kSum || step.op == ReduceOp::kAverage;
    if (scales && is_float(step.dtype) && random_.chance(0.2)) {
      step.prescale = random_.pick({0.5, 1.0, 2.0});
      step.postscale = random_.pick({0.5, 1.0, 2.0});
    }
  }

  Step some_step(uint32_t group) {
    const Kind kind = random_.pick({Kind::kAllreduce, Kind::kAllreduce, Kind::kAllreduce,
                                    Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather,
                                    Kind::kReduceScatter, Kind::kAlltoall, Kind::kBarrier});
    Step step = blank(kind, group);
    step.dtype = kDTypes[random_.below(10)];
    const uint32_t size = step.size();
    const uint64_t elements = some_elements(step.dtype, has(kLarge));
    switch (kind) {
      case Kind::kAllreduce:
        choose_reduction(step);
        step.rows.assign(size, elements);
        if (has(kAlgorithms) && random_.chance(0.12)) {
          step.algorithm = some_algorithm();
        }
        break;
      case Kind::kBroadcast:
        step.root = static_cast<uint32_t>(random_.below(size));
        step.rows.assign(size, elements);
        break;
      case Kind::kAllgather:  // ragged
        step.row = random_.from_to(1, 5);
        for (uint64_t& rows : step.rows) {
          rows = random_.chance(0.2) ? 0 : random_.below(elements / (step.row * size) * 2 + 2);
        }
        break;
      case Kind::kReduceScatter:
        choose_reduction(step);
        step.row = random_.from_to(1, 5);
        step.rows.assign(size, elements / step.row);
        break;
      case Kind::kAlltoall: make_splits(step, elements); break;
      default: break;
    }
    if (has(kMismatches) && size > 1 && random_.chance(0.04) && kind != Kind::kBarrier &&
        kind != Kind::kAllgather && kind != Kind::kAlltoall) {
      step.parts[random_.below(size)].contradicts = true;
    }
    const bool by_servers = step.algorithm == wire::Algorithm::kHerring;
    const bool can = (kind == Kind::kAllreduce && by_servers) || kind == Kind::kBroadcast;
    step.listed = has(kLists) && can && step.salt % 3 == 0;
    return step;
  }

  // Returns one that needs no servers.
  wire::Algorithm some_algorithm() {
    return random_.pick({wire::Algorithm::kServer, wire::Algorithm::kTree, wire::Algorithm::kRing,
                         wire::Algorithm::kButterfly, wire::Algorithm::kDoubling});
  }

  // The splits may be skewed: some ranks get nothing, and one may get nearly everything.
  void make_splits(Step& step, uint64_t elements) {
    const uint32_t size = step.size();
    step.row = random_.from_to(1, 3);
    const uint64_t each = elements / (step.row * size) + 1;
    step.splits.assign(size, std::vector<uint64_t>(size));
    const bool skewed = random_.chance(0.5);
    for (uint32_t from = 0; from < size; ++from) {
      step.rows[from] = 0;
      const uint64_t favourite = random_.below(size);
      for (uint32_t to = 0; to < size; ++to) {
        uint64_t rows = random_.chance(0.25) ? 0 : random_.below(2 * each / size + 2);
        if (skewed && to == favourite) rows = random_.below(2 * each + 1);
        step.splits[from][to] = rows;
        step.rows[from] += rows;
      }
    }
  }

  // Every rank calls this name again and again with a short timeout, and some ranks come too late.
  // Call n of one rank must never meet call n + 1 of another.
  Step late_step(uint32_t lane, uint32_t group) {
    Step step = blank(Kind::kAllreduce, group);
    for (Part& part : step.parts) part.drops = false;
    step.name = concat("p", program_.index, ".l", lane, ".late");
    step.dtype = DType::kInt64;  // always the same: a wrong sum is worse than a mismatch
    step.rows.assign(step.size(), 16 + lane);
    step.timeout = static_cast<double>(random_.from_to(10, 60)) / 1000;
    for (Part& part : step.parts) {
      if (random_.chance(0.15)) part.late_ms = static_cast<uint32_t>(random_.from_to(1, 200));
    }
    return step;
  }

  Step partial_step(uint32_t lane, uint32_t group) {
    Step step = blank(Kind::kPartial, group);
    step.name = concat("p", program_.index, ".l", lane, ".series", program_.steps.size());
    step.dtype = random_.pick({DType::kInt64, DType::kFloat32, DType::kFloat64});
    step.rows.assign(step.size(), std::max<uint64_t>(1, some_elements(step.dtype, has(kLarge))));
    step.quorum = static_cast<uint32_t>(random_.from_to(1, step.size()));
    if (has(kAlgorithms) && random_.chance(0.4)) {
      step.algorithm = some_algorithm();
      step.quorum = random_.chance(0.5) ? 1 : (step.size() + 1) / 2;
    }
    step.rounds = static_cast<uint32_t>(random_.from_to(1, 5));
    return step;
  }

  Step planned_step(uint32_t plan) {
    Step step = blank(Kind::kPlanned, program_.plans[plan].group);
    step.plan = plan;
    step.op = program_.plans[plan].op;
    for (Part& part : step.parts) part.drops = false;
    if (random_.chance(0.3)) {
      for (Part& part : step.parts) part.active = random_.chance(0.6);
    }
    return step;
  }

  void mark_last_rounds() {
    if (!has(kCloses)) return;
    for (uint32_t plan = 0; plan < program_.plans.size(); ++plan) {
      const auto last = std::find_if(
          program_.steps.rbegin(), program_.steps.rend(),
          [&](const Step& step) { return step.kind == Kind::kPlanned && step.plan == plan; });
      if (last != program_.steps.rend()) last->closes = random_.chance(0.5);
    }
  }

  void choose_ending() {
    std::vector<Ending> endings;
    if (has(kEndings)) endings = {Ending::kAbort, Ending::kLeave};
    if (has(kTorn)) endings.push_back(Ending::kClosePlan);
    if (endings.empty() || !random_.chance(0.5)) return;
    program_.ending = endings[random_.below(endings.size())];
    program_.ending_rank = static_cast<uint32_t>(random_.below(layout_.size));
    program_.ending_ms = static_cast<uint32_t>(random_.below(30));
    program_.goes_on = program_.ending == Ending::kLeave && program_.groups.size() > 1 &&
                       group_random_.chance(0.7);
    if (program_.ending != Ending::kClosePlan) return;
    std::vector<uint32_t> rounds;
    for (const Step& step : program_.steps) {
      if (step.kind == Kind::kPlanned) rounds.push_back(step.id);
    }
    if (rounds.empty()) {
      program_.ending = Ending::kAbort;
    } else {
      program_.ending_step = rounds[random_.below(rounds.size())];
      const Step& torn = program_.steps[program_.ending_step];
      if (torn.place_of(program_.ending_rank) == Step::kNobody) {
        program_.ending_rank = torn.ranks[random_.below(torn.size())];
      }
    }
  }

  // A rank leaves or dies while others go on. Rank 0 hosts the rendezvous, and without it the job
  // ends.
  void choose_departure() {
    std::vector<Ending> endings;
    if (has(kLeaving)) endings = {Ending::kDepart, Ending::kAllLeave};
    if (has(kDeaths)) endings.push_back(Ending::kDie);
    if (endings.empty() || layout_.size == 1 || !leave_random_.chance(0.8)) return;
    program_.ending = endings[leave_random_.below(endings.size())];
    program_.ending_rank = static_cast<uint32_t>(leave_random_.from_to(1, layout_.size - 1));
    program_.ending_ms = static_cast<uint32_t>(leave_random_.below(30));
    program_.goes_on = program_.ending == Ending::kDepart ||
                       (program_.ending == Ending::kDie && program_.groups.size() > 1);
    if (program_.ending == Ending::kDie) return;
    // A rank may leave without waiting for calls that it drops, so no calls are dropped.
    for (Step& step : program_.steps) {
      for (Part& part : step.parts) part.drops = part.forgets = false;
    }
    if (program_.ending == Ending::kAllLeave) return;
    for (const auto& batches : program_.lanes) {
      for (size_t b = leave_random_.below(batches.size() + 1); b < batches.size(); ++b) {
        for (const uint32_t step : batches[b]) program_.steps[step].late = true;
      }
    }
  }

  static constexpr uint32_t kAnyLane = ~0u;
  struct Usable {
    uint32_t lane = kAnyLane, from = 0;  // usable in this lane from this batch on
    bool formed_again = false;
  };

  Random random_;
  // These features have generators of their own, so that without them seeds make the same programs
  // as before.
  Random group_random_, join_random_, leave_random_, message_random_, packed_random_;
  Random sparse_random_;
  uint32_t first_group_ = 0;     // the first group that steps may use
  std::vector<Usable> usable_;   // by group
  const Layout& layout_;
  const uint32_t features_;
  Program program_;
};

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce: return "allreduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllgather: return "allgather";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAlltoall: return "alltoall";
    case Kind::kBarrier: return "barrier";
    case Kind::kPlanned: return "round";
    case Kind::kPartial: return "series";
    case Kind::kFormGroup: return "form_group";
    case Kind::kJoin: return "join";
    case Kind::kMessage: return "message";
  }
  return "unknown";
}

bool Step::mismatched() const {
  return std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.contradicts; });
}

uint32_t Step::place_of(uint32_t rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() || *found != rank ? kNobody
                                                : static_cast<uint32_t>(found - ranks.begin());
}

std::string Step::describe() const {
  std::string text = concat("step ", id, ": ", name_of(kind), " '", name, "'");
  if (group > 0) {
    text += concat(" of group ", group, " (");
    for (const uint32_t rank : ranks) text += concat(rank == ranks[0] ? "" : " ", rank);
    text += ")";
  }
  if (late) text += " (late)";
  if (kind == Kind::kPlanned) return concat(text, " of plan ", plan);
  if (kind == Kind::kBarrier || kind == Kind::kFormGroup || kind == Kind::kJoin) return text;
  text += concat(" of ", herring::name_of(dtype), ", ", herring::name_of(op), ", ",
                 wire::name_of(algorithm), ", rows of ", row, " elements:");
  for (const uint64_t count : rows) text += concat(" ", count);
  if (kind == Kind::kMessage) {
    text += concat(", sent by rank ", ranks[root], " to rank ", ranks[1 - root]);
  }
  if (listed) text += ", as a list";
  if (prescale != 1 || postscale != 1) text += concat(", scales ", prescale, " ", postscale);
  if (timeout > 0) text += concat(", timeout ", timeout, " s");
  if (kind == Kind::kPartial) text += concat(", quorum ", quorum, ", rounds ", rounds);
  for (uint32_t place = 0; place < parts.size(); ++place) {
    const Part& part = parts[place];
    if (part.late_ms > 0) text += concat(", rank ", ranks[place], " late ", part.late_ms);
    if (part.contradicts) text += concat(", rank ", ranks[place], " contradicts");
    if (part.drops) text += concat(", rank ", ranks[place], " drops");
    if (!part.active) text += concat(", without rank ", ranks[place]);
  }
  return text;
}

Program make_program(uint64_t seed, uint32_t index, const Layout& layout, uint32_t features,
                     bool may_end) {
  return Maker(seed, index, layout, features).make(may_end);
}

}  // namespace herring::random_test
