// What a rank does that has joined: it waits until all have, and meanwhile takes part in their
// all-reduces, to which it adds nothing: what its neighbours on the node give goes on through it,
// and the servers' results go by it.
#include "worker/engine.h"
#include "worker/named.h"

namespace herring::worker {

// Every server that answers for names must know it.
void NamedOperations::start_join(Operation& operation) {
  operation.request.splits = {operation.request.group->called};
  const std::vector<uint32_t>& owners = operation.request.group->shards().owners;
  operation.parts_left_ = owners.size();
  for (const uint32_t server : owners) {
    if (engine_.membership().has_ended(server)) {
      return finish(operation, {Code::kPeerLost, concat(engine_.cluster().describe_server(server),
                                                        " has ended")});
    }
  }
  for (const uint32_t server : owners) static_cast<void>(announce(operation, server));
}

// All have joined, as this server knows; one of them says who was last.
void NamedOperations::on_joined(Operation& operation, uint32_t server,
                                std::vector<uint64_t> counts) {
  const Group& group = *operation.request.group;
  if (operation.parts_left_ == 0 || counts.size() != 1 || counts[0] >= group.size()) {
    return engine_.fail_now(breach(engine_.cluster().describe_server(server), " answered join()",
                                   group.members().suffix(), " with nonsense"));
  }
  if (server == operation.server_) operation.counts = std::move(counts);
  --operation.parts_left_;
  end_join(group.id());
}

// Not before all-reduces of others are over that go through this rank: afterwards nothing of the
// group is in flight.
void NamedOperations::end_join(uint32_t group) {
  std::shared_ptr<Operation> join;
  for (const auto& [id, operation] : operations_) {
    if (operation->request.group->id() != group) continue;
    if (operation->absent_) return;
    if (operation->request.kind == wire::Collective::kJoin) join = operation;
  }
  if (join && (join->parts_left_ == 0 || !join->failed_.ok())) finish(*join, join->failed_);
}

// `announced`: by one of those who call it.
Status NamedOperations::take_part(const wire::FrameHeader& header, std::string_view announced) {
  auto call = wire::decode_announce(announced);
  if (!call.ok()) return call.status();
  const std::shared_ptr<Group> group = engine_.membership().find(header.group);
  if (!group) return {};  // destroyed meanwhile
  constexpr uint64_t kMostElements = uint64_t{1} << 56;
  const bool fits =
      call->kind == wire::Collective::kAllreduce &&
      call->algorithm == wire::Algorithm::kHerring && call->payload.empty() &&
      call->elements() > 0 && call->elements() < kMostElements &&
      check_reducible(call->dtype, call->op, call->prescale, call->postscale).ok();
  if (!fits) {
    return breach("this rank cannot do without calling ", wire::name_of(call->kind), " '",
                  call->name, "'");
  }
  auto operation = std::make_shared<Operation>(engine_.loop());
  operation->owner_ = this;
  operation->id_ = next_id_++;
  operation->absent_ = true;
  operation->started_ = engine_.loop()->now();
  Request& request = operation->request;
  request.group = group;
  request.kind = call->kind;
  request.name = call->name;
  request.dtype = call->dtype;
  request.op = call->op;
  request.prescale = call->prescale;
  request.postscale = call->postscale;
  request.shape = call->shape;
  request.timeout = call->timeout_ms / 1000.0;
  auto memory = engine_.heap().allocate(request.bytes());
  if (!memory.ok()) {
    engine_.fail_now(memory.status());
    return {};
  }
  operation->staging_ = request.receive = static_cast<char*>(*memory);
  operations_.emplace(operation->id_, operation);
  launch(*operation, header, {}, {});
  return {};
}

}  // namespace herring::worker
