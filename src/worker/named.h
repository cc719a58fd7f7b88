// The named operations of a worker, from the call to the result: announced to the server that owns
// the name, then pushed, exchanged or done by messages between workers as the answer says. They are
// submitted from any thread, in any order on any rank; the rest is the engine thread's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "wire/frame.h"
#include "worker/links.h"
#include "worker/operation.h"

namespace herring::worker {

class Engine;
struct Exchange;

class NamedOperations {
 public:
  explicit NamedOperations(Engine& engine) : engine_(engine) {}

  // Any thread. kInvalidArgument for a name that is in flight already; kPeerLost and others when
  // nothing can complete any more. `waits`: the caller waits for it at once.
  Result<std::shared_ptr<Operation>> submit(Request request, bool waits);
  // Any thread; see Engine::refuse.
  void refuse(const std::shared_ptr<Group>& group, wire::Collective kind, const std::string& name,
              const std::string& why);

  // kGo, kReply, kOpError.
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  void part_done(Operation& operation);

  // Bytes of an operation of the group are moving.
  bool moves(const Group& group) const;
  bool any(const Group& group) const;
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

 private:
  void start(const std::shared_ptr<Operation>& operation);
  Status announce(const Operation& operation, uint32_t server);
  void start_join(Operation& operation);
  void on_joined(Operation& operation, uint32_t server, std::vector<uint64_t> counts);
  Status take_part(const wire::FrameHeader& header, std::string_view announced);
  void end_join(uint32_t group);
  // As finish(); of a join when nothing of others is left.
  void fail(Operation& operation, const Status& why);
  void complete_alone(Operation& operation);
  void on_reply(Operation& operation, wire::Go head, std::string_view result);
  void launch(Operation& operation, const wire::FrameHeader& header, wire::Go go,
              std::string_view rest);
  Transfer& add_transfer(Operation& operation, Key key, size_t bytes);
  void launch_allreduce(Operation& operation, Key key);
  bool stage(Operation& operation, bool filled);  // false: the job has failed
  void post_buffers(Operation& operation, Key key, char* data, bool active);
  void launch_exchange(Operation& operation, Key key);
  void exchange_on_node(Operation& operation, Key key, const Exchange& exchange, char* out);
  void exchange_by_node_stage(Operation& operation, Key key, const Exchange& exchange, char* out);
  void exchange_by_servers(Operation& operation, Key key, const Exchange& exchange, char* out);
  void launch_schedule(Operation& operation, Key key);
  void start_schedule(Operation& operation, Key key);
  void schedule_done(Operation& operation, const Status& why);
  void met(const std::shared_ptr<Group>& group);
  void launch_message(Operation& operation, Key key, const std::string& address);
  Result<std::string> own_address();
  void meet_workers(const std::shared_ptr<Group>& group);
  void finish(Operation& operation, const Status& status);
  bool push(Operation& operation, Transfer& transfer);  // false: the job has failed
  std::shared_ptr<Operation> find(uint64_t id) const;

  Engine& engine_;
  std::map<uint64_t, std::shared_ptr<Operation>> operations_;
  uint64_t next_id_ = 1;
  std::multimap<uint32_t, std::pair<uint64_t, Key>> unmet_;  // schedules, by group
  std::string own_address_;  // where other workers reach this one, once it listens

  using Name = std::pair<uint32_t, std::string>;  // with the number of its group
  static Name name_of(const Request& request);
  std::mutex mutex_;
  std::set<Name> names_;     // in flight; guarded by mutex_
};

}  // namespace herring::worker
