#include "tests/random/rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "plan/split.h"

namespace herring::random_test {
namespace {

constexpr const char* kAbortReason = "the program wants it";


wire::Collective collective_of(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce: return wire::Collective::kAllreduce;
    case Kind::kBroadcast: return wire::Collective::kBroadcast;
    case Kind::kAllgather: return wire::Collective::kAllgather;
    case Kind::kReduceScatter: return wire::Collective::kReduceScatter;
    case Kind::kAlltoall: return wire::Collective::kAlltoall;
    default: return wire::Collective::kBarrier;
  }
}

void sleep_ms(uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Contribution `number` of a rank to a series.
Values contribution(Values values, uint32_t number) {
  values.salt = mix(values.salt + number);
  return values;
}

uint64_t hash_of(const std::vector<char>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::vector<uint32_t> RunningProgram::contributors(const Step& step) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (step.parts[rank].active) ranks.push_back(rank);
  }
  return ranks;
}

Values RunningProgram::values_of(const Step& step, size_t index) const {
  Values values{step.salt, step.dtype, step.op, step.prescale, step.postscale, 0};
  bool narrow = false;
  if (step.kind == Kind::kPlanned) {
    const PlanSpec& plan = program_.plans[step.plan];
    values.salt = mix(step.salt + index);
    values.dtype = plan.gradients[index].dtype;
    narrow = plan.narrow;
  }
  const bool coarse = values.dtype == DType::kFloat16 || values.dtype == DType::kBFloat16;
  // 16-bit results are rounded more than once where there are several stages.
  if (step.op == ReduceOp::kAverage && (coarse || narrow)) {
    values.divisor = static_cast<uint32_t>(contributors(step).size());
  }
  return values;
}

const std::vector<char>& RunningProgram::reduction(const Step& step, size_t index) {
  Expected& expected = expected_[step.id];
  std::lock_guard lock(expected.mutex);
  if (expected.arrays.empty()) {
    const std::vector<uint32_t> ranks = contributors(step);
    const size_t arrays =
        step.kind == Kind::kPlanned ? program_.plans[step.plan].gradients.size() : 1;
    for (size_t i = 0; i < arrays; ++i) {
      const Values values = values_of(step, i);
      const uint64_t count = step.kind == Kind::kPlanned
                                 ? program_.plans[step.plan].gradients[i].elements
                                 : step.elements(0);
      expected.arrays.emplace_back(count * size_of(values.dtype));
      reduce(values, ranks, 0, count, expected.arrays.back().data());
    }
  }
  return expected.arrays[index];
}

std::string RunningProgram::same_everywhere(const Step& step, uint32_t round,
                                            const std::vector<char>& result) {
  Expected& expected = expected_[step.id];
  const uint64_t hash = hash_of(result);
  std::lock_guard lock(expected.mutex);
  if (expected.hashes.size() == round) expected.hashes.push_back(hash);
  if (round > expected.hashes.size()) return concat("round ", round, " was skipped");
  return expected.hashes[round] == hash ? std::string()
                                        : concat("round ", round, " differs between ranks");
}

Rank::Array Rank::allocate(size_t bytes, bool shared) {
  if (!shared) return {new char[bytes], false};
  auto memory = job_->engine().heap().allocate(bytes);
  if (!memory.ok()) fail(seed_, "the shared heap: " + memory.status().to_string());
  return {static_cast<char*>(*memory), true};
}

void Rank::release(Array& array) {
  if (array.data == nullptr) return;
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

// What may go wrong, and why; everything else is a fault:
//   kMismatch    on every rank, where one of them called something else
//   kTimeout     where the step has a short time-out
//   kPeerLost    where the program ends the job: a rank aborts it, leaves, or closes a plan
//   kShutdown    likewise, on the rank that ends it
void Rank::check_outcome(const Program& program, const Step& step, const Status& status) {
  if (status.ok()) {
    if (step.mismatched()) wrong(program, step, "no error where ranks call different things");
    return;
  }
  errors_.fetch_add(1);
  bool explained = false;
  switch (status.code()) {
    case Code::kMismatch: explained = step.mismatched(); break;
    case Code::kTimeout: explained = step.timeout > 0; break;
    case Code::kPeerLost: explained = program.ending != Ending::kNone; break;
    case Code::kShutdown:
      explained = program.ending != Ending::kNone && program.ending_rank == rank_;
      break;
    default: break;
  }
  if (!explained) wrong(program, step, status.to_string());
  if (status.code() == Code::kPeerLost || status.code() == Code::kShutdown) over_ = true;
}

void Rank::check(const Call& call) {
  const Step& step = *call.step;
  RunningProgram& program = *call.program;
  const worker::Operation& operation = *call.operation;
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
      return compare(call.array.data, program.reduction(step).data(), step.elements(rank_));
    case Kind::kBroadcast: {
      expected.resize(step.elements(rank_) * item);
      fill(values, step.root, 0, step.elements(rank_), expected.data());
      return compare(call.array.data, expected.data(), step.elements(rank_));
    }
    case Kind::kReduceScatter: {
      const plan::Part part = plan::even_split(step.rows[0], layout_.size, rank_);
      result_has(part.count * step.row);
      const auto& all = program.reduction(step);
      return compare(operation.result.get(), all.data() + part.first * step.row * item,
                     part.count * step.row);
    }
    case Kind::kAllgather: {
      uint64_t at = 0;
      for (uint32_t rank = 0; rank < layout_.size; ++rank) {
        const uint64_t count = step.elements(rank);
        expected.resize((at + count) * item);
        fill(values, rank, 0, count, expected.data() + at * item);
        at += count;
      }
      result_has(at);
      if (operation.dims != step.rows) wrong(*program, step, "the first dimensions are wrong");
      return compare(operation.result.get(), expected.data(), at);
    }
    case Kind::kAlltoall: {
      uint64_t at = 0;
      for (uint32_t from = 0; from < layout_.size; ++from) {
        const auto& splits = step.splits[from];
        uint64_t before = 0;
        for (uint32_t to = 0; to < rank_; ++to) before += splits[to];
        const uint64_t count = splits[rank_] * step.row;
        expected.resize((at + count) * item);
        fill(values, from, before * step.row, count, expected.data() + at * item);
        at += count;
      }
      result_has(at);
      return compare(operation.result.get(), expected.data(), at);
    }
    default: return;
  }
}

void Rank::check_round(const Call& call, worker::Planned& plan) {
  const Step& step = *call.step;
  RunningProgram& program = *call.program;
  const auto& gradients = plan.plan().gradients;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].elements == 0) continue;
    const plan::Placement& place = plan.plan().placements[i];
    const std::string text =
        difference(gradients[i].dtype, plan.arena(place.arena).get() + place.range.offset,
                   program.reduction(step, i).data(), gradients[i].elements);
    if (!text.empty()) wrong(*program, step, concat("gradient ", i, ": ", text));
  }
  const size_t contributors = program.contributors(step).size();
  if (features_ & kCounts && !plan.plan().buffers.empty() &&
      plan.contributors() != contributors) {
    wrong(*program, step, concat("it says ", plan.contributors(), " contributors, not ",
                                 contributors));
  }
}

