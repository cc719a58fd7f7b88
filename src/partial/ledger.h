// What a worker and a series of rounds owe each other. Contributions are produced, announced,
// pushed and finally counted. Results wait to be taken, in order. This is pure bookkeeping over
// memory, which the caller guards with a lock.
//
// If contributions are pushed after a round has closed, each of them occupies a cell of memory.
// What is produced while an announcement is outstanding is announced once that announcement has
// been counted. A worker without a result to take announces at once, because it produces nothing
// more before it has a result. So there are seldom more than two cells.
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

// The round in which a replay counts a contribution, with the worker's others up to `upto`.
// `contributors` is the number of workers in that round, or 0 if this is not a replay.
struct Place {
  uint32_t round = 0, contributors = 0;
  uint64_t upto = 0;
};

class Ledger {
 public:
  // `pushes` means the same as in RoundOwner. Contributions are arrays of `elements` elements.
  Ledger(uint32_t rank, DType dtype, size_t elements, bool pushes);

  // Records that the worker has produced a contribution. Returns the join to announce, if any, or
  // kInvalidArgument if the worker does not do what its previous call said.
  // `waits`: the worker takes one more result before it produces the next contribution; otherwise
  // it continues with the results that it has taken. `last`: the worker produces nothing more, and
  // takes results until the series has ended.
  // A contribution with a place is announced together with the others of its round, once all of
  // them are there and everything before them is counted. So contributions are merged only if the
  // record merged them.
  Result<std::optional<Join>> produce(const void* data, bool waits, bool last,
                                      const Place& place = {});
  // In a replay: returns the contribution that the last join announced.
  const char* announced() const { return cells_.front().data.get(); }

  // Records that a round has closed. `upto` is the worker's last contribution in that round, or 0
  // if there is none. `last` says that the series ends with the round. `*push` is set to the memory
  // to push, which does not change until the result is complete, or to null for nothing.
  Status closed(uint32_t round, uint64_t upto, bool last, const char** push);
  // Records that the round is committed and that `result()` holds its complete result. Returns the
  // join to announce now, if any.
  std::optional<Join> completed();

  // Returns memory for the result of the round that has closed.
  char* result();
  // Returns the number of results that can be taken.
  uint32_t ready() const { return ready_ - taken_; }
  // Returns the oldest result. It may be read without the lock until take().
  const char* front() const { return queue_.front().get(); }
  // Takes the oldest result. Returns the join to announce if the worker flushes, which says how far
  // the worker has followed.
  std::optional<Join> take();

  uint64_t produced() const { return produced_; }
  uint64_t counted() const { return counted_; }
  uint32_t taken() const { return taken_; }
  // Returns whether the series' last round has closed.
  bool ended() const { return ended_; }
  size_t bytes() const { return bytes_; }
  // Returns the number of memory blocks allocated so far, of bytes() each.
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
  uint64_t closing_ = 0;                 // the worker's last contribution in the closed round
  uint32_t closed_ = 0, ready_ = 0, taken_ = 0;  // rounds
  uint32_t base_ = 0;                    // the weights for the next contribution
  bool last_ = false, ended_ = false;
  bool owed_ = false;                    // a result must be taken before the next contribution
  std::deque<Block> queue_;              // results, from taken_ on
  std::vector<Block> free_;
  size_t blocks_ = 0;
};

}  // namespace herring::partial
