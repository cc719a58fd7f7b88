#include "calls/calls.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "wire/fields.h"

namespace herring::calls {
namespace {

// Returns the name that determines the owner of the messages to a rank.
std::string box_of(const Group& group, const wire::Collective& what) {
  const auto* send = std::get_if<wire::Send>(&what);
  return concat("messages to ", send != nullptr ? send->to : group.index());
}

}  // namespace

std::string Calls::title(const Underway& operation) {
  return concat("'", operation.call.name, "'", operation.call.group->members().suffix());
}

Result<std::shared_ptr<Underway>> Calls::make(Call call, std::optional<wire::Announce> theirs) {
  auto handle = std::make_shared<Operation>(std::move(call), core_.loop, core_.heap,
                                            [this](const Status& why) { core_.ending.abort(why); });
  HERRING_RETURN_IF_ERROR(handle->prepare([this](const Call& one) { return sharing_members(one); },
                                          theirs.has_value()));
  return std::make_shared<Underway>(*this, std::move(handle), std::move(theirs));
}

// Checks whether the call can begin here, and makes its operation.
Result<std::shared_ptr<Underway>> Calls::admit(Call call) {
  const std::shared_ptr<Group> group = call.group;
  const bool forms = wire::is<wire::FormGroup>(call.what);
  const bool message = wire::is_message(call.what);
  if (Status failed = core_.ending.failure(); !failed.ok()) return failed;
  const Status failed = message ? group->called_off() : group->failure();
  if (!failed.ok() && !forms) {
    return Status(failed.code(), concat("'", call.name, "'", group->members().suffix(),
                                        " cannot complete: ", failed.message()));
  }
  if (wire::is_reserved(call.name) && !wire::is<wire::Join>(call.what)) {
    return Status(Code::kInvalidArgument,
                  concat("the name '", call.name, "' is reserved"));
  }
  auto made = make(std::move(call));
  if (!made.ok()) return made.status();
  HERRING_RETURN_IF_ERROR(names_.take((*made)->call, (*made)->name, (*made)->number));
  return made;
}

Result<std::shared_ptr<Operation>> Calls::submit(Call call, bool waits) {
  if (!call.group) call.group = core_.groups.world();
  observe::Entry entry;
  entry.kind = observe::Kind::kCall;
  entry.at[static_cast<size_t>(observe::Moment::kCalled)] = core_.loop->now();
  entry.group = call.group->id();
  for (const Buffer& one : call.buffers) entry.bytes += one.array.bytes();
  entry.set_name(call.title());
  auto made = admit(std::move(call));
  if (!made.ok()) {
    engine::OpenEntry(core_.program, entry).end(core_.loop->now(), made.status().code());
    return made.status();
  }
  const std::shared_ptr<Underway> operation = *made;
  entry.number = operation->number;
  operation->handle->begin(core_.program, entry);
  // Until the operation has started, only its caller knows of it.
  const auto fail = [this, operation](const Status& why) { drop(*operation, why); };
  const Status begun = or_tell(fail, [&] {
    if (operation->handle->comes_back()) return bring_out(operation);
    if (operation->handle->sums()) {
      HERRING_RETURN_IF_ERROR(operation->handle->sums()->queue(operation->call));
    }
    const auto starts = [this, operation] {
      or_tell([&](const Status& why) { operation->handle->set(why); }, [&] { start(operation); });
    };
    return core_.run(starts, waits);
  });
  if (begun.ok()) return operation->handle;
  fail(begun);
  return begun;
}

// Queues the copies of the arrays to the staging memory, without waiting for them. The operation
// starts when they are done. The callback may run after this object is gone, but the task that it
// posts runs only as long as the loop does.
Status Calls::bring_out(const std::shared_ptr<Underway>& operation) {
  operation->started = core_.loop->now();
  HERRING_RETURN_IF_ERROR(operation->handle->bring_out([this, operation](const Status& out) {
    const bool runs = operation->handle->loop_of()->post([this, operation, out] {
      arrivals_.come(operation, out);
    });
    if (!runs) operation->handle->set({Code::kShutdown, "herring was shut down"});
  }));
  // Queued copies cannot be withdrawn, so from here on the operation reports its own failure.
  const Status known = core_.run([this, operation] { arrivals_.expect(operation); }, true);
  if (!known.ok()) drop(*operation, known);
  return {};
}

void Calls::drop(Underway& operation, const Status& why) {
  if (operation.handle->sums()) operation.handle->sums()->end(why);
  names_.give_back(operation.name);
  operation.handle->set(why);
}

void Calls::refuse(const std::shared_ptr<Group>& group, wire::Collective what,
                             const std::string& name, const std::string& why) {
  if (wire::is_reserved(name)) return;  // every rank rejects such a name, so nobody waits
  wire::Announce announce;
  announce.what = std::move(what);
  announce.name = name;
  announce.refusal = why.empty() ? "no reason given" : why;
  // The other ranks' calls go on without this rank, so a refusal might meet a later call instead.
  if (names_.has_joined(*group)) return;
  names_.skip(*group, announce.what, name);
  const bool counts = wire::is<wire::AllReduce>(announce.what);
  // If the engine has ended, there is nobody to tell.
  static_cast<void>(core_.run([this, group, announce = std::move(announce), counts] {
    if (counts) ++group->called;  // the other ranks count their calls, too
    if (!core_.ending.begun()) handovers_.refuse(*group, announce);
  }));
}

bool Calls::has_ended(const Owner& owner) const {
  return core_.presence.has_ended(owner.server) || !core_.owners.has(owner.server);
}

void Calls::keep(const std::shared_ptr<Underway>& operation) {
  operation->id = new_id();
  operation->started = core_.loop->now();
  operations_.emplace(operation->id, operation);
}

void Calls::start(const std::shared_ptr<Underway>& operation) {
  keep(operation);
  if (Status status = core_.ending.failure(); !status.ok()) return finish(*operation, status);
  const Call& call = operation->call;
  Group& group = *call.group;
  auto* forms = std::get_if<wire::FormGroup>(&operation->call.what);
  if (Status why = group.called_off(); !why.ok() && forms == nullptr) {
    return finish(*operation, why);
  }
  if (group.size() == 1 && !group.is_world() && forms == nullptr) {
    operation->handle->mark().at(observe::Moment::kReady, operation->started);
    return mover_.alone(*operation);
  }
  if (forms != nullptr) {
    const bool counts = core_.options.failover && !call.unique;
    forms->turn = counts ? ++turns_[fnv1a(Names::of(call).second)] : 0;
    operation->asked = handovers_.owner_of(*forms, call.name);
  } else {
    operation->asked = core_.owner_of(
        group, wire::is_message(call.what) ? box_of(group, call.what) : call.name);
  }
  if (has_ended(operation->asked)) {
    return finish(*operation, {Code::kPeerLost,
                               concat(core_.cluster.describe_server(operation->asked.server),
                                      " has ended")});
  }
  if (wire::is<wire::Join>(call.what)) return joins_.start(*operation);
  if (wire::is<wire::AllReduce>(call.what) && !wire::is_reserved(call.name)) ++group.called;
  if (Status said = announce(*operation, operation->asked); !said.ok()) finish(*operation, said);
}

// The address is missing.
wire::Announce Calls::announcement_of(const Underway& operation) const {
  const Call& call = operation.call;
  const Group& group = *call.group;
  const size_t bytes = operation.handle->bytes();
  wire::Announce announce;
  announce.id = operation.id;
  announce.what = call.what;
  const std::shared_ptr<Group>& formed = operation.handle->formed;
  if (auto* forms = std::get_if<wire::FormGroup>(&announce.what); forms && formed) {
    forms->number = formed->id();
  }
  for (const Bundle& bundle : operation.bundles) announce.arrays.push_back(bundle.array);
  announce.listed = operation.absent() ? operation.theirs->listed : call.list;
  announce.timeout_ms = core_.timeout_ms(call.timeout);
  announce.warn_ms = core_.warn_ms();
  announce.servers = core_.links->serving().epoch;
  announce.name = operation.announced_name();
  announce.agreement = operation.absent() ? operation.theirs->agreement
                                          : wire::agreement_of(call.agreement);
  // A gathered result must fit into a reply. The choice must depend only on the call itself,
  // because it decides in which order a sum is computed.
  const auto* allreduce = std::get_if<wire::AllReduce>(&call.what);
  // And if a server is lost, ranks know of each other's results only where all have the same one.
  const bool differs = wire::is<wire::ReduceScatter>(call.what) ||
                       wire::is<wire::AllToAll>(call.what) || wire::is_message(call.what);
  // What says whether an attempt is whole is no attempt itself.
  const bool says_whole = call.name.starts_with(wire::kWholePrefix);
  announce.inline_payload =
      (bytes <= core_.options.small_bytes || says_whole) &&
      !(differs && core_.options.failover) &&
      (allreduce == nullptr || allreduce->algorithm == wire::Algorithm::kHerring) &&
      (!wire::is<wire::AllGather>(call.what) ||
       bytes * group.size() <= wire::kMaxControlPayload / 2);
  return announce;
}

Status Calls::announce(const Underway& operation, const Owner& owner) {
  const Call& call = operation.call;
  const Group& group = *call.group;
  const size_t bytes = operation.handle->bytes();
  wire::Announce announce = announcement_of(operation);
  if (wire::is_message(call.what) && !announce.inline_payload) {
    HERRING_RETURN_IF_ERROR(meeting_.own_address().move_to(announce.address));
  }
  std::string payload = encode(announce);
  if (announce.inline_payload && wire::gives_data(call.what, group.index())) {
    for (const Bundle& bundle : operation.bundles) {
      payload.append(bundle.send, bundle.array.bytes());
    }
  }
  wire::FrameHeader header{.type = wire::FrameType::kAnnounce,
                           .group = wire::is<wire::FormGroup>(call.what) ? 0 : group.id(),
                           .stream = owner.reign.home, .round = owner.reign.epoch};
  core_.links->send_control(owner.server, header, std::move(payload));
  const observe::Mark mark = operation.handle->mark();
  const Nanos now = mark ? core_.loop->now() : 0;
  mark.at(observe::Moment::kReady, now);
  if (announce.inline_payload && bytes > 0) mark.at(observe::Moment::kPushed, now);
  return {};
}

std::shared_ptr<Underway> Calls::find(uint64_t id) const {
  const auto found = operations_.find(id);
  return found == operations_.end() ? nullptr : found->second;
}

void Calls::on_control(uint32_t server, const wire::FrameHeader& header,
                                 std::string_view payload) {
  const auto malformed = [&](const Status& why) {
    core_.ending.fail_now(
        {why.code(), concat(core_.cluster.describe_server(server), ": ", why.message())});
  };
  const auto counts = handovers_.receive(server, header, payload);
  if (!counts.ok()) return malformed(counts.status());
  if (!*counts) return;
  if (header.type == wire::FrameType::kOpError) {
    auto error = wire::decode_op_error(payload);
    if (!error.ok()) return malformed(error.status());
    const Status why(error->code, error->text);
    if (error->id == 0) return core_.ending.fail_now(why);
    auto operation = find(error->id);
    if (!operation) return;
    if (wire::is<wire::Join>(operation->call.what)) return joins_.on_error(*operation, why);
    // Bytes on their way cannot be withdrawn by one rank.
    return operation->launched ? core_.ending.fail_now(why) : finish(*operation, why);
  }
  std::string_view rest;
  auto go = wire::decode_go(payload, &rest);
  if (!go.ok()) return malformed(go.status());
  if (go->id == 0 && header.type == wire::FrameType::kGo) {
    const Status fits = joins_.take_part(header, rest);
    return fits.ok() ? void() : malformed(fits);
  }
  auto operation = find(go->id);
  if (!operation) return;  // failed in the meantime
  if (operation->launched) {
    return malformed(breach("answered '", operation->call.name, "' twice"));
  }
  const bool arrays = !operation->bundles.empty();
  if (header.type != wire::FrameType::kReply) {
    if (!arrays) return malformed(breach("has nothing to move for '", operation->call.name, "'"));
    launch(*operation, header, std::move(*go), rest);
  } else if (wire::is<wire::Join>(operation->call.what)) {
    const auto servers = static_cast<uint32_t>(core_.cluster.servers.size());
    joins_.on_reply(*operation, server, home_of(header.stream, servers), std::move(go->counts));
  } else if (operation->handle->formed) {
    confirmed(*operation, server);
  } else {
    operation->handle->counts = std::move(go->counts);
    wire::is<wire::FormGroup>(operation->call.what) ? on_numbered(*operation)
                                                     : mover_.take(*operation, rest);
  }
}

void Calls::launch(Underway& operation, const wire::FrameHeader& header, wire::Go go,
                             std::string_view rest) {
  operation.launched = true;
  operation.handle->counts = std::move(go.counts);
  const Group& group = *operation.call.group;
  if (Status why = group.called_off(); !why.ok()) return finish(operation, why);
  if (header.group != group.id()) {
    return core_.ending.fail_now(
        breach(title(operation), " was answered for group ", header.group));
  }
  core_.recorder().place(operation.handle->mark().id, header.stream, header.round);
  const Key key{header.stream, header.round, 0, group.id()};
  if (mover_.can_try_again(operation.call)) {
    operation.attempt = {go.servers, key};
    if (go.servers > core_.links->serving().epoch) return early_.push_back(operation.id);
  }
  mover_.move(operation, key, std::string(rest));
}

void Calls::serve(const control::ServerSet& set) {
  handovers_.serve(set);
  while (!early_.empty() && !core_.ending.begun()) {
    const auto operation = find(early_.front());
    if (operation && operation->attempt->servers > set.epoch) return;
    early_.pop_front();
    if (operation) mover_.move(*operation, operation->attempt->key, {});
  }
}

// A part of an operation may be lost for some ranks only. All make another attempt then. So nobody
// gives its arrays back before all have everything.
void Calls::ask_whether_whole(Underway& operation) {
  const Key& key = operation.attempt->key;
  Call call;
  call.group = operation.call.group;
  call.what = wire::AllReduce{{ReduceOp::kMin}};
  // Errors name a call that is late, so its name says what it is about.
  call.name = concat(wire::kWholePrefix, key.stream, '/', key.round, " of ", operation.call.name);
  call.name.resize(std::min(call.name.size(), wire::kMaxName));
  call.timeout = operation.call.timeout;
  char* const whole = reinterpret_cast<char*>(&operation.whole);
  call.buffers = {{{DType::kUInt8, {1}}, whole, whole}};
  auto asks = make(std::move(call));
  if (!asks.ok()) return core_.ending.fail_now(asks.status());
  (*asks)->then = [this, asked = operation.shared_from_this()](const Status& status) {
    if (find(asked->id) != asked) return;
    if (!status.ok()) {
      finish(*asked, status);
    } else if (asked->whole == 0) {
      try_again(*asked);
    } else {
      complete(*asked, {});
    }
  };
  start(*asks);
}

void Calls::try_again(Underway& operation) {
  const Key& key = operation.attempt->key;
  operation.again = concat(wire::kAgainPrefix, key.stream, '/', key.round);
  operation.begin_again();
  core_.node_stage->release_regions();
  operation.started = core_.loop->now();
  operation.asked = core_.owner_of(*operation.call.group, operation.again);
  log(LogLevel::kDebug, title(operation), " begins again, because a server is lost");
  if (Status said = announce(operation, operation.asked); !said.ok()) finish(operation, said);
}

// First the server sends the group's number. Then every server of the group confirms that it knows
// the group.
void Calls::confirmed(Underway& operation, uint32_t server) {
  if (std::erase(operation.unconfirmed, server) == 0 || !operation.unconfirmed.empty()) return;
  core_.groups.formed(operation.handle->formed);
  finish(operation, {});
}

void Calls::on_numbered(Underway& operation) {
  const std::string& name = operation.call.name;
  const std::vector<uint64_t>& counts = operation.handle->counts;
  if (counts.size() != 1 || counts[0] == control::Group::kWorld ||
      counts[0] >= control::Group::kForming) {
    return core_.ending.fail_now(breach("a server formed group '", name, "' without a number"));
  }
  operation.handle->formed = core_.groups.define(
      static_cast<uint32_t>(counts[0]), name,
      std::get<wire::FormGroup>(operation.call.what).ranks, operation.id);
  for (const uint32_t one : operation.handle->formed->servers()) {
    const bool serves = core_.owners.has(one) || core_.presence.comes(one);
    if (!serves) continue;  // others stand in for it
    operation.unconfirmed.push_back(one);
    if (!core_.presence.has_ended(one)) continue;
    return finish(operation, {Code::kPeerLost,
                              concat("group '", name, "' cannot be formed: ",
                                     core_.cluster.describe_server(one), " has ended")});
  }
}

void Calls::part_done(Underway& operation) {
  if (--operation.parts_left > 0) return;
  const Status why = operation.call.group->called_off();
  // It is not known yet who is gone; the operation ends when that is known.
  if (operation.called_off && why.ok()) return;
  if (operation.attempt && why.ok()) {
    // It may have ended because of a new set of servers, of which Handovers has yet to hear.
    core_.loop->post([this, id = operation.id] {
      if (const auto moved = find(id)) ask_whether_whole(*moved);
    });
    return;
  }
  complete(operation, why);
}

void Calls::complete(Underway& operation, const Status& why) {
  for (const Underway::Copy& copy : operation.copies) {
    if (copy.bytes > 0 && why.ok()) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  finish(operation, why);
}

void Calls::finish(Underway& operation, const Status& status) {
  const auto found = operations_.find(operation.id);
  if (found == operations_.end()) return;
  const std::shared_ptr<Underway> keep = found->second;
  const Call& call = keep->call;
  Status told = status;
  if (keep->call.list && !keep->absent() && status.ok()) {
    if (told = keep->handle->unpack(); !told.ok()) return core_.ending.fail_now(told);
  }
  if ((!keep->call.list && !keep->handle->on_device()) || keep->absent() || !status.ok()) {
    keep->handle->drop_staging();
    core_.node_stage->release_regions();
  }
  if (keep->handle->sums()) {
    keep->handle->sums()->end(status);
    if (status.ok()) ++device_sums_;
    if (status.ok() && keep->handle->sums()->reads_neighbours()) ++neighbour_sums_;
  }
  // From here until the result is set, nothing allocates memory.
  operations_.erase(found);
  if (keep->absent()) return joins_.settle(call.group->id());
  names_.give_back(keep->name);
  if (keep->handle->formed && !status.ok()) {
    core_.groups.forget(keep->handle->formed);
    keep->handle->formed.reset();
  }
  if (wire::is<wire::Join>(call.what) && status.ok()) {
    call.group->count_join();
    call.group->called = 0;
  }
  keep->handle->set(std::move(told));
  if (keep->then) keep->then(status);
}

void Calls::fail(Underway& operation, const Status& why) {
  wire::is<wire::Join>(operation.call.what) ? joins_.fail(operation, why)
                                             : finish(operation, why);
}

NearMembers Calls::near_members(const Call& call) const {
  return calls::near_members(call, core_.cluster.incarnation);
}

NearMembers Calls::sharing_members(const Call& call) const {
  const std::string& stage = core_.options.node_stage;
  return stage == "auto" || stage == "ipc" ? near_members(call) : NearMembers();
}

bool Calls::uses(const Group& group) const {
  const auto here = [&group](const auto& one) { return one.second->call.group.get() == &group; };
  return arrivals_.any(group) || std::any_of(operations_.begin(), operations_.end(), here);
}

bool Calls::stands_still() const {
  const uint32_t usual = core_.timeout_ms(0);
  return arrivals_.empty() && std::ranges::none_of(operations_, [&](const auto& one) {
    return one.second->launched || core_.timeout_ms(one.second->call.timeout) < usual;
  });
}

bool Calls::may_need(const Group& group, uint32_t server) const {
  return std::ranges::any_of(operations_, [&](const auto& one) {
    const Underway& operation = *one.second;
    if (operation.call.group.get() != &group) return false;
    return !wire::is_message(operation.call.what) ||
           (operation.asked.server == server && !operation.launched);
  });
}

void Calls::server_ended(uint32_t server, const Status& why) {
  std::vector<std::shared_ptr<Underway>> unanswered;
  for (const auto& [id, operation] : operations_) {
    if (operation->launched) continue;
    const Call& call = operation->call;
    const bool told = operation->handle->formed && operation->handle->formed->is_known_to(server);
    const bool asked = wire::is<wire::Join>(call.what) &&
                       std::ranges::count(call.group->shards().owners, server) > 0;
    if (operation->asked.server == server || told || asked) unanswered.push_back(operation);
  }
  for (const auto& operation : unanswered) {
    const std::shared_ptr<Group>& formed = operation->handle->formed;
    const Group& group = formed ? *formed : *operation->call.group;
    fail(*operation, {why.code(), concat("'", operation->call.name, "'",
                                         group.members().suffix(), " cannot complete: ",
                                         why.message())});
  }
}

void Calls::call_off(const Group& group, const Status& why) {
  arrivals_.call_off(group, why);
  std::vector<std::shared_ptr<Underway>> ended;
  for (const auto& [id, operation] : operations_) {
    const Call& call = operation->call;
    if (call.group.get() != &group || wire::is<wire::FormGroup>(call.what)) continue;
    if (!operation->launched || operation->parts_left == 0) ended.push_back(operation);
  }
  for (const auto& operation : ended) fail(*operation, why);
}

void Calls::fail_all(const Status& why) {
  arrivals_.fail_all(why);
  while (!operations_.empty()) finish(*operations_.begin()->second, why);
  device::Neighbours::instance().forget(core_.cluster.incarnation);
}

std::string Calls::overdue(Nanos now, Nanos margin, Nanos* waited,
                                     uint32_t* server) const {
  for (const auto& [id, operation] : operations_) {
    if (operation->launched) continue;
    const Nanos age = now - operation->started;
    const uint32_t timeout_ms = core_.timeout_ms(operation->call.timeout);
    if (age <= timeout_ms * kMillisecond + margin) continue;
    *waited = age;
    *server = operation->asked.server;
    return title(*operation);
  }
  return {};
}

}  // namespace herring::calls