// A thread of a rank that runs one lane of a program.
class Rank::Lane {
 public:
  Lane(Rank& rank, RunningProgram& program, uint32_t lane)
      : rank_(rank), program_(program), lane_(lane),
        random_({program->plans.size() + program->steps.front().salt, rank.rank_, lane}),
        doing_(rank.seed_, concat("rank ", rank.rank_, " lane ", lane)) {}

  void run() {
    const auto& batches = program_->lanes[lane_];
    for (uint32_t b = 0; b < batches.size() && !rank_.over_; ++b) {
      submit(batches[b]);
      const bool late = is_late(batches[b]);
      pending_.back().due = b + (random_.chance(0.3) ? random_.below(kDeferral + 1) : 0);
      while (!pending_.empty() && (late || pending_.front().due <= b)) finish_first();
    }
    while (!pending_.empty()) finish_first();
  }

 private:
  struct Batch {
    std::vector<Call> calls;
    uint64_t due = 0;
  };

  const Program& program() const { return *program_; }
  // The next call of its name may follow at once.
  bool is_late(const std::vector<uint32_t>& batch) const {
    return program().steps[batch.front()].timeout > 0;
  }

  void now(const char* what, const Step& step) {
    doing_.now(what, static_cast<int>(program().index), static_cast<int>(step.id), step.name);
  }

