#include "partial/round_owner.h"

#include <algorithm>

namespace herring::partial {

Status check(const Quorum& quorum) {
  if (quorum.quorum < 1 || quorum.quorum > quorum.workers) {
    return {Code::kInvalidArgument,
            concat("the quorum is ", quorum.quorum,
                   "; it must be from 1 to the number of workers, ", quorum.workers)};
  }
  if (quorum.grace < 0) {
    return {Code::kInvalidArgument, concat("the grace is ", to_seconds(quorum.grace),
                                           " s; it must not be negative")};
  }
  return {};
}

RoundOwner::RoundOwner(const Quorum& quorum, bool pushes)
    : quorum_(quorum), pushes_(pushes), ranks_(quorum.workers),
      closed_at_(size_t{quorum.staleness} + 2, 0) {}

bool RoundOwner::join(const Join& join, Nanos now) {
  if (join.rank >= ranks_.size()) return false;
  Rank& rank = ranks_[join.rank];
  if (!rank.member || join.upto <= rank.upto) return false;
  if (!rank.joined()) rank.joined_at = now;
  if (pushing_ && rank.upto == at_close_[join.rank].upto) rank.joined_next_at = now;
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
  // Nobody has the whole result, and perhaps nobody ever will.
  if (contributes) pushing_.reset();
}

// Whether the quorum is met and no contribution would become too old.
bool RoundOwner::complete(bool* everybody) const {
  if (quorum_.replays) {
    *everybody = true;  // there is nobody more to come
    uint32_t here = 0, recorded = 0;
    for (const Rank& rank : ranks_) {
      if (!enters(rank)) continue;
      ++here;
      recorded = std::max(recorded, rank.contributors);
    }
    return here > 0 && here >= recorded;
  }
  uint32_t members = 0, joined = 0, actives = 0;
  bool too_old = false, last = false;
  for (const Rank& rank : ranks_) {
    if (!rank.member) continue;
    ++members;
    joined += rank.joined();
    actives += active(rank);
    last |= rank.joined() && rank.last;
    // It may be missed by this round only if the next `staleness` rounds do not depend on it yet.
    too_old |= !rank.joined() && round_ - rank.oldest >= quorum_.staleness;
  }
  *everybody = joined == members;
  // Whoever leaves takes everything along that is pending anywhere.
  if (last) return actives == members;
  return members > 0 && actives >= std::min(quorum_.quorum, members) && !too_old;
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
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (!rank.member) continue;
    closed.members.push_back(r);
    rank.receiving = pushes_;
    if (!enters(rank)) continue;
    closed.last |= rank.last;
    const bool late = rank.oldest < round_;
    const Nanos since =
        late ? closed_at_[rank.oldest % closed_at_.size()] - rank.joined_at : now - rank.joined_at;
    closed.contributors.push_back({r, rank.upto, round_ - rank.oldest, active(rank), since});
  }
  closed_at_[round_ % closed_at_.size()] = now;
  at_close_ = ranks_;
  pushing_ = closed;
  if (!pushes_) commit();
  return closed;
}

void RoundOwner::commit() {
  for (const Contributor& one : pushing_->contributors) {
    Rank& rank = ranks_[one.rank];
    const Rank& then = at_close_[one.rank];
    rank.counted = one.upto;
    rank.oldest = then.base;
    if (rank.joined()) rank.joined_at = rank.joined_next_at;
    if (then.last) rank.member = rank.receiving = false;
  }
  pushing_.reset();
  ++round_;
  attempt_ = 0;
}

bool RoundOwner::received(uint32_t rank, uint32_t round, uint32_t attempt, bool whole) {
  if (rank >= ranks_.size() || round != last_round_ || attempt != last_attempt_) return false;
  ranks_[rank].receiving = false;
  if (!pushing_ || !whole) return false;  // committed already, or given up
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
  // In a replay they may be there long before the round that they are in.
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
