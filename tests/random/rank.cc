#include "tests/random/rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "plan/split.h"
#include "reduce/reduce.h"
#include "tests/random/lane.h"

namespace herring::random_test {
namespace {

constexpr const char* kAbortReason = "the program wants it";

void sleep_ms(uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

Rank::Array Rank::allocate(size_t bytes, bool shared) {
  if (!shared) return {new char[bytes], false, bytes};
  auto memory = job_->engine().heap().allocate(bytes);
  if (!memory.ok()) fail(seed_, "the shared heap: " + memory.status().to_string());
  return {static_cast<char*>(*memory), true, bytes};
}

// A program may use memory for something else as soon as the call is over, even if it failed. No
// other rank may get that for a result.
void Rank::release(Array& array) {
  if (array.data == nullptr) return;
  std::memset(array.data, 0x5a, array.bytes);
  if (array.shared) {
    job_->engine().heap().free(array.data);
  } else {
    delete[] array.data;
  }
  array.data = nullptr;
}

void Rank::wrong(const Program& program, const Step& step, const std::string& what) {
  fail(seed_, concat("rank ", rank_, ", program ", program.index, ", ", step.describe(), ":\n  ",
                     what));
}

// Returns whether this rank is the one that ends the program's job.
bool Rank::ends(const Program& program) const {
  return program.ending != Ending::kNone && program.ending != Ending::kAllLeave &&
         program.ending_rank == rank_;
}

// Ends the test unless `status` is one of these errors for one of these reasons:
//   kMismatch    on every rank, if one of them called something else
//   kTimeout     if the step has a short timeout
//   kPeerLost    if the program ends the job: a rank aborts it, leaves in the middle of its part,
//                dies, or closes a plan. If the others go on: for steps that need the rank that is
//                gone. If ranks leave when they are done: for steps that use a server of a rank
//                that is not a member
//   kShutdown    on a rank that ends its job in the middle of it, or that cannot go on
void Rank::check_outcome(RunningProgram& running, const Step& step, const Status& status) {
  const Program& program = *running;
  if (status.ok()) {
    if (step.mismatched()) wrong(program, step, "no error where ranks call different things");
    return;
  }
  errors_.fetch_add(1);
  bool explained = false;
  switch (status.code()) {
    case Code::kMismatch: explained = step.mismatched(); break;
    case Code::kTimeout: explained = step.timeout > 0; break;
    case Code::kPeerLost: explained = explains_loss(running, step); break;
    case Code::kShutdown: explained = ends(program) || over_; break;
    default: break;
  }
  if (program.ending == Ending::kDie && status.code() == Code::kPeerLost && !running.given_up()) {
    explained &= status.message().find(concat("rank ", program.ending_rank, " (")) !=
                 std::string::npos;
  }
  // Other ranks may have waited for this rank in vain and left. A rank that comes late hears of
  // their departure first.
  const bool departs = program.ending == Ending::kDepart || program.ending == Ending::kAllLeave;
  if (departs && step.timeout > 0 && status.code() == Code::kPeerLost) return;
  if (!explained) wrong(program, step, status.to_string());
  if (status.code() != Code::kPeerLost && status.code() != Code::kShutdown) return;
  // A rank cannot go on without a group that it was to use.
  const bool goes_on = program.goes_on && !ends(program) && step.kind != Kind::kFormGroup &&
                       job_->engine().failure().ok();
  if (goes_on) return;
  give_up();
  if (!ends(program)) running.give_up();
}

void Rank::give_up() {
  std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

// Returns whether the departure of a rank explains the loss. If a rank still waits for a call of
// all ranks, everything may fail on that rank, and so may calls that wait for it. Otherwise only
// calls of groups that need the departed rank may fail.
bool Rank::explains_loss(RunningProgram& running, const Step& step) const {
  const Program& program = *running;
  if (program.ending == Ending::kNone) return false;
  if (program.ending == Ending::kDepart || program.ending == Ending::kAllLeave) {
    if (running.given_up()) return true;
    for (uint32_t rank = 0; rank < layout_.size; ++rank) {
      if (program.ending == Ending::kDepart && rank != program.ending_rank) continue;
      const auto& members = program.groups[step.group].ranks;
      if (!std::binary_search(members.begin(), members.end(), rank) &&
          needs(program, step, rank)) {
        return true;
      }
    }
    return false;
  }
  if (!program.goes_on || ends(program) || running.given_up()) return true;
  // Rank 0 hosts the rendezvous, which does not wait forever. Without the rendezvous the job ends.
  if (program.ending_rank == 0) return true;
  if (!job_->engine().failure().ok()) {
    return program.all_take_part || program.ending == Ending::kDie;
  }
  return needs(program, step, program.ending_rank);
}

// Returns whether a step needs `rank`: it takes part, or hosts a server of the group. If a member
// leaves, a message needs only its sender, its receiver and the server that pairs them.
bool Rank::needs(const Program& program, const Step& step, uint32_t rank) const {
  if (step.place_of(rank) != Step::kNobody) return true;
  const std::vector<uint32_t>& members = program.groups[step.group].ranks;
  const bool is_member = std::binary_search(members.begin(), members.end(), rank);
  // The whole group is called off if anything in it needed the rank.
  const bool abrupt = program.ending == Ending::kDie || program.ending == Ending::kLeave;
  if (is_member && abrupt) return true;
  const control::WorkerInfo& worker = cluster_.workers[rank];
  if (worker.local_rank != 0) return false;
  const bool all = members.size() == cluster_.size && step.group == 0;
  const control::Group group = all ? control::Group(cluster_)
                                   : control::Group(1, cluster_, members, step.name);
  const control::ShardMap shards = control::shard_map(cluster_, group);
  const uint32_t to = step.kind == Kind::kMessage ? step.ranks[1 - step.root] : 0;
  return std::any_of(cluster_.servers.begin(), cluster_.servers.end(), [&](const auto& server) {
    if (server.dedicated || server.node != worker.node) return false;
    if (!is_member) return shards.uses(server.index);
    return shards.owner_of(concat("messages to ", group.index_of(to))) == server.index;
  });
}

bool Rank::is_left_out(const Program& program, const Step& step) const {
  return step.late && needs(program, step, program.ending_rank);
}

void Rank::check(const Call& call) {
  const Step& step = *call.step;
  RunningProgram& program = *call.program;
  const calls::Operation& operation = *call.operation;
  const uint32_t place = step.place_of(rank_);
  const size_t item = size_of(step.dtype);
  Values values = program.values_of(step);
  const auto compare = [&](const char* got, const char* expected, uint64_t count) {
    const std::string text = difference(step.dtype, got, expected, count);
    if (!text.empty()) wrong(*program, step, text);
  };
  const auto result_has = [&](uint64_t elements) {
    if (operation.result_bytes == elements * item) return;
    wrong(*program, step, concat("the result has ", operation.result_bytes, " bytes, not ",
                                 elements * item));
  };
  std::vector<char> expected;
  switch (step.kind) {
    case Kind::kAllreduce:
      return compare(call.array.data, program.reduction(step).data(), step.elements(place));
    case Kind::kBroadcast: {
      expected.resize(step.elements(place) * item);
      fill(values, step.ranks[step.root], 0, step.elements(place), expected.data());
      return compare(call.array.data, expected.data(), step.elements(place));
    }
    case Kind::kReduceScatter: {
      const plan::Part part = plan::even_split(step.rows[0], step.size(), place);
      result_has(part.count * step.row);
      const auto& all = program.reduction(step);
      return compare(operation.result.get(), all.data() + part.first * step.row * item,
                     part.count * step.row);
    }
    case Kind::kAllgather: {
      uint64_t at = 0;
      for (uint32_t from = 0; from < step.size(); ++from) {
        const uint64_t count = step.elements(from);
        expected.resize((at + count) * item);
        fill(values, step.ranks[from], 0, count, expected.data() + at * item);
        at += count;
      }
      result_has(at);
      if (operation.counts != step.rows) wrong(*program, step, "the first dimensions are wrong");
      return compare(operation.result.get(), expected.data(), at);
    }
    case Kind::kAlltoall: {
      uint64_t at = 0;
      for (uint32_t from = 0; from < step.size(); ++from) {
        const auto& splits = step.splits[from];
        uint64_t before = 0;
        for (uint32_t to = 0; to < place; ++to) before += splits[to];
        const uint64_t count = splits[place] * step.row;
        expected.resize((at + count) * item);
        fill(values, step.ranks[from], before * step.row, count, expected.data() + at * item);
        at += count;
      }
      result_has(at);
      return compare(operation.result.get(), expected.data(), at);
    }
    case Kind::kMessage: {
      if (place == step.root) return;
      const std::vector<uint32_t>& members = program->groups[step.group].ranks;
      const uint32_t from = step.ranks[step.root];
      const auto index = static_cast<uint64_t>(
          std::lower_bound(members.begin(), members.end(), from) - members.begin());
      if (operation.counts != std::vector<uint64_t>{index, step.id}) {
        wrong(*program, step, "it came from another rank, or with another tag");
      }
      expected.resize(step.elements(place) * item);
      fill(values, from, 0, step.elements(place), expected.data());
      return compare(call.array.data, expected.data(), step.elements(place));
    }
    case Kind::kJoin:
      if (operation.counts.size() == 1 && operation.counts[0] < step.size()) return;
      return wrong(*program, step, "nobody was last");
    default: return;
  }
}

void Rank::check_round(const Call& call, rounds::Planned& plan) {
  const Step& step = *call.step;
  RunningProgram& program = *call.program;
  const auto& gradients = plan.plan().gradients;
  size_t numbers = 0;
  for (const plan::Gradient& gradient : gradients) numbers += gradient.elements;
  const bool sparse = program->plans[step.plan].sparse();
  if (sparse) check_largest(call, plan);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].elements == 0 || (sparse && numbers > kSparseEntries)) continue;
    const plan::Placement& place = plan.plan().placements[i];
    const std::string text =
        difference(gradients[i].dtype, plan.arena(place.arena).get() + place.range.offset,
                   program.reduction(step, i).data(), gradients[i].elements);
    if (!text.empty()) wrong(*program, step, concat("gradient ", i, ": ", text));
  }
  const size_t note_bytes = program->plans[step.plan].note_bytes;
  if (const auto notes = plan.notes(); !notes.ok()) {
    wrong(*program, step, concat("its notes: ", notes.status().message()));
  } else if (const std::vector<char>& expected = program.reduction(step, gradients.size());
             !std::equal(notes->begin(), notes->end(), expected.begin(), expected.end())) {
    wrong(*program, step, concat("the notes of ", note_bytes, " bytes differ"));
  }
  const size_t contributors = program.contributors(step).size();
  if (features_ & kCounts && !(plan.plan().buffers.empty() && note_bytes == 0) &&
      plan.contributors() != contributors) {
    wrong(*program, step, concat("it says ", plan.contributors(), " contributors, not ",
                                 contributors));
  }
}

// Checks a round of which only the largest numbers may have travelled.
void Rank::check_largest(const Call& call, rounds::Planned& plan) {
  const Step& step = *call.step;
  RunningProgram& program = *call.program;
  std::vector<float> results, left;
  std::vector<std::vector<float>> residuals;
  for (size_t a = 0; a < plan.plan().arenas.size(); ++a) {
    auto residual = plan.residual(a);
    if (!residual.ok()) wrong(*program, step, residual.status().to_string());
    residuals.push_back(std::move(*residual));
  }
  const auto& gradients = plan.plan().gradients;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [elements, dtype] = gradients[i];
    if (elements == 0) continue;
    const plan::Placement& place = plan.plan().placements[i];
    const size_t at = results.size();
    results.resize(at + elements);
    reduce::convert(plan.arena(place.arena).get() + place.range.offset, dtype, &results[at],
                    DType::kFloat32, elements, 1.0);
    const auto first = residuals[place.arena].begin() +
                       static_cast<ptrdiff_t>(place.range.offset / size_of(dtype));
    left.insert(left.end(), first, first + static_cast<ptrdiff_t>(elements));
  }
  std::vector<char> bytes(results.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), results.data(), bytes.size());
  std::string text =
      program.same_everywhere(step, 0, bytes, concat("the results of rank ", rank_));
  if (text.empty()) text = program.nothing_lost(step, results, left);
  if (!text.empty()) wrong(*program, step, text);
}

