#include "observe/sampler.h"

#include <algorithm>
#include <utility>

namespace herring::observe {
namespace {

constexpr double kLong = 3;       // times the usual duration
constexpr double kFresh = 0.05;   // weight of the latest round in the average

}  // namespace

std::vector<Sampler::Buffers>::iterator Sampler::buffers_of(const Key& key) {
  return std::find_if(buffers_.begin(), buffers_.end(),
                      [&key](const Buffers& one) { return one.key == key; });
}

// Returns when the latest round of a plan was done; 0 if that is not known. Forgets the plan whose
// latest round is the oldest if there are too many.
Nanos& Sampler::done_of(const Series& series) {
  if (done_.size() == kMostPlans && !done_.contains(series)) {
    done_.erase(std::ranges::min_element(done_, {}, [](const auto& one) { return one.second; }));
  }
  return done_[series];
}

void Sampler::add(const Entry& ended) {
  const Key key{ended.group, ended.stream, ended.round};
  if (ended.kind == Kind::kBuffer) {
    auto buffers = buffers_of(key);
    if (buffers == buffers_.end()) {
      if (buffers_.size() >= kMostRounds) buffers_.erase(buffers_.begin());
      buffers = buffers_.insert(buffers_.end(), {key});
    }
    buffers->reduced = std::max(buffers->reduced, ended.when(Moment::kReduced));
    buffers->pushed = std::max(buffers->pushed, ended.when(Moment::kPushed));
    buffers->bytes += ended.bytes;
    return;
  }
  if (ended.kind != Kind::kRound) return;
  Buffers of_round;
  if (const auto buffers = buffers_of(key); buffers != buffers_.end()) {
    of_round = *buffers;
    buffers_.erase(buffers);
  }
  Nanos& before = done_of({ended.group, ended.stream});
  const Nanos done = ended.when(Moment::kDone);
  if (ended.outcome == Code::kOk && done != 0) {
    RoundSample sample;
    std::tie(sample.group, sample.stream, sample.round) = key;
    sample.before = before;
    sample.called = ended.when(Moment::kCalled);
    sample.ready = ended.when(Moment::kReady);
    sample.done = done;
    sample.waited = ended.waited;
    sample.reduced = of_round.reduced;
    sample.pushed = of_round.pushed;
    sample.bytes = ended.bytes == 0 ? of_round.bytes : ended.bytes;
    const auto took = static_cast<double>(before == 0 ? 0 : done - before);
    const bool is_long = usual_ > 0 && took > kLong * usual_;
    if (took > 0 && usual_ == 0) usual_ = took;
    if (took > 0) usual_ += kFresh * (std::min(took, 10 * usual_) - usual_);
    if (++rounds_ > most_ * finest_) thin(finest_ *= 2);
    if (sample.round % finest_ == 0 || is_long) samples_.push_back({sample, is_long});
  }
  before = std::max(before, done);
}

void Sampler::thin(uint32_t stride) {
  std::erase_if(samples_, [stride](const Sample& one) {
    return one.of.round % stride != 0 && !one.is_long;
  });
}

std::vector<RoundSample> Sampler::take() {
  stride_ = std::max(stride_, finest_);
  while (stride_ > 1 && rounds_ <= most_ * stride_ / 4) stride_ /= 2;
  thin(stride_);
  std::vector<RoundSample> samples;
  for (const Sample& one : std::exchange(samples_, {})) samples.push_back(one.of);
  rounds_ = 0;
  finest_ = 1;
  return samples;
}

}  // namespace herring::observe
