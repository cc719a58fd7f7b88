// The series of partial all-reduces of a worker: those in progress, and what is kept of the latest
// that have ended. Engine thread, unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rounds/partial.h"
#include "rounds/rounds.h"

namespace herring::rounds {

class SeriesList final : public engine::Carrier {
 public:
  explicit SeriesList(Core& core) : core_(core) {}

  Core& core() { return core_; }  // any thread
  // Registers a series; any thread.
  Status enlist(const std::shared_ptr<Partial>& partial);
  void delist(uint64_t id);  // any thread

  // Handles a frame of type kRound or kCommit, or an error about a series. If a series cannot
  // begin, only that series fails.
  Status on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);

  // See engine::Carrier. What needs all members is no series, so none ends with a group that is
  // called off.
  void call_off(const Group&, const Status&) override {}
  void fail_all(const Status& why) override;
  bool uses(const Group& group) const override;
  // A partial all-reduce may end without anybody's doing, when its grace is over.
  bool stands_still() const override { return partials_.empty(); }
  bool outlives_members(const Group& group) const override { return uses(group); }
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
  Core& core_;
  std::map<uint64_t, std::shared_ptr<Partial>> partials_;  // by id
  std::deque<std::shared_ptr<SeriesMemory>> ended_;        // the latest
};

}  // namespace herring::rounds
