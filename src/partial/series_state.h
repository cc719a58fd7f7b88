// What a worker knows of a series of rounds (round_owner.h): who has joined, and which rounds have
// closed. Workers keep it so that another server can become the owner. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"

namespace herring::partial {

struct Join {
  uint32_t rank = 0;
  uint64_t upto = 0;
  uint32_t base = 0;
  bool last = false;  // the worker flushes
  uint32_t round = 0, contributors = 0;  // in a replay only
};

struct Contributor {
  uint32_t rank = 0;
  uint64_t upto = 0;       // its contributions after the last counted one, up to this one
  uint32_t staleness = 0;  // rounds between the weights of the oldest of these and this
  bool active = false;
  Nanos waited = 0;        // since it joined; negative: how late it was for the missed round
  uint32_t base = 0;       // of its join: the weights for its next contribution
};

// A worker that is gone: which of its contributions were counted, and what it had announced.
struct Lost {
  uint32_t rank = 0;
  uint64_t counted = 0, announced = 0;
};

// A round that has closed, as its members heard of it.
struct HeardRound {
  uint32_t round = 0, attempt = 0;
  bool last = false;
  std::vector<Contributor> contributors;
  std::vector<Lost> lost;           // all losses until then
  uint32_t stream = 0, ticket = 0;  // of the push, if there is one
  std::string text;                 // the message, for members that have not heard of the round

  size_t bytes() const {
    return sizeof(HeardRound) + contributors.size() * sizeof(Contributor) + text.size();
  }
  bool is(const HeardRound& other) const {
    return round == other.round && attempt == other.attempt;
  }
};

// A join, with what came with it.
struct SentJoin {
  Join join;
  uint32_t digest_round = 0;  // see wire::JoinMessage
  uint64_t digest = 0;
  std::string payload;        // what it adds, if contributions come with the joins

  // Adopts a later join that adds nothing: the worker only follows.
  void follow(const Join& later) {
    join.base = later.base;
    join.last = later.last;
  }
};

struct SeriesState {
  // A worker's contributions that are counted, and the base of the join with the last of them.
  struct Count {
    uint64_t upto = 0;
    uint32_t base = 0;
    bool operator==(const Count&) const = default;
  };

  uint32_t rounds = 0;         // how many rounds the worker has completed
  std::vector<Count> counts;   // by rank, in these rounds
  std::deque<HeardRound> heard;     // the latest rounds, in order: all that other members may lack
  // About the last one heard, if it is not completed: the transfer is over, its result has the
  // bytes of every contributor, the round is committed.
  bool received = false, whole = false, committed = false;
  std::deque<SentJoin> said;       // joins: those that may not be counted yet, at least the newest
  uint32_t tickets = 0;        // no push under a ticket from this one on can have begun

  // The transfer of the last round heard is over.
  void receive(bool is_whole) { received = true, whole = is_whole; }
  // The last round heard is completed.
  void complete();
};

// Keeps what one worker knows.
class Memory {
 public:
  // `pushes` means the same as in RoundOwner. A worker keeps rounds of at most `most_bytes`.
  Memory(uint32_t rank, uint32_t workers, bool pushes, size_t most_bytes);

  // Record what happens, in this order.
  void announced(SentJoin said);
  void heard(HeardRound round);
  void received(bool whole) { known_.receive(whole); }
  void committed() { known_.committed = true; }
  void completed();
  // Another server becomes the owner. What the one before has decided may be known to ranks that
  // are dead: its tickets are not used again.
  void moves() { ++known_.tickets; }

  const SeriesState& known() const { return known_; }
  size_t bytes() const;

 private:
  void forget_oldest();
  void forget_settled();

  const uint32_t rank_;
  const bool pushes_;
  const size_t most_bytes_;
  size_t bytes_ = 0;  // of the rounds that are kept
  SeriesState known_;
};

}  // namespace herring::partial
