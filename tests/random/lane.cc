#include "tests/random/lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "plan/split.h"

namespace herring::random_test {
namespace {

// For a message, address() sets the operation.
wire::Collective collective_of(const Step& step, uint32_t place) {
  const Reduction reduction{step.op, step.prescale, step.postscale};
  switch (step.kind) {
    case Kind::kAllreduce: return wire::AllReduce{reduction, step.algorithm};
    case Kind::kBroadcast: return wire::Broadcast{step.root};
    case Kind::kAllgather: return wire::AllGather{};
    case Kind::kReduceScatter: return wire::ReduceScatter{reduction, {}};
    case Kind::kAlltoall: return wire::AllToAll{step.splits[place]};
    case Kind::kJoin: return wire::Join{};
    default: return wire::Barrier{};
  }
}

// Returns contribution `number` of a rank to a series.
Values contribution(Values values, uint32_t number) {
  values.salt = mix(values.salt + number);
  return values;
}

std::string describe(const rounds::RoundInfo& info, uint32_t rank) {
  std::string text = concat("rank ", rank, ", attempt ", info.attempts, ", contributions");
  for (const partial::Contributor& one : info.contributors) {
    text += concat(" ", one.rank, ":", one.upto);
  }
  text += concat(", ", info.lost.size(), " lost", info.last ? ", the last one" : "");
  return text;
}

void add(DType dtype, const std::vector<char>& array, std::vector<char>& sum) {
  const auto add_as = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = reinterpret_cast<const T*>(array.data());
    T* to = reinterpret_cast<T*>(sum.data());
    for (size_t i = 0; i < sum.size() / sizeof(T); ++i) to[i] += from[i];
  };
  if (dtype == DType::kInt64) return add_as(static_cast<int64_t*>(nullptr));
  if (dtype == DType::kFloat64) return add_as(static_cast<double*>(nullptr));
  add_as(static_cast<float*>(nullptr));
}

}  // namespace

Rank::Lane::Lane(Rank& rank, RunningProgram& program, uint32_t lane)
    : rank_(rank), program_(program), lane_(lane),
      random_({program->plans.size() + program->steps.front().salt, rank.rank_, lane}),
      doing_(rank.seed_, concat("rank ", rank.rank_, " lane ", lane)) {}

void Rank::Lane::run() {
  const auto& batches = program_->lanes[lane_];
  for (uint32_t b = 0; b < batches.size() && !rank_.over_; ++b) {
    submit(batches[b]);
    const bool at_once = is_due(batches[b]);
    pending_.back().due = b + (random_.chance(0.3) ? random_.below(kDeferral + 1) : 0);
    while (!pending_.empty() && (at_once || pending_.front().due <= b)) finish_first();
  }
  while (!pending_.empty()) finish_first();
  end_groups();
}

// Returns whether a batch must be waited for at once: a call of the same name, or any call of its
// group, may follow.
bool Rank::Lane::is_due(const std::vector<uint32_t>& batch) const {
  const auto& steps = program().steps;
  return steps[batch.front()].timeout > 0 || steps[batch.back()].kind == Kind::kJoin;
}

void Rank::Lane::now(const char* what, const Step& step) {
  doing_.now(what, static_cast<int>(program().index), static_cast<int>(step.id), step.name);
}