Result<std::shared_ptr<calls::Operation>> Rank::submit_forming(const Program& program,
                                                                uint32_t group, bool waits) {
  const GroupSpec& spec = program.groups[group];
  return job_->engine().submit({.name = spec.name, .what = wire::FormGroup{spec.ranks}}, waits);
}

void Rank::keep_formed(const Program& program, uint32_t group,
                       const calls::Operation& operation) {
  const GroupSpec& spec = program.groups[group];
  const auto& formed = operation.formed;
  if (formed == nullptr || formed->is_world() || formed->members().ranks() != spec.ranks ||
      spec.ranks[formed->index()] != rank_ || formed->members().name() != spec.name) {
    fail(seed_, concat("rank ", rank_, ", program ", program.index, ": group '", spec.name,
                       "' is not what was asked for"));
  }
  groups_[group] = formed;
}

bool Rank::form_groups(RunningProgram& running, Doing& doing) {
  const Program& program = *running;
  groups_.assign(program.groups.size(), nullptr);
  Random random({program.steps.front().salt, rank_, 1});
  std::vector<std::pair<Step, std::shared_ptr<calls::Operation>>> forming;
  for (const uint32_t group : random.order(program.groups.size())) {
    Step step;
    step.kind = Kind::kFormGroup;
    step.group = group;
    step.ranks = program.groups[group].ranks;
    step.name = program.groups[group].name;
    if (group == 0 || program.groups[group].formed_by_lane) continue;
    if (step.place_of(rank_) == Step::kNobody) continue;
    calls_.fetch_add(1);
    auto submitted = submit_forming(program, group, random.chance(0.5));
    if (!submitted.ok()) {
      check_outcome(running, step, submitted.status());
      return false;
    }
    forming.emplace_back(std::move(step), std::move(*submitted));
  }
  random.shuffle(forming);
  for (const auto& [step, operation] : forming) {
    doing.now("forms a group", static_cast<int>(program.index), -1, step.name);
    while (!operation->wait_for(kSecond)) {
    }
    check_outcome(running, step, operation->status());
    if (operation->status().ok()) keep_formed(program, step.group, *operation);
  }
  return !over_;
}

