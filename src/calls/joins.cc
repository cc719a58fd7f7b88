#include "calls/joins.h"

#include "calls/calls.h"

namespace herring::calls {

// Every server that answers for names must know that this rank has joined, once for each home.
void Joins::start(Underway& join) {
  Group& group = *join.call.group;
  std::get<wire::Join>(join.call.what).called = group.called;
  const std::vector<uint32_t>& owners = group.shards().owners;
  join.unconfirmed = owners;
  std::vector<Owner> asked;
  for (const uint32_t home : owners) {
    asked.push_back(core_.owners.of(owners, home));
    if (!calls_.has_ended(asked.back())) continue;
    return calls_.finish(
        join, {Code::kPeerLost,
               concat(core_.cluster.describe_server(asked.back().server), " has ended")});
  }
  calls_.handovers().join(group);
  for (const Owner& owner : asked) static_cast<void>(calls_.announce(join, owner));
}

// The reply for the join's own home also says which rank was last.
void Joins::on_reply(Underway& join, uint32_t server, uint32_t home,
                     std::vector<uint64_t> counts) {
  const Group& group = *join.call.group;
  if (std::erase(join.unconfirmed, home) == 0 || counts.size() != 1 ||
      counts[0] >= group.size()) {
    return core_.ending.fail_now(breach(core_.cluster.describe_server(server), " answered join()",
                                   group.members().suffix(), " with nonsense"));
  }
  if (home == join.asked.reign.home) join.handle->counts = std::move(counts);
  settle(group.id());
}

// The other servers still consider this rank joined.
void Joins::on_error(Underway& join, const Status& why) {
  const std::shared_ptr<Group> group = join.call.group;
  if (why.code() != Code::kPeerLost) return core_.groups.fail(group->id(), why);
  group->leave(why);  // not call_off(): messages between the remaining members go on
  fail(join, why);
}

void Joins::fail(Underway& join, const Status& why) {
  if (join.failed.ok()) join.failed = why;
  settle(join.call.group->id());
}

// Waits until all-reduces of others that go through this rank are over. Afterwards nothing of the
// group is in flight.
void Joins::settle(uint32_t group) {
  std::shared_ptr<Underway> join;
  for (const auto& [id, operation] : calls_.operations()) {
    if (operation->call.group->id() != group) continue;
    if (operation->absent()) return;
    if (wire::is<wire::Join>(operation->call.what)) join = operation;
  }
  if (!join || (!join->unconfirmed.empty() && join->failed.ok())) return;
  calls_.finish(*join, join->failed);
}

Status Joins::take_part(const wire::FrameHeader& header, std::string_view announced) {
  HERRING_ASSIGN_OR_RETURN(auto& theirs, wire::decode_announce(announced));
  const std::shared_ptr<Group> group = core_.groups.find(header.group);
  if (!group) return {};  // the group was destroyed in the meantime
  const auto* allreduce = std::get_if<wire::AllReduce>(&theirs.what);
  bool fits = wire::goes_without_joined(theirs.what) && theirs.payload.empty() &&
              theirs.bytes() > 0 && (theirs.listed || theirs.arrays.size() == 1);
  for (const wire::Array& array : theirs.arrays) {
    fits = fits && check_reducible(array.dtype, allreduce->reduction).ok();
  }
  if (!fits) {
    return breach("this rank cannot do without calling ", wire::name_of(theirs.what), " '",
                  theirs.name, "'");
  }
  Call call;
  call.group = group;
  call.what = theirs.what;
  call.name = theirs.name;
  call.timeout = theirs.timeout_ms / 1000.0;
  call.list = true;  // each buffer is a place for the data that passes through
  for (const wire::Array& array : theirs.arrays) call.buffers.push_back({array});
  const uint32_t servers = theirs.servers;
  theirs.payload = {};  // it is empty, and views the frame
  auto operation = calls_.make(std::move(call), std::move(theirs));
  if (!operation.ok()) {
    core_.ending.fail_now(operation.status());
    return {};
  }
  calls_.keep(*operation);
  wire::Go go;
  go.servers = servers;
  calls_.launch(**operation, header, std::move(go), {});
  return {};
}

}  // namespace herring::calls