// Submits all steps of a batch in an order of this rank's own. Gradients of planned rounds are made
// ready in between.
void Rank::Lane::submit(const std::vector<uint32_t>& steps) {
  pending_.emplace_back();
  std::vector<uint32_t> actions;  // steps; a planned round occurs once per part
  const Step* join = nullptr;
  for (const uint32_t id : steps) {
    const Step& step = program().steps[id];
    if (step.place_of(rank_.rank_) == Step::kNobody) continue;
    if (rank_.is_left_out(program(), step)) continue;
    // All members get the same result for a new group. If the group could not be formed, nobody
    // calls anything in it.
    if (step.group != 0 && step.kind != Kind::kFormGroup && !rank_.groups_[step.group]) continue;
    if (step.kind == Kind::kJoin) {
      join = &step;
      continue;
    }
    if (step.kind == Kind::kAllreduce && !part_of(step).active) continue;
    const size_t times = step.kind == Kind::kPlanned ? parts_of(step) : 1;
    actions.insert(actions.end(), std::max<size_t>(times, 1), id);
  }
  random_.shuffle(actions);
  std::map<uint32_t, Round> rounds;
  for (const uint32_t id : actions) {
    if (rank_.over_) return;
    const Step& step = program().steps[id];
    if (const uint32_t late_ms = part_of(step).late_ms; late_ms > 0) {
      now("is late for", step);
      std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    }
    now("calls", step);
    if (step.kind == Kind::kPlanned) {
      if (!rounds.contains(id)) rounds[id] = begin_round(step);
      if (!continue_round(step, rounds[id])) return;
    } else if (step.kind == Kind::kPartial) {
      run_series(step);
    } else if (step.kind == Kind::kFormGroup) {
      form(step);
    } else {
      call(step);
    }
  }
  if (join == nullptr || rank_.over_) return;
  now("joins", *join);
  call(*join);
}

void Rank::Lane::call(const Step& step) {
  const uint32_t place = step.place_of(rank_.rank_);
  const Part& part = step.parts[place];
  const uint64_t more = part.contradicts ? 1 : 0;
  const uint64_t rows = step.rows[place] + more;
  const uint64_t elements = rows * step.row;
  Call call{&step, &program_, nullptr, nullptr, {}};
  calls::Call made;
  made.group = rank_.groups_[step.group];
  made.what = collective_of(step, place);
  made.name = step.name;
  made.timeout = step.timeout;
  if (step.kind == Kind::kJoin) {
    made.name = wire::kJoinName;
  } else if (step.kind != Kind::kBarrier) {
    call.array = rank_.allocate(elements * size_of(step.dtype), part.shared);
    const bool silent = (step.kind == Kind::kBroadcast || step.kind == Kind::kMessage) &&
                        step.root != place;
    if (silent) {
      std::memset(call.array.data, 0xa5, elements * size_of(step.dtype));
    } else {
      fill(program_.values_of(step), rank_.rank_, 0, elements, call.array.data);
    }
    const bool in_place = step.kind == Kind::kAllreduce || step.kind == Kind::kBroadcast ||
                          step.kind == Kind::kMessage;
    made.list = step.listed;
    const uint64_t parts = step.listed ? 1 + step.salt / 3 % 4 : 1;
    char* at = call.array.data;
    for (uint32_t i = 0; i < parts; ++i) {
      const wire::Array array{step.dtype, {plan::even_split(rows, parts, i).count, step.row}};
      made.buffers.push_back({array, at, in_place ? at : nullptr});
      at += array.bytes();
    }
    if (step.kind == Kind::kMessage) address(step, made);
  }
  rank_.calls_.fetch_add(1);
  auto submitted = rank_.job_->engine().submit(std::move(made), random_.chance(0.5));
  if (!submitted.ok()) {
    rank_.release(call.array);
    return rank_.check_outcome(program_, step, submitted.status());
  }
  call.operation = std::move(*submitted);
  if (part.drops) {
    if (part.forgets) call.operation.reset();
    std::lock_guard lock(rank_.mutex_);
    rank_.dropped_.push_back(std::move(call));
    return;
  }
  pending_.back().calls.push_back(std::move(call));
}

// The tag distinguishes this message from others on their way between the two ranks.
void Rank::Lane::address(const Step& step, calls::Call& call) const {
  const bool sends = step.place_of(rank_.rank_) == step.root;
  const std::vector<uint32_t>& members = program().groups[step.group].ranks;
  const uint32_t other = step.ranks[sends ? 1 - step.root : step.root];
  const auto index = static_cast<uint32_t>(
      std::lower_bound(members.begin(), members.end(), other) - members.begin());
  // A rank that receives from any rank goes on waiting if a member has left, because other members
  // might send.
  const bool any = step.any_source && program().ending == Ending::kNone;
  if (sends) {
    call.what = wire::Send{index, step.id};
  } else {
    call.what = wire::Receive{any ? std::nullopt : std::optional(index), step.id};
  }
  call.name = concat(sends ? "send to " : "receive from ", other);
}

