// What a worker owes to a series of rounds and what the series owes to it: contributions that are
// produced, announced, pushed and at last counted, and results that wait to be taken, in order.
// Pure bookkeeping over memory; the caller guards it with a lock.
//
// Where contributions are pushed after a round has closed, each has a cell of memory. What is
// produced while an announcement is outstanding is announced when that has been counted, or at once
// by a worker that has no result to take, and so produces nothing more before it has one. So there
// are two cells, seldom more.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "partial/round_owner.h"

namespace herring::partial {

// Where a replay counts a contribution: with the worker's others up to `upto`, in a round of so
// many contributors. None: not a replay.
struct Place {
  uint32_t round = 0, contributors = 0;
  uint64_t upto = 0;
};

class Ledger {
 public:
  // `pushes` as for RoundOwner. Contributions are arrays of `elements`.
  Ledger(uint32_t rank, DType dtype, size_t elements, bool pushes);

  // The worker has produced a contribution. `waits`: it takes one more result before it produces
  // the next; else it goes on with those it has taken. `last`: it produces no more, and takes
  // results until the series has ended. The join to announce, if any; kInvalidArgument when it did
  // not do what it said last time.
  // With a place it is announced together with the others of its round, when all of them are there
  // and what came before them is counted: so nothing can be merged that was not.
  Result<std::optional<Join>> produce(const void* data, bool waits, bool last,
                                      const Place& place = {});
  // In a replay: the contribution that the last join has announced.
  const char* announced() const { return cells_.front().data.get(); }

  // A round has closed; `upto`: how much of this worker is in it, 0 for nothing; `last`: the series
  // ends with it. `*push`: the memory to push, which stays as it is until the result is complete;
  // null for nothing.
  Status closed(uint32_t round, uint64_t upto, bool last, const char** push);
  // The round is committed and its result is all here, in `result()`. The join to announce now, if
  // any.
  std::optional<Join> completed();

  // Memory for the result of the round that has closed.
  char* result();
  // Results that can be taken.
  uint32_t ready() const { return ready_ - taken_; }
  // The oldest one; it may be read without the lock until take().
  const char* front() const { return queue_.front().get(); }
  // The join to announce, if the worker flushes: how far it has followed.
  std::optional<Join> take();

  uint64_t produced() const { return produced_; }
  uint64_t counted() const { return counted_; }
  uint32_t taken() const { return taken_; }
  // The series' last round has closed.
  bool ended() const { return ended_; }
  size_t bytes() const { return bytes_; }
  // Blocks of memory set aside so far, of bytes() each.
  size_t blocks() const { return blocks_; }

 private:
  using Block = std::unique_ptr<char[]>;
  struct Cell {
    Block data;
    uint64_t upto = 0;
    bool announced = false;
    uint32_t base = 0;
    bool last = false;
    Place place;
  };

  Block take_block();
  void fold();
  Join announce();
  std::optional<Join> announce_recorded();

  const uint32_t rank_;
  const DType dtype_;
  const size_t elements_, bytes_;
  const bool pushes_;
  std::deque<Cell> cells_;               // not counted yet, in order
  uint64_t produced_ = 0, counted_ = 0;
  uint64_t closing_ = 0;                 // how much of this worker the closed round has
  uint32_t closed_ = 0, ready_ = 0, taken_ = 0;  // rounds
  uint32_t base_ = 0;                    // what the next contribution will be computed on
  bool last_ = false, ended_ = false;
  bool owed_ = false;                    // a result must be taken before the next contribution
  std::deque<Block> queue_;              // results from taken_ on
  std::vector<Block> free_;
  size_t blocks_ = 0;
};

}  // namespace herring::partial