// Destroys a group. This may fail if this rank has dropped calls in the group. It may also fail if
// a round failed because a member is gone, and this rank had pushed parts of the round.
void Rank::destroy(const Program& program, uint32_t group) {
  const auto formed = std::exchange(groups_[group], nullptr);
  if (formed == nullptr) return;
  worker::Engine& engine = job_->engine();
  const Status status = engine.destroy(formed);
  bool may_fail = over_ || ends(program) || !formed->failure().ok();
  {
    std::lock_guard lock(mutex_);
    may_fail |= std::any_of(dropped_.begin(), dropped_.end(), [&](const Call& call) {
      return &**call.program == &program && call.step->group == group;
    });
  }
  const auto wrong = [&](const std::string& what) {
    fail(seed_, concat("rank ", rank_, ", program ", program.index, ": group '",
                       program.groups[group].name, "' ", what));
  };
  if (!status.ok()) {
    if (!may_fail) wrong(concat("cannot be destroyed: ", status.to_string()));
    return;
  }
  calls::Call call{.group = formed, .name = "after its end", .what = wire::Barrier{}};
  if (engine.submit(std::move(call)).ok()) wrong("takes calls after it was destroyed");
}

bool Rank::make_plans(RunningProgram& running) {
  const Program& program = *running;
  for (const PlanSpec& spec : program.plans) {
    plans_.push_back(nullptr);
    const auto& ranks = program.groups[spec.group].ranks;
    if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) continue;
    rounds::PlannedOptions options;
    options.name = spec.name;
    options.group = groups_[spec.group];
    options.op = spec.op;
    options.narrow = spec.narrow;
    options.wire = spec.wire;
    options.buffer_bytes = spec.buffer_bytes;
    options.note_bytes = spec.note_bytes;
    auto plan =
        rounds::Planned::create(job_->engine().rounds(), spec.gradients, std::move(options));
    // Another rank may have aborted already, or be dead.
    if (!plan.ok() && (program.ending == Ending::kAbort || program.ending == Ending::kDie)) {
      if (program.ending == Ending::kDie) running.give_up();
      return false;
    }
    if (!plan.ok()) fail(seed_, concat("plan '", spec.name, "': ", plan.status().to_string()));
    plans_.back() = std::move(*plan);
  }
  return true;
}