void Rank::Lane::form(const Step& step) {
  rank_.calls_.fetch_add(1);
  auto submitted = rank_.submit_forming(program(), step.group, random_.chance(0.5));
  if (!submitted.ok()) return rank_.check_outcome(program_, step, submitted.status());
  pending_.back().calls.push_back({&step, &program_, std::move(*submitted), nullptr, {}});
}

// Begins a round. The gradients to make ready, and the note, are in an order of this rank's own.
Rank::Lane::Round Rank::Lane::begin_round(const Step& step) {
  rank_.calls_.fetch_add(1);
  const bool active = part_of(step).active;
  rounds::Planned& plan = plan_of(step);
  if (Status status = plan.begin(active); !status.ok()) {
    rank_.check_outcome(program_, step, status);
    return {{}, true};
  }
  return {active ? random_.order(parts_of(step)) : std::vector<uint32_t>{}, false};
}

// Makes one gradient ready, or gives the note. After the last of them (or if there are none), the
// round only has to be waited for. Returns false if this rank has closed the plan and no longer
// takes part.
bool Rank::Lane::continue_round(const Step& step, Round& round) {
  if (round.failed) return true;
  rounds::Planned& plan = plan_of(step);
  std::vector<uint32_t>& left = round.left;
  const bool closes = program().ending == Ending::kClosePlan &&
                      program().ending_rank == rank_.rank_ && program().ending_step == step.id;
  if (!left.empty()) {
    const uint32_t index = left.back();
    left.pop_back();
    const bool is_note = index == plan.plan().gradients.size();
    const uint64_t elements =
        is_note ? note_bytes_of(step) : plan.plan().gradients[index].elements;
    std::string note(is_note ? elements : 0, '\0');
    if (elements > 0) {
      char* place = note.data();
      if (!is_note) {
        const plan::Placement& placement = plan.plan().placements[index];
        place = plan.arena(placement.arena).get() + placement.range.offset;
      }
      fill(program_.values_of(step, index), rank_.rank_, 0, elements, place);
    }
    if (Status status = is_note ? plan.note(note) : plan.ready(index); !status.ok()) {
      rank_.check_outcome(program_, step, status);
      left.clear();
    }
  }
  if (closes && left.size() <= plan.plan().gradients.size() / 2) {
    now("closes the plan of", step);
    rank_.plans_[step.plan].reset();
    rank_.give_up();
    return false;
  }
  const auto same = [&](const Call& call) { return call.step == &step; };
  auto& calls = pending_.back().calls;
  if (left.empty() && !rank_.over_ && std::none_of(calls.begin(), calls.end(), same)) {
    auto waiting = plan.waiting();
    if (!waiting.ok()) {
      rank_.check_outcome(program_, step, waiting.status());
    } else {
      calls.push_back({&step, &program_, nullptr, *waiting, {}});
    }
  }
  return true;
}

// Connects the ranks with those to which they signal. Returns whether all members came.
bool Rank::Lane::meet(const Step& step) {
  int32_t nothing = 0;
  char* const array = reinterpret_cast<char*>(&nothing);
  calls::Call call;
  call.group = rank_.groups_[step.group];
  call.what = wire::AllReduce{{ReduceOp::kSum}, wire::Algorithm::kDoubling};
  call.name = step.name + ".meet";
  call.buffers.push_back({{DType::kInt32, {1}}, array, array});
  auto submitted = rank_.job_->engine().submit(std::move(call), true);
  if (!submitted.ok()) {
    rank_.check_outcome(program_, step, submitted.status());
    return false;
  }
  now("meets for", step);
  while (!(*submitted)->wait_for(kSecond)) {
  }
  rank_.check_outcome(program_, step, (*submitted)->status());
  return (*submitted)->status().ok();
}

