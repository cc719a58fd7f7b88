// A worker's side of a series of partial all-reduces over one array. Contributions go in, and
// results of all rounds come out in order. The engine thread carries out the rounds, whether the
// caller computes or waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/core.h"
#include "engine/owners.h"
#include "engine/program.h"
#include "links/transfer.h"
#include "partial/series_state.h"
#include "partial/ledger.h"
#include "rounds/series_memory.h"
#include "wire/frame.h"
#include "wire/partial.h"

namespace herring::rounds {

using engine::Awaited, engine::Core, engine::Group, engine::OpenEntry, engine::Owner,
    engine::Program;

class SeriesList;

struct PartialOptions {
  std::string name;
  std::shared_ptr<Group> group;      // null means all ranks; ranks are indices in it
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  bool by_contributors = false;      // averages divide by the contributors, not by all
  uint32_t quorum = 1;
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

class Partial : public links::TransferOwner,
                public Awaited,
                public std::enable_shared_from_this<Partial> {
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
  uint64_t id() const { return id_; }  // on the engine's thread
  std::string where() const override;
  const Group& group() const { return *options_.group; }

  // For the engine, on its thread. If a call returns an error, the job fails.
  // `text` is that of the message.
  Status on_round(const wire::FrameHeader& header, wire::RoundMessage message,
                  std::string_view text);
  Status on_commit(const wire::RoundMark& mark);
  void begin();
  // Tells a server that has come later.
  void announce_to(uint32_t server);
  // Another server becomes the owner, because the one before is gone.
  void move_to(const Owner& owner);
  const Owner& owner() const { return owner_; }  // who closes the rounds
  const std::shared_ptr<SeriesMemory>& memory() const { return memory_; }  // null: no failover
  void fail(const Status& status);
  void on_transfer_done(links::Transfer&) override;

 private:
  Partial(SeriesList& list, PartialOptions options);
  Status launch(uint64_t upto, const char* send);
  void settle();
  void complete();
  void announce(const partial::Join& join, std::string payload);
  wire::Enlist enlist_for(uint32_t server) const;
  // Records the next round to close. With the lock held.
  void begin_next(Nanos now, bool called);
  uint64_t awaited();  // the entry of the round whose result comes next
  // Returns a value of the ledger, with the lock held.
  template <typename T>
  T locked(T (partial::Ledger::*value)() const) const;

  SeriesList& list_;
  Core& core_;
  const std::shared_ptr<Program> program_;
  const PartialOptions options_;
  const size_t bytes_;
  const bool pushes_;

  // Engine thread.
  uint64_t id_ = 0;
  Owner owner_;
  std::shared_ptr<SeriesMemory> memory_;
  links::Transfer transfer_;
  RoundInfo info_;                 // of the round that has closed
  uint32_t attempt_ = 0;
  bool transferring_ = false, transferred_ = false, committed_ = false;
  OpenEntry closed_;               // the round that has closed

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  partial::Ledger ledger_;
  std::deque<RoundInfo> infos_;    // of the results that can be taken
  Status failure_;
  uint32_t digest_rounds_ = 0;
  uint64_t digest_ = 0;
  OpenEntry next_;                 // the next round to close, if this worker contributes to it
  uint32_t next_round_ = 0;
};

}  // namespace herring::rounds