// Runs the lanes of this rank, each on a thread of its own, until all are done.
void Rank::run_lanes(const std::shared_ptr<RunningProgram>& running, bool begins, Doing& doing) {
  const Program& program = **running;
  std::vector<std::thread> threads;
  lanes_ = begins ? static_cast<uint32_t>(program.lanes.size()) : 0;
  for (uint32_t lane = 0; begins && lane < program.lanes.size(); ++lane) {
    threads.emplace_back([this, running, lane] {
      Lane(*this, *running, lane).run();
      std::lock_guard lock(mutex_);
      --lanes_;
      changed_.notify_all();
    });
  }
  if (begins && ends(program) && program.ending != Ending::kDepart) end_job(*running, doing);
  doing.rests("waits for its lanes", static_cast<int>(program.index));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_ || lanes_ == 0; });
  }
  // If one lane cannot go on, another may wait for a rank that cannot go on either.
  if (over_ && !ends(program)) job_->shutdown();
  for (std::thread& thread : threads) thread.join();
}

void Rank::end_job(RunningProgram& running, Doing& doing) {
  const auto number = static_cast<int>(running->index);
  doing.now("is about to end the job", number);
  sleep_ms(running->ending_ms);
  if (running->ending == Ending::kAbort) job_->abort(kAbortReason);
  if (running->ending == Ending::kLeave) {
    doing.now("shuts down", number);
    if (running->goes_on) running.rank_done();
    job_->shutdown();
  }
  if (running->ending == Ending::kDie) {
    doing.now("dies", number);
    if (running->goes_on) running.rank_done();
    job_->vanish();
  }
}

