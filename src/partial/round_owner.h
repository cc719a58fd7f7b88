// Decides who is in which round of a partial all-reduce. A series of rounds has one owner, which
// counts joins, closes a round when its quorum is met, and commits the round. This is pure
// bookkeeping without I/O; callers pass the time.
//
// Terms. A worker produces contributions, numbered from 1. A *join* says: "all I have produced up
// to `upto` is ready; I go on once I have the results of the rounds before `base`". So `base` is
// the version of the weights on which the worker will compute its next contribution. A join is
// *active* in round r if base is r + 1: the worker waits for the result of round r. Only active
// joins count towards the quorum. Every other join is *passive*: its worker found a result and went
// on computing. The contributions of a passive join enter the next round that closes, but do not
// close a round.
//
// A worker that *flushes* joins with `last`: it produces nothing more, and takes results until the
// series has ended. With each result that it takes, the worker *follows*: it joins again with the
// same `upto` and the next `base`, so that the owner knows how far it is. Such a worker no longer
// counts towards the quorum; if fewer workers than the quorum remain, all of them are needed. When
// all members flush and wait for the same round, that round takes everything pending and is the
// last of the series for all members.
//
// In a *replay* of a recorded series, joins say which round they are in and how many contributors
// that round has. The round closes when that many have joined; the quorum has no meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "partial/series_state.h"

namespace herring::partial {

struct Quorum {
  uint32_t workers = 1;    // in the series when it starts
  uint32_t quorum = 1;     // active joins that close a round, or all if fewer contribute
  Nanos grace = 0;         // time for more workers to join after the quorum is met
  uint32_t staleness = 0;  // rounds that a contribution may miss before a round waits for it
  bool replays = false;
};

inline constexpr Nanos kMaxGrace = 24 * 3600 * kSecond;
inline constexpr uint32_t kMaxStaleness = 1 << 20;

// Returns kInvalidArgument with the value if the quorum is not valid.
Status check(const Quorum& quorum);

struct Closed {
  uint32_t round = 0;
  uint32_t attempt = 0;
  bool last = false;                      // the series ends with this round, for all members
  std::vector<Contributor> contributors;  // by rank
  std::vector<uint32_t> members;          // who gets the result, by rank
  std::vector<uint32_t> waiting;          // the members that have nothing else to do
};

// What a member lacks when another server becomes the owner.
struct Due {
  uint32_t rank = 0;
  const HeardRound* round = nullptr;
  bool commit = false;  // it has heard of the round, but not that it is committed
};

struct TakenOver;

class RoundOwner {
 public:
  // `pushes`: contributions are pushed after a round has closed, and the round must be committed.
  // Otherwise contributions come with the joins, and closing a round commits it.
  RoundOwner(const Quorum& quorum, bool pushes);

  // Goes on where an owner that is gone has stopped. `known`: by rank, what members tell; nothing
  // of those that are gone, or that have not begun the series. Rounds of which nobody has heard
  // never happened. Call lost() afterwards for everybody who is gone. Returns kProtocol if members
  // contradict each other, and kPeerLost if some member lacks a round that no other keeps.
  // Contributions that came with the joins are not counted here: the caller adds them up again, see
  // counted().
  static Result<TakenOver> take_over(const Quorum& quorum, bool pushes,
                                     const std::vector<std::optional<SeriesState>>& known,
                                     Nanos now);

  // Returns kProtocol if a worker that keeps to the rules cannot send this join.
  Status check(const Join& join) const;
  // Returns false if the join says nothing new: it is a duplicate, or its worker is not a member
  // any more.
  bool join(const Join& join, Nanos now);
  // The worker is dead or has left, so nobody waits for it any more. An uncommitted round to which
  // it contributes is repeated without it.
  void lost(uint32_t rank);
  // Closes the round if that is possible. Call this after every change and at `wake_at()`.
  // If contributions are pushed, a round closes only after all members have received what was
  // closed before, including an attempt that was given up. So at most one result is on its way to a
  // worker, and the owner knows what the worker announced before that result came.
  // The last round may have no contributors, if the only worker that would contribute has died.
  // Such a round is committed at once, and nothing is pushed.
  std::optional<Closed> close(Nanos now);
  // Returns when the grace period ends; 0 if there is nothing to wait for.
  Nanos wake_at() const { return wake_at_; }
  // `rank` has the result of this attempt. Returns whether this commits the round. `whole`: it has
  // all contributions. If it does not, a contributor has died, and lost() will be called for it.
  bool received(uint32_t rank, uint32_t round, uint32_t attempt, bool whole = true);

  uint32_t round() const { return round_; }
  // Returns whether no member is left, so that the series has ended.
  bool ended() const;
  bool member(uint32_t rank) const { return rank < ranks_.size() && ranks_[rank].member; }
  // Returns how many contributions a worker has announced.
  uint64_t announced(uint32_t rank) const { return ranks_[rank].upto; }
  // Returns how many of them are in rounds that are committed.
  uint64_t counted(uint32_t rank) const { return ranks_[rank].counted; }
  const std::vector<Lost>& losses() const { return losses_; }
  // Returns since when a worker waits in the open round, or 0 if none does. missing() returns the
  // ranks for which the round waits.
  Nanos waiting_since() const;
  std::vector<uint32_t> missing() const;

 private:
  struct Rank {
    bool member = true;
    uint64_t upto = 0, counted = 0;
    uint32_t base = 0;       // of the newest join
    uint32_t round = 0, contributors = 0;  // of the newest join, in a replay
    uint32_t oldest = 0;     // version of the weights of its oldest uncounted contribution
    bool last = false;       // the worker flushes
    Nanos joined_at = 0;     // when its oldest uncounted contribution was announced
    Nanos joined_next_at = 0;  // when its oldest one that missed the closed round was
    Nanos waits_since = 0;   // time of the newest join
    uint64_t at_close = 0;   // `upto` when the last round closed
    bool receiving = false;  // does not have the last closed round's result yet

    bool joined() const { return member && upto > counted; }
  };

  bool active(const Rank& rank) const {
    return rank.joined() && (rank.last || rank.base == round_ + 1);
  }
  // Returns whether the open round takes what the worker has announced.
  bool enters(const Rank& rank) const {
    return rank.joined() && (!quorum_.replays || rank.round == round_);
  }
  // For workers that flush. A worker follows if it has taken all results. It lags if so many
  // results wait for it that no further round may close.
  bool follows(const Rank& rank) const { return rank.member && rank.last && rank.base > round_; }
  bool lags(const Rank& rank) const {
    return rank.member && rank.last && !follows(rank) &&
           round_ + 1 - rank.base >= quorum_.staleness;
  }
  bool waits(const Rank& rank) const {
    if (rank.last) return follows(rank);
    return quorum_.replays ? rank.joined() : active(rank);
  }
  bool complete(bool* everybody) const;
  bool is_last() const;
  void commit();
  void go_on(const HeardRound& latest, const std::vector<std::optional<SeriesState>>& known);

  Quorum quorum_;
  bool pushes_;
  std::vector<Rank> ranks_;
  uint32_t round_ = 0, attempt_ = 0;
  uint32_t last_round_ = 0, last_attempt_ = 0;  // of the last round that closed
  std::optional<Closed> pushing_;  // closed, but not committed
  Nanos met_at_ = 0, wake_at_ = 0;
  std::vector<Nanos> closed_at_;   // of the last rounds, by round modulo size; for statistics
  std::vector<Lost> losses_;
};

struct TakenOver {
  RoundOwner owner;
  std::vector<Due> due;  // in the order in which each member must hear of it; refers to `known`
};

}  // namespace herring::partial
