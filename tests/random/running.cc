#include "tests/random/running.h"

#include <algorithm>
#include <utility>

#include "reduce/reduce.h"
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
    if (narrow && is_packed(plan.wire) && !is_sparse(plan.wire)) {
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

// Whole numbers below 256 are exact on their way, and so are sums of what is left. An average is
// exact if every round divides by the same number.
std::string RunningProgram::nothing_lost(const Step& step, const std::vector<float>& results,
                                         const std::vector<float>& own) {
  const auto contributing = static_cast<uint32_t>(contributors(step).size());
  const uint32_t divisor = step.op == ReduceOp::kAverage ? std::max(contributing, 1u) : 1;
  Left& left = left_[step.plan];
  std::lock_guard lock(left.mutex);
  if (left.round != step.id) {
    left.is_known &= left.ranks == 0;  // all ranks were through with the round before
    left.ranks = 0;
    left.round = step.id;
    left.sum.assign(results.size(), 0);
    left.is_known &= left.divisor == 0 || left.divisor == divisor || contributing == 0;
    if (contributing > 0) left.divisor = divisor;
  }
  for (size_t i = 0; i < own.size(); ++i) left.sum[i] += own[i];
  if (++left.ranks < step.size()) return {};
  left.ranks = 0;
  const std::vector<double> before = std::exchange(left.before, left.sum);
  if (!left.is_known) return {};
  const auto& gradients = program_.plans[step.plan].gradients;
  size_t at = 0;
  for (size_t g = 0; g < gradients.size(); ++g) {
    std::vector<float> given(gradients[g].elements);
    if (given.empty()) continue;
    reduce::convert(reduction(step, g).data(), gradients[g].dtype, given.data(), DType::kFloat32,
                    given.size(), 1.0);
    for (size_t i = 0; i < given.size(); ++i, ++at) {
      const double to_send = double{given[i]} * divisor + (before.empty() ? 0 : before[at]);
      const double got = double{results[at]} * divisor + left.sum[at];
      if (got == to_send) continue;
      return concat("of number ", i, " of gradient ", g, " ", results[at], " times ", divisor,
                    " has arrived and ", left.sum[at], " is left, not together ", to_send);
    }
  }
  return {};
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
