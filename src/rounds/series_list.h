// The series of partial all-reduces of a worker: those in progress, and what is kept of the latest
// that have ended. Engine thread, unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rounds/activated_partial.h"
#include "rounds/owned_partial.h"
#include "rounds/rounds.h"

namespace herring::rounds {

class SeriesList final : public engine::Carrier {
 public:
  explicit SeriesList(Core& core) : core_(core) {}

  Core& core() { return core_; }  // any thread
  // Register a series; any thread.
  Status enlist(const std::shared_ptr<OwnedPartial>& partial);
  Status enlist(const std::shared_ptr<ActivatedPartial>& partial);
  void delist(const Partial& partial);  // any thread

  // Handles a frame of type kRound or kCommit, or an error about a series. If a series cannot
  // begin, only that series fails.
  Status on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);

  // Handles a signal of a series between workers, from a rank of the job.
  Status on_signal(uint32_t rank, const wire::FrameHeader& signal);
  void check_deadlines(Nanos now);

  // See engine::Carrier. A series with an owner outlives members of its group.
  void call_off(const Group& group, const Status& why) override;
  void fail_all(const Status& why) override;
  bool uses(const Group& group) const override;
  // A partial all-reduce may end without anybody's doing, when its grace is over.
  bool stands_still() const override { return owned_.empty() && activated_.empty(); }
  bool outlives_members(const Group& group) const override;
  void abandon(const Group& group, const Status& why) override;
  bool can_move(const control::ServerSet& set) const override;
  void move(const Group& group, const Owner& owner) override;
  void server_comes(uint32_t server) override;
  void forget(uint32_t group) override;

  // The series that have ended here and not everywhere, for all that this rank knows.
  const std::deque<std::shared_ptr<SeriesMemory>>& ended() const { return ended_; }
  // No rank lacks the end of the series.
  void forget_series(uint64_t id);
  // Returns how many bytes this rank keeps of partial all-reduces for the next owner.
  size_t bytes_kept() const;

 private:
  using Stream = std::pair<uint32_t, uint32_t>;           // group, stream
  using Signal = std::pair<uint32_t, wire::FrameHeader>;  // with the rank of the job

  Status add(const std::shared_ptr<Partial>& partial, std::function<void()> begin);
  bool knows(const Partial& partial) const;

  Core& core_;
  std::map<uint64_t, std::shared_ptr<OwnedPartial>> owned_;          // by id
  std::map<Stream, std::shared_ptr<ActivatedPartial>> activated_;
  std::deque<std::shared_ptr<SeriesMemory>> ended_;                  // the latest
  // Signals for series that this rank has yet to begin, and the latest that have ended, of which
  // signals may still come.
  std::map<Stream, std::vector<Signal>> early_;
  std::deque<Stream> ended_streams_;
};

}  // namespace herring::rounds
