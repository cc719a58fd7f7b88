#include "partial/round_owner.h"

#include <algorithm>

namespace herring::partial {
namespace {

// The lateness of a worker that missed more rounds is measured from the oldest round remembered.
constexpr uint32_t kRoundsRemembered = 1024;

}  // namespace

Status check(const Quorum& quorum) {
  if (quorum.quorum < 1 || quorum.quorum > quorum.workers) {
    return {Code::kInvalidArgument,
            concat("the quorum is ", quorum.quorum,
                   "; it must be from 1 to the number of workers, ", quorum.workers)};
  }
  if (quorum.grace < 0 || quorum.grace > kMaxGrace) {
    return {Code::kInvalidArgument,
            concat("the grace is ", to_seconds(quorum.grace),
                   " s; it must not be negative, nor more than ", to_seconds(kMaxGrace))};
  }
  if (quorum.staleness > kMaxStaleness) {
    return {Code::kInvalidArgument, concat("the staleness is ", quorum.staleness,
                                           " rounds; at most ", kMaxStaleness, " are allowed")};
  }
  return {};
}

RoundOwner::RoundOwner(const Quorum& quorum, bool pushes)
    : quorum_(quorum), pushes_(pushes), ranks_(quorum.workers),
      closed_at_(std::min(quorum.staleness, kRoundsRemembered) + 2, 0) {}

Status RoundOwner::check(const Join& join) const {
  const Rank& rank = ranks_[join.rank];
  const bool adds = join.upto > rank.upto;
  if (adds && rank.last) {
    return breach("contribution ", join.upto, " after the last one, ", rank.upto);
  }
  // No worker has results of rounds that are still to come, or gives results back.
  if (join.base > round_ + 1 || (adds && join.base < rank.base)) {
    return breach("base ", join.base, " after ", rank.base, ", while round ", round_, " is open");
  }
  return {};
}

bool RoundOwner::join(const Join& join, Nanos now) {
  if (!member(join.rank)) return false;
  Rank& rank = ranks_[join.rank];
  if (rank.last && join.upto == rank.upto && join.base > rank.base) {
    rank.base = join.base;
    rank.waits_since = now;
    return true;
  }
  if (join.upto <= rank.upto) return false;
  if (!rank.joined()) rank.joined_at = now;
  if (pushing_ && rank.upto == rank.at_close) rank.joined_next_at = now;
  rank.upto = join.upto;
  rank.base = join.base;
  rank.last = join.last;
  rank.round = join.round;
  rank.contributors = join.contributors;
  rank.waits_since = now;
  return true;
}

void RoundOwner::lost(uint32_t rank) {
  if (!member(rank)) return;
  Rank& gone = ranks_[rank];
  gone.member = false;
  gone.receiving = false;
  losses_.push_back({rank, gone.counted, gone.upto});
  if (!pushing_) return;
  std::erase(pushing_->members, rank);
  const auto contributes = std::any_of(
      pushing_->contributors.begin(), pushing_->contributors.end(),
      [&](const Contributor& one) { return one.rank == rank; });
  // No member has the whole result, and perhaps none ever will.
  if (contributes) pushing_.reset();
}

// Returns whether all members flush and the open round leaves nothing pending.
bool RoundOwner::is_last() const {
  return std::none_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return rank.member && (!rank.last || (rank.joined() && !enters(rank)));
  });
}

