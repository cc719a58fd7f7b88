#include "tests/random/running.h"

#include <algorithm>

#include "tests/random/random.h"

namespace herring::random_test {
namespace {

// Returns, for example, "bytes 8 to 15 of 64".
std::string where_they_differ(const std::vector<char>& one, const std::vector<char>& other) {
  const auto first = std::mismatch(one.begin(), one.end(), other.begin()).first;
  const auto last = std::mismatch(one.rbegin(), one.rend(), other.rbegin()).first;
  return concat("bytes ", first - one.begin(), " to ", one.rend() - last - 1, " of ", one.size());
}

}  // namespace

std::vector<uint32_t> RunningProgram::contributors(const Step& step) const {
  std::vector<uint32_t> ranks;
  for (uint32_t place = 0; place < step.size(); ++place) {
    if (step.parts[place].active) ranks.push_back(step.ranks[place]);
  }
  return ranks;
}

Values RunningProgram::values_of(const Step& step, size_t index) const {
  Values values{step.salt, step.dtype, step.op, step.prescale, step.postscale, 0};
  bool narrow = false;
  if (step.kind == Kind::kPlanned) {
    const PlanSpec& plan = program_.plans[step.plan];
    values.salt = mix(step.salt + index);
    if (index == plan.gradients.size()) {
      values.dtype = DType::kUInt8;  // the note
      values.op = ReduceOp::kMax;
      return values;
    }
    values.dtype = plan.gradients[index].dtype;
    narrow = plan.narrow;
    if (narrow && is_packed(plan.wire)) {
      values.lone = static_cast<uint32_t>(program_.groups.front().ranks.size());
    }
  }
  const bool coarse = values.dtype == DType::kFloat16 || values.dtype == DType::kBFloat16;
  // 16-bit results are rounded more than once if there are several stages.
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
    std::vector<uint64_t> counts{step.elements(0)};
    if (step.kind == Kind::kPlanned) {
      const PlanSpec& plan = program_.plans[step.plan];
      counts.clear();
      for (const plan::Gradient& gradient : plan.gradients) counts.push_back(gradient.elements);
      counts.push_back(plan.note_bytes);
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      const Values values = values_of(step, i);
      const uint64_t count = counts[i];
      expected.arrays.emplace_back(count * size_of(values.dtype));
      reduce(values, ranks, 0, count, expected.arrays.back().data());
    }
  }
  return expected.arrays[index];
}

std::string RunningProgram::same_everywhere(const Step& step, uint32_t round,
                                            const std::vector<char>& result, std::string how) {
  Expected& expected = expected_[step.id];
  std::lock_guard lock(expected.mutex);
  auto& rounds = expected.rounds;
  if (round > rounds.size()) return concat("round ", round, " was skipped");
  if (round == rounds.size()) rounds.emplace_back(result, how);
  const auto& [first, first_how] = rounds[round];
  if (first == result) return {};
  return concat("round ", round, " differs between ranks in ", where_they_differ(result, first),
                ": here ", how, "; there ", first_how);
}

void RunningProgram::start_together() {
  std::unique_lock lock(mutex_);
  if (--to_start_ == 0) changed_.notify_all();
  changed_.wait(lock, [this] { return to_start_ == 0; });
}

void RunningProgram::rank_done() {
  std::lock_guard lock(mutex_);
  if (--at_work_ == 0) changed_.notify_all();
}

void RunningProgram::wait_for_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return at_work_ == 0; });
}

}  // namespace herring::random_test