  // All steps of a batch in an order of this rank's own; gradients of planned rounds in between.
  void submit(const std::vector<uint32_t>& steps) {
    pending_.emplace_back();
    std::vector<uint32_t> actions;  // steps; of planned rounds as often as there are gradients
    for (const uint32_t id : steps) {
      const Step& step = program().steps[id];
      const size_t times =
          step.kind == Kind::kPlanned ? program().plans[step.plan].gradients.size() : 1;
      actions.insert(actions.end(), std::max<size_t>(times, 1), id);
    }
    random_.shuffle(actions);
    std::map<uint32_t, std::vector<uint32_t>> rounds;  // begun: gradients that are not ready
    for (const uint32_t id : actions) {
      if (rank_.over_) return;
      const Step& step = program().steps[id];
      const Part& part = step.parts[rank_.rank_];
      if (part.late_ms > 0) {
        now("is late for", step);
        sleep_ms(part.late_ms);
      }
      now("calls", step);
      if (step.kind == Kind::kPlanned) {
        if (!rounds.contains(id)) rounds[id] = begin_round(step);
        if (!continue_round(step, rounds[id])) return;
      } else if (step.kind == Kind::kPartial) {
        run_series(step);
      } else {
        call(step);
      }
    }
  }

  void call(const Step& step) {
    const Part& part = step.parts[rank_.rank_];
    const uint64_t more = part.contradicts ? 1 : 0;
    const uint64_t rows = step.rows[rank_.rank_] + more;
    const uint64_t elements = rows * step.row;
    Call call{&step, &program_, nullptr, nullptr, {}};
    worker::Request request;
    request.kind = collective_of(step.kind);
    request.name = step.name;
    request.timeout = step.timeout;
    if (step.kind == Kind::kBarrier) {
      request.shape = {0};
    } else {
      call.array = rank_.allocate(elements * size_of(step.dtype), part.shared);
      const bool silent = step.kind == Kind::kBroadcast && step.root != rank_.rank_;
      if (silent) {
        std::memset(call.array.data, 0xa5, elements * size_of(step.dtype));
      } else {
        fill(program_.values_of(step), rank_.rank_, 0, elements, call.array.data);
      }
      request.dtype = step.dtype;
      request.op = step.op;
      request.algorithm = step.algorithm;
      request.root = step.root;
      request.prescale = step.prescale;
      request.postscale = step.postscale;
      request.shape = {rows, step.row};
      if (step.kind == Kind::kAlltoall) request.splits = step.splits[rank_.rank_];
      request.send = request.receive = call.array.data;
    }
    rank_.calls_.fetch_add(1);
    auto submitted = rank_.job_->engine().submit(std::move(request), random_.chance(0.5));
    if (!submitted.ok()) {
      rank_.release(call.array);
      return rank_.check_outcome(program(), step, submitted.status());
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

  worker::Planned& plan_of(const Step& step) { return *rank_.plans_[step.plan]; }

  // The gradients that have to be made ready, in an order of this rank's own.
  std::vector<uint32_t> begin_round(const Step& step) {
    rank_.calls_.fetch_add(1);
    const bool active = step.parts[rank_.rank_].active;
    worker::Planned& plan = plan_of(step);
    if (Status status = plan.begin(active); !status.ok()) {
      rank_.check_outcome(program(), step, status);
      return {};
    }
    return active ? random_.order(plan.plan().gradients.size()) : std::vector<uint32_t>{};
  }

  // Makes one gradient ready; with the last of them (or none) the round only has to be waited for.
  // False: this rank has closed the plan, and takes part no more.
  bool continue_round(const Step& step, std::vector<uint32_t>& left) {
    worker::Planned& plan = plan_of(step);
    const bool closes = program().ending == Ending::kClosePlan &&
                        program().ending_rank == rank_.rank_ && program().ending_step == step.id;
    if (!left.empty()) {
      const uint32_t index = left.back();
      left.pop_back();
      const uint64_t elements = plan.plan().gradients[index].elements;
      if (elements > 0) {
        const plan::Placement& place = plan.plan().placements[index];
        fill(program_.values_of(step, index), rank_.rank_, 0, elements,
             plan.arena(place.arena).get() + place.range.offset);
      }
      if (Status status = plan.ready(index); !status.ok()) {
        rank_.check_outcome(program(), step, status);
        left.clear();
      }
    }
    if (closes && left.size() <= plan.plan().gradients.size() / 2) {
      now("closes the plan of", step);
      rank_.plans_[step.plan].reset();
      rank_.over_ = true;
      return false;
    }
    const auto same = [&](const Call& call) { return call.step == &step; };
    auto& calls = pending_.back().calls;
    if (left.empty() && !rank_.over_ && std::none_of(calls.begin(), calls.end(), same)) {
      auto round = plan.waiting();
      if (!round.ok()) {
        rank_.check_outcome(program(), step, round.status());
      } else {
        calls.push_back({&step, &program_, nullptr, *round, {}});
      }
    }
    return true;
  }

  // A whole series: some rounds as they come, and a last one for everybody. Every contribution is
  // in exactly one result, and all ranks get the same results.
  void run_series(const Step& step) {
    rank_.calls_.fetch_add(1);
    worker::PartialOptions options;
    options.name = step.name;
    options.dtype = step.dtype;
    options.elements = step.elements(0);
    options.op = ReduceOp::kSum;
    options.quorum = step.quorum;
    auto made = worker::Partial::create(rank_.job_->engine(), options);
    if (!made.ok()) return rank_.check_outcome(program(), step, made.status());
    worker::Partial& series = **made;
    std::vector<char> array(series.bytes()), sum(series.bytes(), 0);
    const Values values = program_.values_of(step);
    bool ended = false, all_stay = true;
    for (uint32_t n = 0; !ended; ++n) {
      if (n <= step.rounds) {
        now("contributes to", step);
        fill(contribution(values, n), rank_.rank_, 0, options.elements, array.data());
        const Status status = series.contribute(array.data(), true, n == step.rounds);
        if (!status.ok()) return rank_.check_outcome(program(), step, status);
      }
      now("waits for a result of", step);
      while (!series.wait_for(kSecond)) {
      }
      auto info = series.take(array.data());
      if (!info.ok()) return rank_.check_outcome(program(), step, info.status());
      if (std::string text = program_.same_everywhere(step, info->round, array); !text.empty()) {
        rank_.wrong(program(), step, text);
      }
      add(step.dtype, array, sum);
      all_stay &= info->lost.empty();
      ended = n >= step.rounds && info->last && series.produced() == series.counted() &&
              series.ready() == 0;
    }
    // Who leaves takes along what no round has counted yet.
    if (all_stay) check_series(step, values, sum);
  }

  static void add(DType dtype, const std::vector<char>& array, std::vector<char>& sum) {
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

  void check_series(const Step& step, const Values& values, const std::vector<char>& sum) {
    std::vector<char> one(sum.size()), all(sum.size(), 0);
    for (uint32_t n = 0; n <= step.rounds; ++n) {
      reduce(contribution(values, n), program_.contributors(step), 0, step.elements(0),
             one.data());
      add(step.dtype, one, all);
    }
    const std::string text = difference(step.dtype, sum.data(), all.data(), step.elements(0));
    if (!text.empty()) rank_.wrong(program(), step, "the sum over all rounds: " + text);
  }

  void finish_first() {
    Batch batch = std::move(pending_.front());
    pending_.pop_front();
    random_.shuffle(batch.calls);
    for (Call& call : batch.calls) finish(call);
  }

  void finish(Call& call) {
    const Step& step = *call.step;
    now("waits for", step);
    const bool planned = step.kind == Kind::kPlanned;
    // A plan that was closed has taken its round with it.
    worker::Completion& completion = planned ? *call.round : call.operation->completion;
    while (!completion.wait_for(kSecond)) {
    }
    now("looks at", step);
    rank_.check_outcome(program(), step, completion.status());
    if (completion.status().ok()) {
      if (!planned) {
        rank_.check(call);
      } else if (rank_.plans_[step.plan] != nullptr) {
        rank_.check_round(call, plan_of(step));
      }
    }
    if (planned && step.closes) rank_.plans_[step.plan].reset();
    rank_.release(call.array);
  }

  Rank& rank_;
  RunningProgram& program_;
  const uint32_t lane_;
  Random random_;
  Doing doing_;
  std::deque<Batch> pending_;
};

void Rank::run(const std::shared_ptr<RunningProgram>& running, Doing& doing) {
  programs_.push_back(running);
  const Program& program = **running;
  const auto number = static_cast<int>(program.index);
  doing.now("makes plans", number);
  for (const PlanSpec& spec : program.plans) {
    worker::PlannedOptions options{spec.name,   nullptr,   spec.op,
                                    spec.narrow, spec.wire, spec.buffer_bytes};
    auto plan = worker::Planned::create(job_->engine(), spec.gradients, std::move(options));
    // Another rank may be at its abort already.
    if (!plan.ok() && program.ending == Ending::kAbort) return;
    if (!plan.ok()) fail(seed_, concat("plan '", spec.name, "': ", plan.status().to_string()));
    plans_.push_back(std::move(*plan));
  }
  std::vector<std::thread> threads;
  for (uint32_t lane = 0; lane < program.lanes.size(); ++lane) {
    threads.emplace_back([this, running, lane] { Lane(*this, *running, lane).run(); });
  }
  if (program.ending_rank == rank_ && program.ending != Ending::kNone) {
    doing.now("is about to end the job", number);
    sleep_ms(program.ending_ms);
    if (program.ending == Ending::kAbort) job_->abort(kAbortReason);
    if (program.ending == Ending::kLeave) {
      doing.now("shuts down", number);
      job_->shutdown();
    }
  }
  doing.rests("waits for its lanes", number);
  for (std::thread& thread : threads) thread.join();
  plans_.clear();
  if (program.ending != Ending::kNone) return;
  // Nobody leaves while others still need it.
  doing.now("ends the program", number);
  worker::Request request;
  request.name = concat("p", program.index, ".end");
  request.shape = {0};
  auto barrier = job_->engine().submit(std::move(request), true);
  if (!barrier.ok()) fail(seed_, concat("rank ", rank_, ": ", barrier.status().to_string()));
  while (!(*barrier)->completion.wait_for(kSecond)) {
  }
  const Status& status = (*barrier)->completion.status();
  // Who has passed it may have begun the next program, and have aborted the job in it.
  const bool aborted = status.message().find(kAbortReason) != std::string::npos;
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
      if (!call.operation->completion.done()) {
        wrong(**call.program, *call.step, "it never completed, not even by shutdown()");
      }
      if (call.operation->completion.status().ok()) check(call);
    }
    release(call.array);
  }
  dropped_.clear();
}

Rank::~Rank() = default;

}  // namespace herring::random_test
