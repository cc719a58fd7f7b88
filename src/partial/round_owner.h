// Who is in which round of a partial all-reduce: the one owner of a series of rounds counts joins,
// closes a round when its quorum is met, and commits it. Pure bookkeeping, no I/O; times are given.
//
// Words. A worker produces contributions, numbered from 1. A *join* says: "all I have produced up
// to `upto` is ready; I go on once I have the results of the rounds before `base`". So `base` is
// the version of the weights that its next contribution will be computed on. A join is *active* in
// round r when base is r + 1: the worker waits for this very result. Only active joins count
// towards the quorum. Any other is *passive*: its worker found a result and went on computing; what
// it announced enters the next round that closes, but closes none.
//
// A worker that *flushes* joins with `last`: it produces nothing more, and takes results until the
// series has ended. With each that it takes it *follows*: it joins again with the same `upto` and
// the next `base`, so that the owner knows how far it is. It does not count towards the quorum any
// more, which is that of the others if fewer are left. When all members flush and wait for the same
// round, that one takes all that is pending, and is the last of the series for all of them.
//
// In a *replay* of a recorded series joins say which round they are in and how many contributors
// that one has; it closes when so many have come, and the quorum means nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace herring::partial {

struct Quorum {
  uint32_t workers = 1;    // in the series at its start
  uint32_t quorum = 1;     // active joins that close a round; if fewer contribute, all of them
  Nanos grace = 0;         // for more to join, once the quorum is met
  uint32_t staleness = 0;  // rounds a contribution may miss before a round waits for it
  bool replays = false;
};

inline constexpr Nanos kMaxGrace = 24 * 3600 * kSecond;
inline constexpr uint32_t kMaxStaleness = 1 << 20;

// kInvalidArgument names the value.
Status check(const Quorum& quorum);

struct Join {
  uint32_t rank = 0;
  uint64_t upto = 0;
  uint32_t base = 0;
  bool last = false;  // the worker flushes
  uint32_t round = 0, contributors = 0;  // of a replay
};

struct Contributor {
  uint32_t rank = 0;
  uint64_t upto = 0;       // its contributions after the last counted one, up to this one
  uint32_t staleness = 0;  // rounds between the weights of the oldest of them and this round
  bool active = false;
  Nanos waited = 0;        // since it joined; less than 0: late by so much for the round it missed
};

struct Closed {
  uint32_t round = 0;
  uint32_t attempt = 0;
  bool last = false;                      // the series ends with it, for all members
  std::vector<Contributor> contributors;  // by rank
  std::vector<uint32_t> members;          // who gets the result, by rank
  std::vector<uint32_t> waiting;          // which of them have nothing else to do
};

// A worker that is gone: what of its contributions was counted, and what it had announced beyond.
struct Lost {
  uint32_t rank = 0;
  uint64_t counted = 0, announced = 0;
};

class RoundOwner {
 public:
  // `pushes`: contributions are pushed after a round has closed, and it must be committed;
  // otherwise they came with the joins, and closing commits.
  RoundOwner(const Quorum& quorum, bool pushes);

  // kProtocol: a worker that keeps to the rules cannot say that.
  Status check(const Join& join) const;
  // False: it says nothing new (a duplicate, or the worker is no member any more).
  bool join(const Join& join, Nanos now);
  // The worker is dead or has left: it is no longer waited for. A round that it contributes to, and
  // that is not committed yet, is repeated without it.
  void lost(uint32_t rank);
  // Closes the round when that is possible; ask after every change, and at `wake_at()`. Where
  // contributions are pushed, all members have received what was closed before (an attempt that was
  // given up included): so a worker has one result on its way to it at most, and what it announced
  // before that result came is known here. The last round may be without contributors, where the
  // only worker that was to contribute has died; it then counts at once, and nothing is pushed.
  std::optional<Closed> close(Nanos now);
  // When the grace ends; 0: nothing to wait for.
  Nanos wake_at() const { return wake_at_; }
  // `rank` has the result of this attempt; true: this commits the round. `whole`: all contributions
  // are in it (otherwise a contributor has died, and its loss will be reported here, too).
  bool received(uint32_t rank, uint32_t round, uint32_t attempt, bool whole = true);

  uint32_t round() const { return round_; }
  // No member is left: the series has ended.
  bool ended() const;
  bool member(uint32_t rank) const { return rank < ranks_.size() && ranks_[rank].member; }
  // How much a worker has announced.
  uint64_t announced(uint32_t rank) const { return ranks_[rank].upto; }
  const std::vector<Lost>& losses() const { return losses_; }
  // Since when somebody waits in the open round (0: nobody), and whom the round waits for.
  Nanos waiting_since() const;
  std::vector<uint32_t> missing() const;

 private:
  struct Rank {
    bool member = true;
    uint64_t upto = 0, counted = 0;
    uint32_t base = 0;       // of the newest join
    uint32_t round = 0, contributors = 0;  // likewise
    uint32_t oldest = 0;     // version of the oldest contribution that is not counted
    bool last = false;       // it flushes
    Nanos joined_at = 0;     // with the oldest contribution that is not counted
    Nanos joined_next_at = 0;  // with the oldest that was not there when the round closed
    Nanos waits_since = 0;   // with the newest
    bool receiving = false;  // has not got the last closed round's result yet

    bool joined() const { return member && upto > counted; }
  };

  bool active(const Rank& rank) const {
    return rank.joined() && (rank.last || rank.base == round_ + 1);
  }
  // Whether the open round takes what it has announced.
  bool enters(const Rank& rank) const {
    return rank.joined() && (!quorum_.replays || rank.round == round_);
  }
  // Of workers that flush: one follows when it has taken all results, and lags when so many wait
  // for it that there must not be another one.
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

  const Quorum quorum_;
  const bool pushes_;
  std::vector<Rank> ranks_;
  uint32_t round_ = 0, attempt_ = 0;
  uint32_t last_round_ = 0, last_attempt_ = 0;  // of the last close
  std::optional<Closed> pushing_;  // closed, not committed
  std::vector<Rank> at_close_;     // the contributors as they were then
  Nanos met_at_ = 0, wake_at_ = 0;
  std::vector<Nanos> closed_at_;   // of the last rounds, by round modulo size; for statistics
  std::vector<Lost> losses_;
};

}  // namespace herring::partial