// Runs a whole series: some rounds as they come, and a last one for all ranks. Every contribution
// is in exactly one result, and all ranks get the same results.
void Rank::Lane::run_series(const Step& step) {
  rank_.calls_.fetch_add(1);
  rounds::PartialOptions options;
  options.name = step.name;
  options.group = rank_.groups_[step.group];
  options.dtype = step.dtype;
  options.elements = step.elements(0);
  options.op = ReduceOp::kSum;
  options.quorum = step.quorum;
  options.algorithm = step.algorithm;
  if (step.algorithm != wire::Algorithm::kHerring && !meet(step)) return;
  auto made = rounds::Partial::create(rank_.job_->engine().series(), options);
  if (!made.ok()) return rank_.check_outcome(program_, step, made.status());
  rounds::Partial& series = **made;
  std::vector<char> array(series.bytes()), sum(series.bytes(), 0);
  const Values values = program_.values_of(step);
  bool ended = false, all_stay = true;
  for (uint32_t n = 0; !ended; ++n) {
    if (n <= step.rounds) {
      now("contributes to", step);
      fill(contribution(values, n), rank_.rank_, 0, options.elements, array.data());
      const Status status = series.contribute(array.data(), true, n == step.rounds);
      if (!status.ok()) return rank_.check_outcome(program_, step, status);
    }
    now("waits for a result of", step);
    while (!series.wait_for(kSecond)) {
    }
    auto info = series.take(array.data());
    if (!info.ok()) return rank_.check_outcome(program_, step, info.status());
    if (std::string text = program_.same_everywhere(step, info->round, array,
                                                    describe(*info, rank_.rank_));
        !text.empty()) {
      rank_.wrong(program(), step, text);
    }
    add(step.dtype, array, sum);
    all_stay &= info->lost.empty();
    ended = n >= step.rounds && info->last && series.produced() == series.counted() &&
            series.ready() == 0;
  }
  // A rank that leaves loses the contributions that no round has counted yet.
  if (all_stay) check_series(step, values, sum);
}

void Rank::Lane::check_series(const Step& step, const Values& values,
                              const std::vector<char>& sum) {
  std::vector<char> one(sum.size()), all(sum.size(), 0);
  for (uint32_t n = 0; n <= step.rounds; ++n) {
    reduce(contribution(values, n), program_.contributors(step), 0, step.elements(0), one.data());
    add(step.dtype, one, all);
  }
  const std::string text = difference(step.dtype, sum.data(), all.data(), step.elements(0));
  if (!text.empty()) rank_.wrong(program(), step, "the sum over all rounds: " + text);
}

void Rank::Lane::finish_first() {
  Batch batch = std::move(pending_.front());
  pending_.pop_front();
  random_.shuffle(batch.calls);
  for (Call& call : batch.calls) finish(call);
}

void Rank::Lane::finish(Call& call) {
  const Step& step = *call.step;
  now("waits for", step);
  const bool planned = step.kind == Kind::kPlanned;
  // The future of a closed plan's round is in the call, because the plan is gone.
  engine::Future& future = planned ? *call.round : *call.operation;
  while (!future.wait_for(kSecond)) {
  }
  now("looks at", step);
  rank_.check_outcome(program_, step, future.status());
  if (future.status().ok()) {
    if (step.kind == Kind::kFormGroup) {
      rank_.keep_formed(program(), step.group, *call.operation);
      formed_.push_back(step.group);
    } else if (!planned) {
      rank_.check(call);
    } else if (rank_.plans_[step.plan] != nullptr) {
      rank_.check_round(call, plan_of(step));
    }
  } else if (planned && rank_.plans_[step.plan] != nullptr) {
    const auto& arenas = plan_of(step).plan().arenas;
    for (uint32_t i = 0; i < arenas.size(); ++i) {
      std::memset(plan_of(step).arena(i).get(), 0x5a, arenas[i].bytes);
    }
  }
  if (planned && step.closes) rank_.plans_[step.plan].reset();
  rank_.release(call.array);
}

// Destroys most groups that this lane has formed. Some stay until the program ends.
void Rank::Lane::end_groups() {
  for (const uint32_t group : formed_) {
    if (random_.chance(0.3)) continue;
    doing_.now("destroys a group", static_cast<int>(program().index), -1,
               program().groups[group].name);
    rank_.destroy(program(), group);
  }
}

}  // namespace herring::random_test