// Returns whether the quorum is met and no contribution would become too old.
bool RoundOwner::complete(bool* everybody) const {
  *everybody = true;
  uint32_t members = 0, contributing = 0, entering = 0, recorded = 0, actives = 0;
  bool must_wait = false;
  const bool last = is_last();
  for (const Rank& rank : ranks_) {
    if (!rank.member) continue;
    ++members;
    // A worker that lacks results when the series ends would go on following the series.
    must_wait |= last ? !follows(rank) : lags(rank);
    if (enters(rank)) {
      ++entering;
      recorded = std::max(recorded, rank.contributors);
    }
    if (rank.last || quorum_.replays) continue;
    ++contributing;
    actives += active(rank);
    *everybody &= rank.joined();
    // The round waits for a worker whose oldest contribution has missed `staleness` rounds.
    must_wait |= !rank.joined() && round_ - rank.oldest >= quorum_.staleness;
  }
  if (must_wait || members == 0) return false;
  if (quorum_.replays) return entering > 0 && entering >= recorded;
  return actives >= std::min(quorum_.quorum, contributing);
}

std::optional<Closed> RoundOwner::close(Nanos now) {
  wake_at_ = 0;
  if (pushing_) return {};
  for (const Rank& rank : ranks_) {
    if (rank.member && rank.receiving) return {};
  }
  bool everybody = false;
  if (!complete(&everybody)) {
    met_at_ = 0;
    return {};
  }
  if (met_at_ == 0) met_at_ = now;
  if (!everybody && now < met_at_ + quorum_.grace) {
    wake_at_ = met_at_ + quorum_.grace;
    return {};
  }
  met_at_ = 0;
  Closed closed;
  closed.round = round_;
  closed.attempt = attempt_++;
  last_round_ = closed.round;
  last_attempt_ = closed.attempt;
  closed.last = is_last();
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (!rank.member) continue;
    closed.members.push_back(r);
    if (follows(rank) || (enters(rank) && active(rank))) closed.waiting.push_back(r);
    if (!enters(rank)) continue;
    Nanos since = now - rank.joined_at;
    if (rank.oldest < round_) {
      const auto remembered = static_cast<uint32_t>(closed_at_.size());
      const uint32_t missed = std::max(rank.oldest, round_ - std::min(round_, remembered));
      since = closed_at_[missed % remembered] - rank.joined_at;
    }
    closed.contributors.push_back(
        {r, rank.upto, round_ - rank.oldest, active(rank), since, rank.base});
  }
  closed_at_[round_ % closed_at_.size()] = now;
  for (Rank& rank : ranks_) rank.at_close = rank.upto;
  pushing_ = closed;
  if (!pushes_ || closed.contributors.empty()) {
    commit();
    return closed;
  }
  for (uint32_t r : closed.members) ranks_[r].receiving = true;
  return closed;
}

void RoundOwner::commit() {
  for (const Contributor& one : pushing_->contributors) {
    Rank& rank = ranks_[one.rank];
    rank.counted = one.upto;
    rank.oldest = one.base;
    if (rank.joined()) rank.joined_at = rank.joined_next_at;
  }
  if (pushing_->last) {
    for (Rank& rank : ranks_) rank.member = rank.receiving = false;
  }
  pushing_.reset();
  ++round_;
  attempt_ = 0;
}

bool RoundOwner::received(uint32_t rank, uint32_t round, uint32_t attempt, bool whole) {
  if (!member(rank) || round != last_round_ || attempt != last_attempt_) return false;
  ranks_[rank].receiving = false;
  if (!pushing_ || !whole) return false;  // already committed, or given up
  commit();
  return true;
}

bool RoundOwner::ended() const {
  return std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.member; });
}

Nanos RoundOwner::waiting_since() const {
  Nanos since = 0;
  for (const Rank& rank : ranks_) {
    if (waits(rank) && (since == 0 || rank.waits_since < since)) since = rank.waits_since;
  }
  // In a replay, joins may arrive long before the round that they belong to opens.
  if (quorum_.replays && since != 0 && round_ > 0) {
    since = std::max(since, closed_at_[(round_ - 1) % closed_at_.size()]);
  }
  return since;
}

std::vector<uint32_t> RoundOwner::missing() const {
  std::vector<uint32_t> list;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.member && (pushing_ ? rank.receiving : !waits(rank))) list.push_back(r);
  }
  return list;
}

}  // namespace herring::partial