void Rank::run(const std::shared_ptr<RunningProgram>& running, Doing& doing) {
  programs_.push_back(running);
  const Program& program = **running;
  const auto number = static_cast<int>(program.index);
  doing.rests("waits for the others to start", number);
  if (program.ending != Ending::kNone) running->start_together();
  doing.now("forms groups", number);
  bool begins = form_groups(*running, doing);
  doing.now("makes plans", number);
  begins = begins && make_plans(*running);
  run_lanes(running, begins, doing);
  plans_.clear();
  Random random({program.steps.front().salt, rank_, 2});
  const bool early = program.ending != Ending::kNone || random.chance(0.5);
  const auto destroy_all = [&] {
    doing.now("destroys its groups", number);
    for (const uint32_t group : random.order(groups_.size())) destroy(program, group);
  };
  if (early) destroy_all();
  if (program.ending == Ending::kDepart && ends(program)) {
    running->rank_done();
  } else if (program.goes_on && (!begins || !ends(program))) {
    running->rank_done();
    doing.rests("waits for the others", number);
    if (!over_) running->wait_for_all();
  }
  if (program.ending != Ending::kNone) return;
  // No rank leaves while others still need it.
  doing.now("ends the program", number);
  pass_barrier(program);
  if (!early) destroy_all();
}

void Rank::pass_barrier(const Program& program) {
  auto barrier = job_->engine().submit(
      {.name = concat("p", program.index, ".end"), .what = wire::Barrier{}}, true);
  if (!barrier.ok()) fail(seed_, concat("rank ", rank_, ": ", barrier.status().to_string()));
  while (!(*barrier)->wait_for(kSecond)) {
  }
  const Status& status = (*barrier)->status();
  // A rank that has passed the barrier may have begun the next program. In it, the rank may have
  // aborted the job or closed a plan inside a round.
  const bool aborted = status.message().find("the job was aborted") != std::string::npos;
  if (!status.ok() && !aborted) {
    fail(seed_, concat("rank ", rank_, ", the barrier after program ", program.index, ": ",
                       status.to_string()));
  }
}

void Rank::leave(Doing& doing) {
  doing.now("shuts down");
  job_->shutdown();
  doing.now("looks at what it dropped");
  for (Call& call : dropped_) {
    if (call.operation != nullptr) {
      if (!call.operation->done()) {
        wrong(**call.program, *call.step, "it never completed, not even by shutdown()");
      }
      if (call.operation->status().ok()) check(call);
    }
    release(call.array);
  }
  dropped_.clear();
}

Rank::~Rank() = default;

}  // namespace herring::random_test
