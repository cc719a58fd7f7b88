#include "worker/named.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "reduce/reduce.h"
#include "worker/engine.h"
#include "worker/exchange.h"

namespace herring::worker {
namespace {

// Its calls are paired by ranks and tags.
bool is_message(wire::Collective kind) {
  return kind == wire::Collective::kSend || kind == wire::Collective::kReceive;
}

// Every rank refuses such a name for itself, so nobody waits in a call of it.
bool is_reserved(const std::string& name) {
  return name == wire::kMeetingName || name == wire::kJoinName;
}

// What the owner of the messages to a rank is chosen by.
std::string box_of(const Group& group, const Request& request) {
  const bool sends = request.kind == wire::Collective::kSend;
  return concat("messages to ", sends ? request.root : group.index());
}

}  // namespace

NamedOperations::Name NamedOperations::name_of(const Request& request) {
  if (request.kind != wire::Collective::kFormGroup) return {request.group->id(), request.name};
  std::vector<uint32_t> ranks(request.splits.begin(), request.splits.end());
  return {control::Group::kForming, concat(request.name, '\n', control::list_ranks(ranks))};
}

Result<std::shared_ptr<Operation>> NamedOperations::submit(Request request, bool waits) {
  if (!request.group) request.group = engine_.world();
  const Group& group = *request.group;
  const bool forms = request.kind == wire::Collective::kFormGroup;
  const bool message = is_message(request.kind);
  if (Status failed = engine_.failure(); !failed.ok()) return failed;
  const Status failed = message ? group.message_failure() : group.failure();
  if (!failed.ok() && !forms) {
    return Status(failed.code(), concat("'", request.name, "'", group.members().suffix(),
                                        " cannot complete: ", failed.message()));
  }
  auto operation = std::make_shared<Operation>(engine_.loop());
  operation->owner_ = this;
  if (!message) operation->name_ = name_of(request);
  std::unique_lock lock(mutex_);
  if (is_reserved(request.name) && request.kind != wire::Collective::kJoin) {
    return Status(Code::kInvalidArgument,
                  concat("the name '", request.name, "' is not for operations of your own"));
  }
  if (!forms && names_.contains({group.id(), wire::kJoinName})) {
    return Status(Code::kInvalidArgument,
                  concat("'", request.name, "'", group.members().suffix(),
                         " was called after join(); wait until that has returned"));
  }
  if (!message && !names_.insert(operation->name_).second) {
    return Status(Code::kInvalidArgument,
                  concat("an operation named '", request.name, "' is in flight already",
                         group.members().suffix(),
                         "; wait for it, or give this one another name"));
  }
  lock.unlock();
  operation->request = std::move(request);
  // Until it has started, nobody but its caller knows of it.
  const auto starts = [this, operation] {
    or_tell([&](const Status& why) { operation->completion.set(why); },
            [&] { start(operation); });
  };
  const auto forget = [&](const Status&) {
    std::lock_guard again(mutex_);
    names_.erase(operation->name_);
  };
  HERRING_RETURN_IF_ERROR(or_tell(forget, [&] { return engine_.run(starts, waits); }));
  return operation;
}

void NamedOperations::refuse(const std::shared_ptr<Group>& group, wire::Collective kind,
                             const std::string& name, const std::string& why) {
  if (is_reserved(name)) return;
  wire::Announce announce;
  announce.kind = kind;
  announce.name = name;
  announce.refusal = why.empty() ? "no reason given" : why;
  wire::FrameHeader header;
  header.type = wire::FrameType::kAnnounce;
  header.group = group->id();
  {
    // The others' calls go on without this rank, so it may not meet the one after.
    std::lock_guard lock(mutex_);
    if (names_.contains({group->id(), wire::kJoinName})) return;
  }
  // If the engine has ended, nobody is there to be told.
  static_cast<void>(engine_.run([this, header, group, server = group->shards().owner_of(name),
                                 payload = encode(announce), kind] {
    if (kind == wire::Collective::kAllreduce) ++group->called;  // as the others count theirs
    if (engine_.failure().ok()) engine_.links().send_control(server, header, payload);
  }));
}

void NamedOperations::start(const std::shared_ptr<Operation>& operation) {
  operation->id_ = next_id_++;
  operation->started_ = engine_.loop()->now();
  operations_.emplace(operation->id_, operation);
  if (Status status = engine_.failure(); !status.ok()) return finish(*operation, status);
  const Request& request = operation->request;
  const Group& group = *request.group;
  const bool forms = request.kind == wire::Collective::kFormGroup;
  if (Status why = engine_.called_off(group); !why.ok() && !forms) return finish(*operation, why);
  if (group.size() == 1 && !group.is_world() && !forms) return complete_alone(*operation);
  operation->server_ = group.shards().owner_of(request.name);
  if (forms) {
    // A server that it will use: so it can be formed whatever has become of the others.
    const std::vector<uint32_t> ranks(request.splits.begin(), request.splits.end());
    operation->server_ =
        control::shard_map(engine_.cluster(), control::Group(control::Group::kForming,
                                                             engine_.cluster(), ranks, ""))
            .owner_of(request.name);
  }
  const bool message = is_message(request.kind);
  if (message) operation->server_ = group.shards().owner_of(box_of(group, request));
  if (engine_.membership().has_ended(operation->server_)) {
    return finish(*operation, {Code::kPeerLost,
                               concat(engine_.cluster().describe_server(operation->server_),
                                      " has ended")});
  }
  if (request.kind == wire::Collective::kJoin) return start_join(*operation);
  if (request.kind == wire::Collective::kAllreduce) ++request.group->called;
  if (Status said = announce(*operation, operation->server_); !said.ok()) finish(*operation, said);
}

Status NamedOperations::announce(const Operation& operation, uint32_t server) {
  const Request& request = operation.request;
  const Group& group = *request.group;
  const bool forms = request.kind == wire::Collective::kFormGroup;
  const size_t bytes = request.bytes();
  wire::Announce announce;
  announce.id = operation.id_;
  announce.kind = request.kind;
  announce.dtype = request.dtype;
  announce.op = request.op;
  announce.algorithm = request.algorithm;
  announce.root = request.root;
  announce.prescale = request.prescale;
  announce.postscale = request.postscale;
  announce.timeout_ms = engine_.timeout_ms(request.timeout);
  announce.warn_ms = engine_.warn_ms();
  announce.name = request.name;
  announce.shape = request.shape;
  announce.splits = request.splits;
  // A gathered result must fit a reply. The choice depends on nothing but the call itself: it
  // decides in which tree a sum is taken.
  const bool gathers = request.kind == wire::Collective::kAllgather;
  announce.inline_payload =
      bytes <= engine_.options().small_bytes && request.algorithm == wire::Algorithm::kHerring &&
      (!gathers || bytes * group.size() <= wire::kMaxControlPayload / 2);
  if (is_message(request.kind) && !announce.inline_payload) {
    auto own = own_address();
    if (!own.ok()) return own.status();
    announce.address = *own;
  }
  std::string payload = encode(announce);
  const bool has_payload = request.kind != wire::Collective::kBarrier && !forms &&
                           request.kind != wire::Collective::kReceive &&
                           (request.kind != wire::Collective::kBroadcast ||
                            request.root == group.index());
  if (announce.inline_payload && has_payload) {
    payload.append(request.send, bytes);
  }
  wire::FrameHeader header;
  header.type = wire::FrameType::kAnnounce;
  header.group = forms ? 0 : group.id();
  engine_.links().send_control(server, header, std::move(payload));
  return {};
}

// A group of one: nobody has to be asked.
void NamedOperations::complete_alone(Operation& operation) {
  const Request& request = operation.request;
  const size_t count = request.bytes() / size_of(request.dtype);
  const auto reduce_to = [&](char* out) -> Status {
    const reduce::Stage stage{request.dtype,    request.dtype, request.op,
                              request.prescale, 1.0,           request.postscale};
    HERRING_RETURN_IF_ERROR(reduce::check_stage(stage));
    const void* source = request.send;
    if (count > 0) reduce::combine(&source, 1, out, count, stage);
    return {};
  };
  Status status;
  switch (request.kind) {
    case wire::Collective::kBarrier:
    case wire::Collective::kFormGroup:
    case wire::Collective::kBroadcast: break;
    case wire::Collective::kJoin: operation.counts = {0}; break;
    case wire::Collective::kSend:
    case wire::Collective::kReceive:
      status = {Code::kInvalidArgument, "nobody else is in this group"};
      break;
    case wire::Collective::kAllreduce: status = reduce_to(request.receive); break;
    case wire::Collective::kAllgather:
      operation.counts = {request.shape.empty() ? 1 : request.shape[0]};
      [[fallthrough]];
    case wire::Collective::kAlltoall:
      if (request.kind == wire::Collective::kAlltoall) operation.counts = {count};
      [[fallthrough]];
    case wire::Collective::kReduceScatter:
      if (char* out = operation.place_result(request.bytes()); out == nullptr) {
        status = {Code::kInternal, concat("no memory for the result of '", request.name,
                                          "', which has ", request.bytes(), " bytes")};
      } else if (request.kind == wire::Collective::kReduceScatter) {
        status = reduce_to(out);
      } else if (count > 0) {
        std::memcpy(out, request.send, request.bytes());
      }
  }
  finish(operation, status);
}

std::shared_ptr<Operation> NamedOperations::find(uint64_t id) const {
  const auto found = operations_.find(id);
  return found == operations_.end() ? nullptr : found->second;
}

void NamedOperations::on_control(uint32_t server, const wire::FrameHeader& header,
                                 std::string_view payload) {
  const auto malformed = [&](const Status& why) {
    engine_.fail_now(
        {why.code(), concat(engine_.cluster().describe_server(server), ": ", why.message())});
  };
  if (header.type == wire::FrameType::kOpError) {
    auto error = wire::decode_op_error(payload);
    if (!error.ok()) return malformed(error.status());
    const Status why(error->code, error->text);
    if (error->id == 0) return engine_.fail_now(why);
    auto operation = find(error->id);
    if (!operation) return;
    // Other servers still take it for joined.
    if (operation->request.kind == wire::Collective::kJoin) {
      const std::shared_ptr<Group> group = operation->request.group;
      if (why.code() != Code::kPeerLost) return engine_.membership().fail_group(group->id(), why);
      group->leave(why);  // not fail(): messages between the members that stay go on
    }
    // What moves cannot be called back from one rank alone.
    return operation->launched_ ? engine_.fail_now(why) : fail(*operation, why);
  }
  std::string_view rest;
  auto go = wire::decode_go(payload, &rest);
  if (!go.ok()) return malformed(go.status());
  if (go->id == 0 && header.type == wire::FrameType::kGo) {
    const Status fits = take_part(header, rest);
    return fits.ok() ? void() : malformed(fits);
  }
  auto operation = find(go->id);
  if (!operation) return;  // failed meanwhile
  if (operation->launched_) {
    return malformed(breach("answered '", operation->request.name, "' twice"));
  }
  if (header.type == wire::FrameType::kReply) {
    operation->request.kind == wire::Collective::kJoin
        ? on_joined(*operation, server, std::move(go->counts))
        : on_reply(*operation, std::move(*go), rest);
  } else {
    launch(*operation, header, std::move(*go), rest);
  }
}

void NamedOperations::on_reply(Operation& operation, wire::Go head, std::string_view result) {
  const Request& request = operation.request;
  operation.counts = std::move(head.counts);
  switch (request.kind) {
    case wire::Collective::kBarrier:
    case wire::Collective::kSend: break;
    case wire::Collective::kFormGroup: {
      // The number first, then a word of every server that it knows the group.
      if (operation.formed) {
        if (--operation.parts_left_ > 0) return;
        engine_.membership().formed(operation.formed);
        break;
      }
      if (operation.counts.size() != 1 || operation.counts[0] == control::Group::kWorld ||
          operation.counts[0] >= control::Group::kForming) {
        return engine_.fail_now(breach("a server formed group '", request.name,
                                       "' without a number"));
      }
      operation.formed = engine_.membership().define(
          static_cast<uint32_t>(operation.counts[0]), request.name,
          {request.splits.begin(), request.splits.end()}, operation.id_);
      operation.parts_left_ = operation.formed->servers().size();
      for (const uint32_t one : operation.formed->servers()) {
        if (!engine_.membership().has_ended(one)) continue;
        return fail(operation, {Code::kPeerLost,
                                concat("group '", request.name, "' cannot be formed: ",
                                       engine_.cluster().describe_server(one), " has ended")});
      }
      return;
    }
    case wire::Collective::kAllreduce:
    case wire::Collective::kBroadcast:
    case wire::Collective::kReceive:
      if (result.size() != request.bytes()) {
        return engine_.fail_now(breach("the result of '", request.name, "' has ", result.size(),
                                       " bytes, not ", request.bytes()));
      }
      if (!result.empty()) std::memcpy(request.receive, result.data(), result.size());
      break;
    default: {
      char* const out = operation.place_result(result.size());
      if (out == nullptr) {
        return engine_.fail_now({Code::kInternal,
                                 concat("no memory for the result of '", request.name,
                                        "', which has ", result.size(), " bytes")});
      }
      if (!result.empty()) std::memcpy(out, result.data(), result.size());
    }
  }
  finish(operation, {});
}

void NamedOperations::part_done(Operation& operation) {
  if (--operation.parts_left_ > 0) return;
  const Status why = engine_.called_off(*operation.request.group);
  // Who is gone is not known yet: it will be.
  if (operation.called_off_ && why.ok()) return;
  if (const auto& copy = operation.copy_; copy.bytes > 0 && why.ok()) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  finish(operation, why);
}

void NamedOperations::finish(Operation& operation, const Status& status) {
  const auto found = operations_.find(operation.id_);
  if (found == operations_.end()) return;
  const std::shared_ptr<Operation> keep = found->second;
  if (char* const staging = std::exchange(keep->staging_, nullptr)) {
    engine_.heap().free(staging);
    engine_.node_stage().release_regions();
  }
  Status told = status;
  // From here to where it is told, nothing needs memory.
  operations_.erase(found);
  if (keep->absent_) return end_join(keep->request.group->id());
  if (!is_message(keep->request.kind)) {
    std::lock_guard lock(mutex_);
    names_.erase(keep->name_);
  }
  if (keep->formed && !status.ok()) {
    engine_.membership().forget(keep->formed);
    keep->formed.reset();
  }
  if (keep->request.kind == wire::Collective::kJoin && status.ok()) {
    keep->request.group->count_join();
    keep->request.group->called = 0;
  }
  keep->completion.set(std::move(told));
  if (keep->then_) keep->then_(status);
}

void NamedOperations::fail(Operation& operation, const Status& why) {
  if (operation.request.kind != wire::Collective::kJoin) return finish(operation, why);
  if (operation.failed_.ok()) operation.failed_ = why;
  end_join(operation.request.group->id());
}

bool NamedOperations::moves(const Group& group) const {
  return std::any_of(operations_.begin(), operations_.end(), [&group](const auto& one) {
    return one.second->launched_ && one.second->request.group.get() == &group;
  });
}

bool NamedOperations::any(const Group& group) const {
  return std::any_of(operations_.begin(), operations_.end(), [&group](const auto& one) {
    return one.second->request.group.get() == &group;
  });
}

void NamedOperations::server_ended(uint32_t server, const Status& why) {
  std::vector<std::shared_ptr<Operation>> unanswered;
  for (const auto& [id, operation] : operations_) {
    if (operation->launched_) continue;
    const Request& request = operation->request;
    const bool told = operation->formed && operation->formed->is_known_to(server);
    const bool asked = request.kind == wire::Collective::kJoin &&
                       std::ranges::count(request.group->shards().owners, server) > 0;
    if (operation->server_ == server || told || asked) unanswered.push_back(operation);
  }
  for (const auto& operation : unanswered) {
    const Group& group = operation->formed ? *operation->formed : *operation->request.group;
    fail(*operation, {why.code(), concat("'", operation->request.name, "'",
                                         group.members().suffix(), " cannot complete: ",
                                         why.message())});
  }
}

void NamedOperations::call_off(const Group& group, const Status& why) {
  std::vector<std::shared_ptr<Operation>> ended;
  for (const auto& [id, operation] : operations_) {
    const Request& request = operation->request;
    if (request.group.get() != &group || request.kind == wire::Collective::kFormGroup) continue;
    if (!operation->launched_ || operation->parts_left_ == 0) ended.push_back(operation);
  }
  for (const auto& operation : ended) fail(*operation, why);
}

void NamedOperations::fail_all(const Status& why) {
  while (!operations_.empty()) finish(*operations_.begin()->second, why);
}

std::string NamedOperations::overdue(Nanos now, Nanos margin, Nanos* waited) const {
  for (const auto& [id, operation] : operations_) {
    if (operation->launched_) continue;
    const Nanos age = now - operation->started_;
    const uint32_t timeout_ms = engine_.timeout_ms(operation->request.timeout);
    if (age <= timeout_ms * kMillisecond + margin) continue;
    *waited = age;
    return concat("'", operation->request.name, "'",
                  operation->request.group->members().suffix());
  }
  return {};
}

void NamedOperations::held_up(Nanos now, Nanos since, std::vector<std::string>& out) const {
  for (const auto& [id, operation] : operations_) {
    const Nanos waits = operation->completion.waits_since(now);
    if (waits == 0 || waits >= since) continue;
    const Request& request = operation->request;
    const control::Group& members = request.group->members();
    const bool other = is_message(request.kind) && request.root != wire::kAnyRank;
    out.push_back(concat(wire::name_of(request.kind), " '", request.name, "'",
                         other ? concat(" (rank ", members.ranks()[request.root], ")") : "",
                         members.suffix()));
  }
}

}  // namespace herring::worker
