// The named operations of a worker, from the call to the result: announced to the server that owns
// the name, then pushed, exchanged or done by messages between workers as the answer says. They are
// submitted from any thread, in any order on any rank; the rest is the engine thread's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "wire/frame.h"
#include "worker/arrivals.h"
#include "worker/joins.h"
#include "worker/links.h"
#include "worker/meeting.h"
#include "worker/mover.h"
#include "worker/names.h"
#include "worker/operation.h"

namespace herring::worker {

class EngineCore;

class NamedOperations {
 public:
  explicit NamedOperations(EngineCore& engine)
      : engine_(engine), arrivals_(engine, *this), meeting_(engine, *this),
        mover_(engine, *this, meeting_), joins_(engine, *this) {}

  // Any thread. kInvalidArgument for a name that is in flight already; kPeerLost and others when
  // nothing can complete any more. `waits`: the caller waits for it at once.
  Result<std::shared_ptr<Operation>> submit(Call call, bool waits);
  // Any thread; see Engine::refuse.
  void refuse(const std::shared_ptr<Group>& group, wire::Collective what, const std::string& name,
              const std::string& why);

  // kGo, kReply, kOpError.
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);

  // Bytes of an operation of the group are moving.
  bool moves(const Group& group) const;
  bool any(const Group& group) const;
  // One that needs all members of the group is not over: no message.
  bool awaits_members(const Group& group) const;
  // Fails what this server was to answer.
  void server_ended(uint32_t server, const Status& why);
  // The group is called off: what is only announced fails at once, what moves when nothing of it
  // touches its arrays any more.
  void call_off(const Group& group, const Status& why);
  // Everything, at once: nothing touches any array.
  void fail_all(const Status& why);
  // An operation that no server has answered or failed in time, or "": how to call it, and how long
  // it has waited.
  std::string overdue(Nanos now, Nanos margin, Nanos* waited) const;
  // Appends the calls for which threads have waited since before `since`.
  void held_up(Nanos now, Nanos since, std::vector<std::string>& out) const;

  // All-reduces that are complete, whose sums a device took.
  uint64_t device_sums() const { return device_sums_; }

  // For those who carry operations out.
  using Operations = std::map<uint64_t, std::shared_ptr<Operation>>;
  const Operations& operations() const { return operations_; }
  std::shared_ptr<Operation> find(uint64_t id) const;
  Mover& mover() { return mover_; }
  Arrivals& arrivals() { return arrivals_; }
  // A call as an operation that nobody knows of; `absent`: of others, see Joins.
  Result<std::shared_ptr<Operation>> make(Call call, bool absent = false);
  // Gives it a number.
  void keep(const std::shared_ptr<Operation>& operation);
  void start(const std::shared_ptr<Operation>& operation);
  Status announce(const Operation& operation, uint32_t server);
  void launch(Operation& operation, const wire::FrameHeader& header, wire::Go go,
              std::string_view rest);
  void part_done(Operation& operation);
  void finish(Operation& operation, const Status& status);
  // Ends one that has not started.
  void drop(Operation& operation, const Status& why);
  // What an operation is called in messages.
  static std::string title(const Operation& operation);

 private:
  Status bring_out(const std::shared_ptr<Operation>& operation);
  void on_formed(Operation& operation);
  // As finish(); of a join when nothing of others is left.
  void fail(Operation& operation, const Status& why);

  EngineCore& engine_;
  Arrivals arrivals_;
  Meeting meeting_;
  Mover mover_;
  Joins joins_;
  Operations operations_;
  uint64_t next_id_ = 1;
  uint64_t device_sums_ = 0;

  Names names_;
};

}  // namespace herring::worker
