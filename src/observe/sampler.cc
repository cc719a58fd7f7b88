#include "observe/sampler.h"

#include <algorithm>

namespace herring::observe {
namespace {

constexpr double kLong = 3;       // times the usual duration
constexpr double kFresh = 0.05;   // weight of the latest round in the average

}  // namespace

std::vector<RoundSample> Sampler::take(const std::vector<Entry>& ended) {
  std::vector<std::pair<RoundSample, bool>> all;  // and whether it took long
  for (const Entry& entry : ended) {
    const Key key{entry.group, entry.stream, entry.round};
    if (entry.kind == Kind::kBuffer) {
      if (buffers_.size() >= kMostRounds) buffers_.erase(buffers_.begin());
      Buffers& of_round = buffers_[key];
      of_round.reduced = std::max(of_round.reduced, entry.when(Moment::kReduced));
      of_round.pushed = std::max(of_round.pushed, entry.when(Moment::kPushed));
      of_round.bytes += entry.bytes;
      continue;
    }
    if (entry.kind != Kind::kRound) continue;
    const auto of_round = buffers_.extract(key);
    Nanos& before = done_[{entry.group, entry.stream}];
    const Nanos done = entry.when(Moment::kDone);
    if (entry.outcome == Code::kOk && done != 0) {
      RoundSample sample;
      std::tie(sample.group, sample.stream, sample.round) = key;
      sample.before = before;
      sample.called = entry.when(Moment::kCalled);
      sample.ready = entry.when(Moment::kReady);
      sample.done = done;
      sample.waited = entry.waited;
      sample.bytes = entry.bytes;
      if (!of_round.empty()) {
        sample.reduced = of_round.mapped().reduced;
        sample.pushed = of_round.mapped().pushed;
        if (sample.bytes == 0) sample.bytes = of_round.mapped().bytes;
      }
      const auto took = static_cast<double>(before == 0 ? 0 : done - before);
      const bool is_long = usual_ > 0 && took > kLong * usual_;
      if (took > 0 && usual_ == 0) usual_ = took;
      if (took > 0) usual_ += kFresh * (std::min(took, 10 * usual_) - usual_);
      all.emplace_back(sample, is_long);
    }
    before = std::max(before, done);
  }
  while (all.size() > most_ * stride_) stride_ *= 2;
  while (stride_ > 1 && all.size() <= most_ * stride_ / 4) stride_ /= 2;
  std::vector<RoundSample> samples;
  for (const auto& [sample, is_long] : all) {
    if (sample.round % stride_ == 0 || is_long) samples.push_back(sample);
  }
  return samples;
}

}  // namespace herring::observe
