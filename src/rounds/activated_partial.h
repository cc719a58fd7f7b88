// A series of partial all-reduces between workers, without servers: the paper's mechanism (4.1). In
// each round, some ranks initiate, and their signals activate the others. When a rank is active,
// what it has contributed by then is in the round. Then two all-reduces run that follow schedules:
// that of the array, and that of one `Slot` of each rank, from which all learn who contributed what
// and who flushes.
//
// All ranks take part in each round, also those with nothing to give. So a rank that is gone ends
// the series.
//
// A rank that flushes initiates nothing: others may go on, and should not have a round for each of
// those that do not. It tells the first rank of the group, which initiates the last round when all
// flush. If it is drawn, it passes that on, by the first rank, to the next one that may go on.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collective/activation.h"
#include "collective/run.h"
#include "rounds/partial.h"
#include "wire/frame.h"
#include "wire/key.h"

namespace herring::rounds {

class ActivatedPartial final : public Partial {
 public:
  // `quorum` 1: whoever comes first initiates (solo). Else in each round one rank does that is
  // drawn from those that had not flushed in the round before (majority).
  static Result<std::shared_ptr<Partial>> create(SeriesList& list, PartialOptions options);
  // What tells the series' signals and all-reduces from others in the group.
  static uint32_t stream_of(uint64_t id) {
    return static_cast<uint32_t>(id) | wire::kPartialStreams;
  }

  // For the engine, on its thread.
  void begin() override;
  // Handles the signal of another rank, by its index. An error means that it breaks the rules.
  Status on_signal(uint32_t from, const wire::FrameHeader& signal);
  // Warns if this rank waits for a round that nobody initiates. Returns an error if it has waited
  // too long, which ends the job.
  Status check(Nanos now);

 private:
  // What a signal says; see wire::FrameHeader::buffer.
  enum class Says : uint32_t {
    kActive,   // the sender is active in the instance
    kFlushes,  // to the first rank: the sender flushes
    kPasses,   // `first_segment` is drawn for the instance, because those before it flush
  };

  // What a rank says of itself in a round.
  struct Slot {
    int64_t upto = 0;          // its newest contribution in the round; 0: none is
    int64_t oldest = 0;        // the results from which its oldest contribution was computed
    int64_t active = 0;        // whether it waits for the round, or flushes
    int64_t waited = 0;        // as in partial::Contributor
    int64_t flushes = 0;       // whether it gives nothing any more
    int64_t digest_rounds = 0, digest = 0;
  };

  ActivatedPartial(SeriesList& list, PartialOptions options);
  void announce(const partial::Join& join, std::string payload) override;
  bool initiates(uint64_t round) const;
  uint32_t initiator(uint64_t round) const;  // of a majority
  bool is_drawn(uint64_t round) const;
  void say(uint32_t to, Says what, uint64_t round, uint32_t about = 0);
  void hear_flush();
  void pass_on();
  void go();
  void begin_round();
  void start(collective::Task task);
  void end_part();
  void end_round();
  Status compare(uint32_t rank, const Slot& slot);
  std::vector<uint32_t> awaited_ranks() const;

  const uint32_t stream_;
  const uint32_t rank_;  // index in the group

  // Engine thread.
  collective::Activated schedule_;
  uint32_t run_ = 0;                           // the operation that stands for both all-reduces
  std::map<uint32_t, uint32_t> signals_from_;  // the operation that receives a rank's signal
  std::optional<collective::Persistent> activation_;  // null before begin()
  std::vector<uint32_t> going_on_;             // ranks that had not flushed in the latest round
  uint64_t announced_ = 0, counted_ = 0;       // contributions of this rank
  uint32_t base_ = 0, oldest_ = 0;             // of its newest join; see Slot
  Nanos contributed_at_ = 0;                   // when the oldest that is not counted was
  std::deque<Nanos> activated_at_;             // the latest rounds, in order
  bool flushes_ = false, over_ = false, going_ = false;
  uint32_t flushing_ = 0;                      // on the first rank: how many flush
  std::optional<uint64_t> passed_to_here_, passed_on_;  // the latest rounds
  uint32_t parts_ = 0;                         // all-reduces of the round that are not done
  std::vector<Slot> slots_;
  std::map<uint32_t, std::pair<uint64_t, uint32_t>> digests_;  // by rounds: the first, and whose
  Nanos waits_since_ = 0;                      // 0: this rank does not wait for an initiator
  bool warned_ = false;
};

}  // namespace herring::rounds
