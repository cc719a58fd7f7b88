// The named operations of a worker, from the call to the result. A call is announced to the server
// that owns its name. Then its bytes are pushed, exchanged, or sent between workers, as the
// server's answer says. Any thread may submit operations, and ranks may do so in any order.
// Everything else runs on the engine thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "calls/arrivals.h"
#include "calls/handovers.h"
#include "calls/joins.h"
#include "calls/meeting.h"
#include "calls/mover.h"
#include "calls/names.h"
#include "calls/underway.h"
#include "control/server_set.h"
#include "engine/core.h"
#include "wire/frame.h"

namespace herring::calls {

class Calls final : public engine::Carrier {
 public:
  explicit Calls(Core& core)
      : core_(core), arrivals_(core, *this), meeting_(core, *this),
        mover_(core, *this, meeting_), joins_(core, *this), handovers_(core, *this) {}

  // Submits a call; any thread. Returns kInvalidArgument for a name that is already in flight, and
  // kPeerLost or another error if nothing can complete any more. `waits`: the caller will wait for
  // the result at once.
  Result<std::shared_ptr<Operation>> submit(Call call, bool waits);
  // Tells the other ranks that this rank was called and cannot take part; see Engine::refuse. Any
  // thread.
  void refuse(const std::shared_ptr<Group>& group, wire::Collective what, const std::string& name,
              const std::string& why);

  // Handles a frame of type kGo, kReply or kOpError.
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);

  // See engine::Carrier. Operations that are only announced fail at once; those that move fail when
  // nothing accesses their arrays any more.
  void call_off(const Group& group, const Status& why) override;
  void fail_all(const Status& why) override;
  bool uses(const Group& group) const override;
  // All operations wait for calls of other ranks, for as long as any operation may. One with a
  // shorter timeout of its own ends sooner, and its program may go on then.
  bool stands_still() const override;
  // Messages need only the server at which they wait for their other side.
  bool may_need(const Group& group, uint32_t server) const override;
  void server_ended(uint32_t server, const Status& why) override;
  bool can_move(const control::ServerSet& set) const override { return handovers_.can_move(set); }
  // Names of servers that are gone get other owners, and what waited there is announced again.
  void move(const Group& group, const Owner& owner) override { handovers_.move(group, owner); }
  void serve(const control::ServerSet& set) override;
  void forget(uint32_t group) override { handovers_.forget(group); }
  // Returns the title of an operation that no server has answered or failed in time, how long it
  // has waited, and for which server; "" if there is none.
  std::string overdue(Nanos now, Nanos margin, Nanos* waited, uint32_t* server) const;

  // Returns the number of completed all-reduces whose sums a device did.
  uint64_t device_sums() const { return device_sums_; }
  // Returns for how many of them the device has read memory of a neighbour's.
  uint64_t neighbour_sums() const { return neighbour_sums_; }
  // The members with which a rank exchanges cards for a call, and those of them with which its GPU
  // may exchange data. Any thread.
  NearMembers near_members(const Call& call) const;
  NearMembers sharing_members(const Call& call) const;

  // For the classes that carry operations out.
  using Operations = std::map<uint64_t, std::shared_ptr<Underway>>;
  const Operations& operations() const { return operations_; }
  std::shared_ptr<Underway> find(uint64_t id) const;
  Meeting& meeting() { return meeting_; }
  Mover& mover() { return mover_; }
  Arrivals& arrivals() { return arrivals_; }
  Handovers& handovers() { return handovers_; }
  const Handovers& handovers() const { return handovers_; }
  // Makes an operation of a call, without registering it. `theirs`: of a call of other ranks, as
  // one of them has announced it; see Joins.
  Result<std::shared_ptr<Underway>> make(Call call, std::optional<wire::Announce> theirs = {});
  // Registers the operation under a new number.
  void keep(const std::shared_ptr<Underway>& operation);
  void start(const std::shared_ptr<Underway>& operation);
  wire::Announce announcement_of(const Underway& operation) const;
  Status announce(const Underway& operation, const Owner& owner);
  // A server confirms that it knows the group that the operation forms, or need not do so.
  void confirmed(Underway& operation, uint32_t server);
  bool has_ended(const Owner& owner) const;
  uint64_t new_id() { return next_id_++; }
  void launch(Underway& operation, const wire::FrameHeader& header, wire::Go go,
              std::string_view rest);
  void part_done(Underway& operation);
  void finish(Underway& operation, const Status& status);
  // Ends an operation that has not started.
  void drop(Underway& operation, const Status& why);
  // Returns the name of an operation for use in messages.
  static std::string title(const Underway& operation);

 private:
  Result<std::shared_ptr<Underway>> admit(Call call);
  Status bring_out(const std::shared_ptr<Underway>& operation);
  void on_numbered(Underway& operation);
  void ask_whether_whole(Underway& operation);
  void try_again(Underway& operation);
  // Copies results from staging memory to their places, and finishes.
  void complete(Underway& operation, const Status& why);
  // Calls finish(); a join instead ends when no all-reduce of others is left.
  void fail(Underway& operation, const Status& why);

  Core& core_;
  Arrivals arrivals_;
  Meeting meeting_;
  Mover mover_;
  Joins joins_;
  Handovers handovers_;
  Operations operations_;
  // Exchanges that use a version of the set of servers that this rank has yet to hear of.
  std::deque<uint64_t> early_;
  // How often this rank has formed a group with a name and ranks, by their hash. Used only in a job
  // that goes on when a server dies, where members may call for the next group of a name before
  // others have heard of this one. Kept until the job ends: a name may come again at any time.
  std::unordered_map<uint64_t, uint32_t> turns_;
  uint64_t next_id_ = 1;
  uint64_t device_sums_ = 0, neighbour_sums_ = 0;

  Names names_;
};

}  // namespace herring::calls
