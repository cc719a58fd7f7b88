// How the owner of a series begins if the one before it is gone. Only what members know is left.
//
// If contributions are pushed, a round closes when all members have the result of the one before.
// So members have heard of the same round or of two in turn, and only the latest can be incomplete.
// If contributions come with the joins, a round is over for a member that has heard of it, and
// members may be several rounds apart.
#include <algorithm>
#include <map>
#include <utility>

#include "partial/round_owner.h"

namespace herring::partial {
namespace {

// Checks what one member tells.
Status check_known(const SeriesState& known, uint32_t rank, uint32_t workers, bool pushes) {
  const auto wrong = [&](const auto&... what) {
    return breach("rank ", rank, " tells of a series ", what...);
  };
  if (known.counts.size() != workers) {
    return wrong("of ", known.counts.size(), " workers, not ", workers);
  }
  const uint32_t end = known.rounds + (pushes ? 1 : 0);
  for (size_t i = 0; i < known.heard.size(); ++i) {
    const HeardRound& round = known.heard[i];
    if (round.round >= end || (i > 0 && round.round != known.heard[i - 1].round + 1)) {
      return wrong("in which it has completed ", known.rounds, " rounds, with round ", round.round);
    }
    for (size_t c = 0; c < round.contributors.size(); ++c) {
      const Contributor& one = round.contributors[c];
      if (one.rank >= workers || (c > 0 && one.rank <= round.contributors[c - 1].rank)) {
        return wrong("with contributor ", one.rank, " of round ", round.round);
      }
    }
    for (const Lost& one : round.lost) {
      if (one.rank >= workers) return wrong("that has lost worker ", one.rank);
    }
  }
  for (size_t i = 0; i < known.said.size(); ++i) {
    const Join& join = known.said[i].join;
    if (join.rank != rank || join.base > known.rounds + 1 ||
        (i > 0 && join.upto <= known.said[i - 1].join.upto)) {
      return wrong("with contribution ", join.upto, " and base ", join.base);
    }
  }
  return {};
}

}  // namespace

Result<TakenOver> RoundOwner::take_over(const Quorum& quorum, bool pushes,
                                        const std::vector<std::optional<SeriesState>>& known,
                                        Nanos now) {
  TakenOver taken{RoundOwner(quorum, pushes), {}};
  RoundOwner& owner = taken.owner;
  const SeriesState* best = nullptr;
  std::map<uint32_t, const HeardRound*> rounds;  // the latest attempts
  std::map<uint32_t, bool> committed;
  for (uint32_t rank = 0; rank < known.size(); ++rank) {
    if (!known[rank]) continue;
    const SeriesState& one = *known[rank];
    HERRING_RETURN_IF_ERROR(check_known(one, rank, quorum.workers, pushes));
    if (best == nullptr || one.rounds > best->rounds) best = &one;
    for (const HeardRound& round : one.heard) {
      const HeardRound*& latest = rounds[round.round];
      if (latest == nullptr || round.attempt > latest->attempt) latest = &round;
      if (latest->is(round) && latest->text != round.text) {
        return breach("rank ", rank, " has heard of another round ", round.round,
                      " than other ranks");
      }
    }
  }
  if (best == nullptr) return taken;
  owner.round_ = best->rounds;
  for (uint32_t rank = 0; rank < known.size(); ++rank) {
    owner.ranks_[rank].counted = owner.ranks_[rank].upto = best->counts[rank].upto;
    owner.ranks_[rank].oldest = owner.ranks_[rank].base = best->counts[rank].base;
    owner.ranks_[rank].joined_at = owner.ranks_[rank].joined_next_at = now;
    if (!known[rank] || known[rank]->said.empty()) continue;
    const Join& newest = known[rank]->said.back().join;
    if (newest.upto < owner.ranks_[rank].counted) {
      return breach("rank ", rank, " has announced ", newest.upto, " contributions, but ",
                    owner.ranks_[rank].counted, " are counted");
    }
    owner.join(newest, now);
    // It may only follow.
    owner.ranks_[rank].base = newest.base;
    owner.ranks_[rank].last = newest.last;
    owner.ranks_[rank].waits_since = now;
  }
  std::fill(owner.closed_at_.begin(), owner.closed_at_.end(), now);
  if (!rounds.empty()) owner.go_on(*rounds.rbegin()->second, known);
  for (uint32_t rank = 0; rank < known.size(); ++rank) {
    if (!known[rank]) continue;
    const SeriesState& one = *known[rank];
    const uint32_t end = owner.pushing_ ? owner.round_ + 1 : owner.round_;
    for (uint32_t round = one.rounds; round < end; ++round) {
      const auto found = rounds.find(round);
      if (found == rounds.end()) {
        return Status(Code::kPeerLost,
                      concat("a server is lost, and with it round ", round,
                             " for rank ", rank, ", which no other rank keeps"));
      }
      const HeardRound& latest = *found->second;
      const bool has = !one.heard.empty() && one.heard.back().is(latest);
      if (!has) taken.due.push_back({rank, &latest, false});
      const bool counts = round < owner.round_ && pushes && !latest.contributors.empty();
      if (counts && !(has && one.committed)) taken.due.push_back({rank, &latest, true});
    }
  }
  return taken;
}

// Continues with the latest round of which anybody has heard.
void RoundOwner::go_on(const HeardRound& latest,
                       const std::vector<std::optional<SeriesState>>& known) {
  last_round_ = latest.round;
  last_attempt_ = latest.attempt;
  losses_ = latest.lost;
  bool whole = false;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    Rank& one = ranks_[rank];
    const bool has = known[rank] && !known[rank]->heard.empty() &&
                     known[rank]->heard.back().is(latest);
    const bool completed = known[rank] && known[rank]->rounds > latest.round;
    const bool received = completed || (has && known[rank]->received);
    one.receiving = pushes_ && !latest.contributors.empty() && !received;
    whole |= has && (known[rank]->committed || (known[rank]->received && known[rank]->whole));
  }
  for (const Lost& one : losses_) ranks_[one.rank].member = ranks_[one.rank].receiving = false;
  if (latest.round < round_) {
    if (!latest.last) return;
    for (Rank& rank : ranks_) rank.member = rank.receiving = false;
    return;
  }
  attempt_ = latest.attempt + 1;
  Closed closed{latest.round, latest.attempt, latest.last, latest.contributors, {}, {}};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].at_close = ranks_[rank].counted;
    if (ranks_[rank].member) closed.members.push_back(rank);
  }
  for (const Contributor& one : closed.contributors) {
    Rank& rank = ranks_[one.rank];
    rank.at_close = one.upto;
    // It is gone, and cannot say itself what it has announced.
    if (rank.upto < one.upto) rank.upto = one.upto;
  }
  pushing_ = std::move(closed);
  if (whole) commit();
}

}  // namespace herring::partial
