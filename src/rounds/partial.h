// A worker's side of a series of partial all-reduces over one array. Contributions go in, and
// results of all rounds come out in order. The engine thread carries out the rounds, whether the
// caller computes or waits. Who closes them is the derived classes' affair.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/schedule.h"
#include "engine/core.h"
#include "engine/program.h"
#include "partial/ledger.h"
#include "partial/series_state.h"

namespace herring::rounds {

using engine::Awaited, engine::Core, engine::Group, engine::OpenEntry, engine::Program;
using wire::Algorithm;

class SeriesList;

struct PartialOptions {
  std::string name;
  std::shared_ptr<Group> group;      // null means all ranks; ranks are indices in it
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  bool by_contributors = false;      // averages divide by the contributors, not by all
  // kHerring: servers sum, and the owner of the name closes the rounds. Else the workers do both.
  Algorithm algorithm = Algorithm::kHerring;
  uint32_t quorum = 1;               // without servers: 1, or a majority
  double grace = 0;                  // seconds
  uint32_t staleness = 0;
  bool replays = false;              // contributions name their recorded rounds
  // Tells the series from others of its name in the group, which may not be over everywhere. The
  // same on all ranks, who must have agreed on it: no rank remembers the names of earlier series.
  uint32_t number = 0;
};

// Facts about a round besides its values.
struct RoundInfo {
  uint32_t round = 0, divisor = 1, attempts = 1;
  bool last = false;
  Nanos completed_at = 0;  // on this worker
  std::vector<partial::Contributor> contributors;
  std::vector<partial::Lost> lost;  // since the series began
};

class Partial : public Awaited, public std::enable_shared_from_this<Partial> {
 public:
  ~Partial() override { program_->over(*this); }
  // Every rank must call this with the same options; the caller has compared them.
  static Result<std::shared_ptr<Partial>> create(SeriesList& list, PartialOptions options);

  // Contributes an array, which is copied. `waits`, `last`, `place`: see partial::Ledger::produce.
  // `caller_waits`: the caller will wait for a result at once. Only one thread at a time may call.
  Status contribute(const char* data, bool waits, bool last, const partial::Place& place = {},
                    bool caller_waits = false);
  // Sets a digest of this replica after `rounds` rounds. It travels with the next contribution and
  // is compared with the digests of the other ranks.
  void digest(uint32_t rounds, uint64_t value);
  // Waits until a result can be taken, or until none will come any more. Returns false if neither
  // happens within `wait`.
  bool wait_for(Nanos wait);
  // Copies the oldest result to `out`.
  Result<RoundInfo> take(char* out);

  uint32_t ready();
  uint64_t produced();
  uint64_t counted();
  uint32_t taken() const;
  size_t blocks();
  Status failure();
  const PartialOptions& options() const { return options_; }
  size_t bytes() const { return bytes_; }
  uint64_t id() const { return id_; }
  std::string where() const override;
  const Group& group() const { return *options_.group; }

  // For the engine, on its thread.
  virtual void begin() = 0;
  void fail(const Status& status);

 protected:
  // `pushes` means the same as in partial::RoundOwner.
  Partial(SeriesList& list, PartialOptions options, bool pushes);

  // Carries out, on the engine's thread, what this rank's contributions allow now.
  virtual void announce(const partial::Join& join, std::string payload) = 0;
  // Records that the round has closed. With the lock held.
  void close(uint32_t round);
  // Gives out the result of the round that has closed, which lies in the ledger.
  void complete(RoundInfo info);
  // Records that this rank has announced what it gives to the next round. With the lock held.
  void mark_ready();

  SeriesList& list_;
  Core& core_;
  const std::shared_ptr<Program> program_;
  const PartialOptions options_;
  const uint64_t id_;
  const size_t bytes_;
  const bool pushes_;

  mutable std::mutex mutex_;  // guards what follows
  partial::Ledger ledger_;
  Status failure_;
  uint32_t digest_rounds_ = 0;
  uint64_t digest_ = 0;
  OpenEntry closed_;               // the round that has closed

 private:
  // Records the next round to close. With the lock held.
  void begin_next(Nanos now, bool called);
  uint64_t awaited();  // the entry of the round whose result comes next
  // Returns a value of the ledger, with the lock held.
  template <typename T>
  T locked(T (partial::Ledger::*value)() const) const;

  std::condition_variable changed_;
  std::deque<RoundInfo> infos_;    // of the results that can be taken; guarded by mutex_
  OpenEntry next_;                 // likewise: the next round, if this worker contributes to it
  uint32_t next_round_ = 0;        // likewise
};

}  // namespace herring::rounds
