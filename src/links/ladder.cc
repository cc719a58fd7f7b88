#include "links/ladder.h"

#include <algorithm>
#include <iterator>

namespace herring::links {
namespace {

// Where no port overflows, packets are lost about equally often with every window.
constexpr double kOverrun = 10;
// A window that overruns a port must move so many times more than one that does not. It must have
// run for so long that a timeout would have shown.
constexpr double kWorthAnOverrun = 1.5;
constexpr Nanos kTimeoutsShow = 250 * kMillisecond;
constexpr size_t kRuinousInARow = 2;
// Paths lose less than this share of their packets at random. Jumbo frames are counted as several
// packets.
constexpr double kRandomLoss = 0.01, kPacket = 1460;

uint16_t twice(uint16_t window, uint16_t most) {
  return static_cast<uint16_t>(std::min<uint32_t>(2u * window, most));
}

}  // namespace

bool Tally::loses_more_than(const Tally& other, double times) const {
  return lossy() && static_cast<double>(lost) * static_cast<double>(other.bytes) >
                        times * static_cast<double>(other.lost + kLossesThatCount) *
                            static_cast<double>(bytes);
}

bool Tally::overran(const Tally& other) const { return loses_more_than(other, kOverrun); }

double Ladder::most() const {
  double most = 0;
  for (const Rung& rung : rungs_) most = std::max(most, rung.goodput);
  return most;
}

void Ladder::lose(uint32_t count, Nanos now) {
  lost_ += count;
  const Nanos when = now - kLossesLateBy;
  if (began_ <= when) {
    lost_here_ += count;
    return;
  }
  Rung* blamed = nullptr;
  for (Rung& rung : rungs_) {
    if (rung.began <= when && (blamed == nullptr || rung.began > blamed->began)) blamed = &rung;
  }
  if (blamed != nullptr) blamed->tally.lost += count;
}

void Ladder::add(double goodput, Tally tally, bool full, Nanos now) {
  tally.lost = lost_here_;
  const auto at = std::find_if(rungs_.begin(), rungs_.end(),
                               [this](const Rung& rung) { return rung.window > window_; });
  latest_ = static_cast<size_t>(at - rungs_.begin());
  rungs_.insert(at, {window_, goodput, tally, full, began_, now});
  began_ = now;
  lost_here_ = 0;
}

bool Ladder::advance(bool ruinous) {
  if (skipped_from_ != 0) {
    if (window_ == last_ && ruinous) return false;
    const uint16_t next = window_ == last_ ? skipped_from_ : twice(window_, last_);
    if (next == last_) return false;
    window_ = next;
    return true;
  }
  if (window_ == last_) return false;
  ruinous_ = ruinous ? ruinous_ + 1 : 0;
  window_ = twice(window_, last_);
  if (ruinous_ >= kRuinousInARow && window_ < last_) {
    skipped_from_ = window_;
    window_ = last_;
  }
  return true;
}

bool Ladder::first_overran(size_t rungs) const {
  for (size_t rung = 1; rung < rungs; ++rung) {
    for (size_t smaller = 0; smaller < rung; ++smaller) {
      if (rungs_[rung].tally.overran(rungs_[smaller].tally)) return true;
    }
  }
  return false;
}

bool Ladder::overran(uint16_t window) const {
  const auto end = std::find_if(rungs_.begin(), rungs_.end(),
                                [=](const Rung& rung) { return rung.window > window; });
  return first_overran(static_cast<size_t>(end - rungs_.begin()));
}

// If a window overruns a port, all larger ones do.
double Ladder::worth(size_t rung) const {
  const Rung& each = rungs_[rung];
  if (!first_overran(rung + 1)) return each.goodput;
  return each.tally.busy < kTimeoutsShow ? 0 : each.goodput / kWorthAnOverrun;
}

bool Ladder::loses_at_random(size_t flows) const {
  Tally all;
  for (size_t i = 0; i < rungs_.size() && !first_overran(i + 1); ++i) {
    all.lost += rungs_[i].tally.lost;
    all.bytes += rungs_[i].tally.bytes;
  }
  // There are about as many ranks as flows, and as many bytes come to each of them.
  const double packets = static_cast<double>(all.bytes) * static_cast<double>(flows) / kPacket;
  return all.lost >= kLossesThatCount * rungs_.size() && all.lost < kRandomLoss * packets;
}

Ladder::Choice Ladder::choose(size_t flows) const {
  double best = 0;
  for (size_t i = 0; i < rungs_.size(); ++i) best = std::max(best, worth(i));
  const auto worth_it = [&](double least) {
    return [this, least](const Rung& rung) {
      return worth(static_cast<size_t>(&rung - rungs_.data())) >= least;
    };
  };
  const auto first = [&](double least) {
    return std::find_if(rungs_.begin(), rungs_.end(), worth_it(least))->window;
  };
  Choice choice{first(best / kPlainGain), first(best / kClearGain), best};
  // A larger window recovers sooner from a loss, unless a smaller one fills the link.
  if (loses_at_random(flows)) {
    const auto full = std::find_if(rungs_.begin(), rungs_.end(),
                                   [](const Rung& rung) { return rung.full; });
    const auto end = full == rungs_.end() ? full : full + 1;
    const auto last = std::find_if(std::make_reverse_iterator(end), rungs_.rend(),
                                   worth_it(best / kPlainGain));
    if (last != rungs_.rend()) choice.window = std::max(choice.window, last->window);
    choice.better = std::max(choice.better, choice.window);
  }
  // A rung that overran a port may be better nevertheless, but only a trial can tell.
  if (const double all = most(); all > kClearGain * best) {
    const auto moves = [&](const Rung& rung) { return rung.goodput >= all / kClearGain; };
    choice.better = std::find_if(rungs_.begin(), rungs_.end(), moves)->window;
  }
  choice.better = std::max(choice.better, choice.window);
  return choice;
}

bool Ladder::corrects(uint16_t window, const Tally& since) {
  if (since.busy < kTimeoutsShow) return false;
  for (size_t i = 1; i < rungs_.size(); ++i) {
    if (rungs_[i].window != window) continue;
    if (rungs_[i].tally.busy >= kTimeoutsShow || first_overran(i + 1)) return false;
    if (!since.overran(rungs_[i - 1].tally)) return false;
    rungs_[i].tally = since;
    rungs_[i].goodput = since.goodput();
    return true;
  }
  return false;
}

bool Ladder::was_ruinous(uint16_t window, uint16_t base) const {
  if (window <= base) return false;
  const double best = most();
  const auto ruinous = [&](size_t i) {
    return rungs_[i].goodput < (first_overran(i + 1) ? best : kRuinous * best);
  };
  for (size_t i = 0; i < rungs_.size(); ++i) {
    if (rungs_[i].window < window) continue;
    return ruinous(i) && (rungs_[i].window == window || i == 0 || ruinous(i - 1));
  }
  return false;
}

}  // namespace herring::links
