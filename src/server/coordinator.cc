#include "server/coordinator.h"

#include <algorithm>

namespace herring::server {
namespace {

using wire::Announce;
using control::Group;

// Limit of failed calls that some rank has still not made. If there are more, ranks make different
// calls.
constexpr size_t kMostFailed = 1 << 16;
// Larger gathered results are sent in segments within credit, not as one frame.
constexpr uint64_t kLargestReply = 8 << 20;

// All have joined, so each rank is told which one was last. Servers hear of joins in different
// orders. Therefore the number of calls that a rank has made decides, not the time of arrival.
void answer_joins(const Pending& pending, std::vector<Answer>& out) {
  const auto called = [](const Announcement& call) {
    return std::get<wire::Join>(call.message.what).called;
  };
  const Announcement* last = &pending.calls.front();
  for (const Announcement& call : pending.calls) {
    if (called(call) >= called(*last)) last = &call;
  }
  const wire::FrameHeader header{.type = wire::FrameType::kReply,
                                 .group = pending.group->members.id()};
  for (const Announcement& call : pending.calls) {
    out.push_back({pending.group->members.ranks()[call.index], header,
                   encode(wire::Go{call.message.id, {last->index}})});
  }
}

// Lets the operation move, with the next ticket of the stream. Versions of the set of servers never
// decrease in a stream. So a rank that has yet to hear of a version moves no later call before this
// one.
void launch(JobGroup& group, const Announces& calls, const Reign& reign, uint32_t stream,
            std::vector<Answer>& out) {
  wire::Go go = common_head(calls);
  uint32_t& servers = group.sequences[reign.home].servers;
  for (const Announce* call : calls) {
    if (call != nullptr) servers = std::max(servers, call->servers);
  }
  go.servers = servers;
  const wire::FrameHeader header{.type = wire::FrameType::kGo, .group = group.members.id(),
                                 .stream = stream, .round = group.next_ticket++};
  for (uint32_t index = 0; index < calls.size(); ++index) {
    std::string text;
    if (calls[index] != nullptr) {
      complete_head(go, calls, index);
      text = encode(go);
    } else {
      wire::Announce first = first_of(calls);
      first.servers = servers;
      text = encode(wire::Go{}) + encode(first);
    }
    out.push_back({group.members.ranks()[index], header, std::move(text)});
  }
}

// Answers with the results of payloads that were sent along.
void reply(const JobGroup& group, const Announces& calls, std::vector<Answer>& out) {
  const Results results = compute(calls);
  wire::Go head = common_head(calls);
  const wire::FrameHeader header{.type = wire::FrameType::kReply, .group = group.members.id()};
  for (uint32_t index = 0; index < calls.size(); ++index) {
    if (calls[index] == nullptr) continue;
    complete_head(head, calls, index);
    out.push_back({group.members.ranks()[index], header, encode(head) + results.of(index)});
  }
}

}  // namespace

Coordinator::Coordinator(const control::Cluster& cluster, GroupTable& groups, uint32_t index,
                         const observe::RankStates& states)
    : cluster_(cluster),
      groups_(groups),
      index_(index),
      servers_(static_cast<uint32_t>(cluster.servers.size())),
      whereabouts_(cluster.size, states),
      mailbox_(cluster, whereabouts_),
      reminders_(cluster, whereabouts_),
      loads_(cluster.size),
      lateness_(cluster.size),
      numbers_(servers_) {}

// Returns the group that the call is for. For a call that forms a group, that is the future group.
Result<std::shared_ptr<JobGroup>> Coordinator::group_of(uint32_t group, const Announce& message,
                                                        uint32_t rank) const {
  const auto wrong = [&](const std::string& what) {
    return breach("rank ", rank, " announced '", message.name, "' ", what);
  };
  const auto* const forms = std::get_if<wire::FormGroup>(&message.what);
  if (forms == nullptr) {
    auto found = groups_.find(group);
    if (!found) return wrong(concat("in group ", group, ", which it did not define"));
    if (!found->members.has(rank)) return wrong(concat("in group ", group, " as a non-member"));
    return found;
  }
  if (Status fits = control::Group::check(cluster_, forms->ranks); !fits.ok()) {
    return wrong(concat("with an impossible group: ", fits.message()));
  }
  auto formed = std::make_shared<JobGroup>(
      cluster_, control::Group(Group::kForming, cluster_, forms->ranks, message.name), 1);
  if (!formed->members.has(rank)) return wrong("without being a member");
  groups_.note_gone(*formed);
  return formed;
}

// Notes that a member has the group's number from a server that is lost, and gives it to members
// that wait.
Status Coordinator::note_number(const Name& name, uint32_t number, uint32_t rank, uint32_t index,
                                std::vector<Answer>& out) {
  HERRING_RETURN_IF_ERROR(numbers_.note(name, number, rank, index));
  const auto found = names_.find(name);
  if (found == names_.end()) return {};
  Calls& calls = found->second;
  numbers_.count(name, calls.front());
  advance(calls, calls.begin(), out);
  if (calls.empty()) names_.erase(found);
  return {};
}

// Gives the answers to a call, from `first` on, its number. They name the home by its stream.
void Coordinator::sign(Pending& pending, std::vector<Answer>& out, size_t first) const {
  const uint32_t group = pending.group->members.id();
  if (group == Group::kForming) return;
  if (pending.number == 0) {
    pending.number = ++pending.group->sequences[pending.reign.home].answered;
  }
  for (size_t i = first; i < out.size(); ++i) {
    wire::FrameHeader& header = out[i].header;
    header.group = group;
    header.stream = stream_of(pending.reign, servers_);
    wire::set_answer_number(header, pending.number);
  }
}

// Returns the call that a rank's next announcement of a name belongs to: the first that it has not
// made.
Coordinator::Calls::iterator Coordinator::next_call(Calls& calls,
                                                    const std::shared_ptr<JobGroup>& group,
                                                    Reign reign, const Announce& message,
                                                    uint32_t index, Nanos now) {
  const auto found = std::find_if(calls.begin(), calls.end(), [index](const Pending& pending) {
    return !pending.here[index];
  });
  if (found != calls.end()) return found;
  Pending& pending = calls.emplace_back(group, reign, now);
  if (wire::is_reserved(message.name)) return calls.end() - 1;
  const Pending* const join = joining({group->members.id(), reign.home});
  if (join != nullptr) {
    for (const Announcement& call : join->calls) {
      if (call.index != index) pending.go_without(call.index);
    }
  }
  return calls.end() - 1;
}

Status Coordinator::announce(uint32_t rank, uint32_t group_id, Reign reign, std::string text,
                             Nanos now, std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& decoded, wire::decode_announce(text));
  HERRING_ASSIGN_OR_RETURN(auto& group, group_of(group_id, decoded, rank));
  const control::Group& members = group->members;
  const uint32_t index = members.index_of(rank);
  const bool own = reign == Reign{index_};
  if (!own && (reign.home >= servers_ || reign.epoch == 0)) {
    return breach("rank ", rank, " announced '", decoded.name, "' to the wrong server");
  }
  if (decoded.payload.size() != payload_bytes(decoded, index)) {
    return breach("rank ", rank, " announced '", decoded.name, "' with ", decoded.payload.size(),
                  " bytes, not ", payload_bytes(decoded, index));
  }
  if (group->is_gone(index)) return {};  // nobody waits for its announcements
  if (const auto* forms = std::get_if<wire::FormGroup>(&decoded.what);
      forms != nullptr && forms->number != 0) {
    return note_number(name_of({Group::kForming, reign.home}, decoded), forms->number, rank, index,
                       out);
  }
  Announcement call(index, std::move(text), std::move(decoded));
  if (members.id() != Group::kForming) {
    HERRING_ASSIGN_OR_RETURN(auto& handover, handover_of(group, reign));
    if (handover != nullptr) return hold(*handover, rank, std::move(call), now);
  }
  take(group, reign, std::move(call), now, out);
  return {};
}

void Coordinator::take(const std::shared_ptr<JobGroup>& group, Reign reign, Announcement call,
                       Nanos now, std::vector<Answer>& out) {
  const control::Group& members = group->members;
  const uint32_t index = call.index, rank = members.ranks()[index];
  if (wire::is_message(call.message.what)) {
    return mailbox_.post(group, stream_of(reign, servers_), std::move(call), now, out);
  }
  const Home home{members.id(), reign.home};
  const auto name = names_.try_emplace(name_of(home, call.message)).first;
  const auto place = next_call(name->second, group, reign, call.message, index, now);
  Pending& pending = *place;
  pending.count(index);
  if (members.id() == Group::kForming) numbers_.count(name->first, pending);

  const bool refused = !call.message.refusal.empty();
  const uint64_t id = call.message.id;
  if (!pending.failure) {
    Status objection = objection_to(pending, call);
    if (!refused) {
      pending.timeout_ms = std::min(pending.timeout_ms, call.message.timeout_ms);
      loads_.add(*group, call);
      pending.calls.push_back(std::move(call));
    }
    const bool fails = !objection.ok();
    fails ? fail(pending, std::move(objection), out) : compare(pending, rank, now);
    if (fails && refused && id != 0) tell_failure(pending, rank, id, out);
  } else if (!refused || id != 0) {
    tell_failure(pending, rank, id, out);
  }
  if (joining(home) == &pending) join(home, index, out);
  advance(name->second, place, out);
  if (name->second.empty()) names_.erase(name);
}

void Coordinator::tell_failure(Pending& pending, uint32_t rank, uint64_t id,
                               std::vector<Answer>& out) const {
  out.push_back(error_answer(rank, id, *pending.failure));
  sign(pending, out, out.size() - 1);
}

// Counts who came last, as far as others have waited for it. A rank joins when it has nothing more
// to do, so nobody's program is late there.
void Coordinator::compare(Pending& pending, uint32_t rank, Nanos now) {
  const Nanos before = std::exchange(pending.newest, now);
  if (pending.here.size() < 2 || wire::is<wire::Join>(pending.calls.back().message.what)) return;
  observe::Lateness& lateness = lateness_[rank];
  ++lateness.calls;
  if (pending.calls.size() < 2 || pending.arrived < pending.here.size()) return;
  ++lateness.last_calls;
  lateness.calls_waited += now - before;
}

// Ends a call that every rank has made. Returns the next call; `pending` stays if ranks are
// missing.
Coordinator::Calls::iterator Coordinator::advance(Calls& calls, Calls::iterator pending,
                                                  std::vector<Answer>& out) {
  if (pending->arrived < pending->here.size()) return std::next(pending);
  pending->failure ? static_cast<void>(--failed_) : resolve(*pending, out);
  return calls.erase(pending);
}

// Returns the join call of the group in which ranks still wait; null if no rank has joined.
const Pending* Coordinator::joining(const Home& home) const {
  const auto found = names_.find({home, wire::kJoinName});
  if (found == names_.end()) return nullptr;
  for (const Pending& pending : found->second) {
    const bool waits = !pending.calls.empty();
    if (waits && wire::is<wire::Join>(pending.calls.front().message.what)) return &pending;
  }
  return nullptr;
}

// Calls that this rank has not made go on without it.
void Coordinator::join(const Home& home, uint32_t index, std::vector<Answer>& out) {
  for (auto name = names_.lower_bound({home, ""});
       name != names_.end() && name->first.first == home;) {
    const std::string& text = name->first.second;
    Calls& calls = name->second;
    if (!wire::is_reserved(text)) {
      for (auto pending = calls.begin(); pending != calls.end();) {
        pending->go_without(index);
        if (!pending->failure) {
          Status objection = objection_to_joined(*pending, pending->calls.front().message);
          if (!objection.ok()) fail(*pending, std::move(objection), out);
        }
        pending = advance(calls, pending, out);
      }
    }
    name = calls.empty() ? names_.erase(name) : std::next(name);
  }
}

Status Coordinator::gone(const JobGroup& group, const std::string& name) const {
  const JobGroup::Gone& first = group.gone.front();
  const std::string who = cluster_.describe_rank(group.members.ranks()[first.index]);
  const std::string call = concat("'", name, "'", group.members.suffix());
  if (first.how == kLeftJob) {
    return {Code::kPeerLost,
            concat(who, " left the job before calling ", call, "; ", control::kAdviceOnLeaving)};
  }
  return {Code::kPeerLost, concat(call, " cannot complete: ", who, " ", first.how)};
}

// Returns why a call cannot complete, whatever the other ranks do.
Status Coordinator::objection_to(const Pending& pending, const Announcement& call) const {
  const JobGroup& group = *pending.group;
  const Announce& message = call.message;
  const uint32_t rank = group.members.ranks()[call.index];
  if (!message.refusal.empty()) {
    return {Code::kInvalidArgument,
            concat(wire::name_of(message.what), " '", message.name, "'", group.members.suffix(),
                   " was refused by ", cluster_.describe_rank(rank), ": ", message.refusal)};
  }
  if (!group.gone.empty()) return gone(group, message.name);
  HERRING_RETURN_IF_ERROR(objection_to_joined(pending, message));
  if (const Load& load = loads_.of(rank); !load.admits(call.text.size())) {
    return {Code::kInvalidArgument,
            concat("'", message.name, "' exceeds the limit: ", counted(load.calls, "call"), " of ",
                   cluster_.describe_rank(rank), " with ", load.bytes,
                   " bytes already wait for other ranks; wait for some of these calls first")};
  }
  return {};
}

// Keeps a call until the hand-over is complete.
Status Coordinator::hold(Handover& handover, uint32_t rank, Announcement call, Nanos now) {
  if (const Load& load = loads_.of(rank); !load.admits(call.text.size())) {
    return breach("rank ", rank, " announces ", counted(load.calls, "call"), " with ", load.bytes,
                  " bytes while a server is replaced");
  }
  loads_.add(*handover.group, call);
  call.since = now;
  handover.held.push_back(std::move(call));
  return {};
}

// Returns why a call cannot go on without the ranks that have joined.
Status Coordinator::objection_to_joined(const Pending& pending, const Announce& message) const {
  if (pending.joined.empty() || wire::goes_without_joined(message.what)) return {};
  const control::Group& members = pending.group->members;
  std::vector<uint32_t> ranks;
  for (const uint32_t index : pending.joined) ranks.push_back(members.ranks()[index]);
  std::sort(ranks.begin(), ranks.end());
  return {Code::kMismatch,
          concat(wire::name_of(message.what), " '", message.name, "'", members.suffix(),
                 " cannot complete: ", list_ranks(ranks),
                 " called join(), and only all-reduces by servers go on without them")};
}

// Fails a call. Ranks that have made it are answered now, the others when they make it.
void Coordinator::fail(Pending& pending, Status why, std::vector<Answer>& out) {
  const std::vector<uint32_t>& ranks = pending.group->members.ranks();
  const size_t first = out.size();
  for (const Announcement& call : pending.calls) {
    out.push_back(error_answer(ranks[call.index], call.message.id, why));
  }
  sign(pending, out, first);
  for (const Announcement& call : pending.calls) loads_.remove(*pending.group, call);
  pending.calls.clear();
  pending.failure = std::move(why);
  if (++failed_ != kMostFailed) return;
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
    out.push_back(error_answer(
        rank, 0,
        {Code::kMismatch,
         concat("ranks make different calls: ", kMostFailed,
                " calls have failed that some rank has not made; "
                "every rank must make the same calls. The last one: ",
                pending.failure->message())}));
  }
}

void Coordinator::resolve(Pending& pending, std::vector<Answer>& out) {
  JobGroup& group = *pending.group;
  Announces calls(group.members.size());
  bool small = true;
  for (const Announcement& call : pending.calls) {
    calls[call.index] = &call.message;
    small &= call.message.inline_payload;
  }
  for (const Announcement& call : pending.calls) loads_.remove(*pending.group, call);
  const wire::Collective& what = first_of(calls).what;
  const size_t first = out.size();
  if (Status wrong = check(group.members, calls); !wrong.ok()) {
    for (const Announcement& call : pending.calls) {
      out.push_back(error_answer(group.members.ranks()[call.index], call.message.id, wrong));
    }
  } else if (wire::is<wire::FormGroup>(what)) {
    form(pending, calls, out);
  } else if (wire::is<wire::Join>(what)) {
    answer_joins(pending, out);
  } else if (small && largest_reply(calls) <= kLargestReply) {
    reply(group, calls, out);
  } else {
    launch(group, calls, pending.reign, stream_of(pending.reign, servers_), out);
  }
  sign(pending, out, first);
}

void Coordinator::form(const Pending& pending, const Announces& calls, std::vector<Answer>& out) {
  const auto number = numbers_.take(
      name_of({Group::kForming, pending.reign.home}, first_of(calls)), pending.reign);
  for (uint32_t index = 0; index < calls.size(); ++index) {
    if (calls[index] == nullptr) continue;
    const uint32_t rank = pending.group->members.ranks()[index];
    if (!number) {
      out.push_back(error_answer(rank, calls[index]->id,
                                 {Code::kInvalidArgument, "this job has formed too many groups"}));
      continue;
    }
    out.push_back({rank, {.type = wire::FrameType::kReply},
                   encode(wire::Go{calls[index]->id, {*number}})});
  }
}

void Coordinator::report(Nanos now, ServerView& view) const {
  view.add(lateness_);
  mailbox_.report(now, view);
  view.announced += loads_.calls();
  if (loads_.calls() == 0) return;
  std::vector<std::pair<Nanos, const Pending*>> waiting;
  for (const auto& [name, calls] : names_) {
    for (const Pending& pending : calls) {
      const bool waits = !pending.failure && now - pending.since > ServerView::kLeastWait;
      if (waits) waiting.emplace_back(pending.since, &pending);
    }
  }
  const size_t told = std::min(waiting.size(), ServerView::kMostMissing);
  std::partial_sort(waiting.begin(), waiting.begin() + told, waiting.end());
  for (size_t i = 0; i < told; ++i) {
    const auto& [since, pending] = waiting[i];
    view.missing.push_back({Reminders::name_of(*pending), now - since, pending->missing()});
  }
}

void Coordinator::overdue(Nanos now, std::vector<Answer>& out) {
  mailbox_.overdue(now, out);
  for (auto& [home, handover] : handovers_) overdue(handover, now, out);
  if (loads_.calls() == 0) return;
  for (auto& [name, calls] : names_) {
    for (Pending& pending : calls) {
      if (pending.failure) continue;
      Status late = reminders_.timed_out(pending, now);
      late.ok() ? reminders_.remind(pending, now, out) : fail(pending, std::move(late), out);
    }
  }
}

// Makes calls of the groups for which `concerns` returns true stop waiting for this rank; they
// fail.
template <typename Concerns>
void Coordinator::never_called(const Concerns& concerns, uint32_t rank,
                               std::vector<Answer>& out) {
  for (auto name = names_.begin(); name != names_.end();) {
    Calls& calls = name->second;
    for (auto pending = calls.begin(); pending != calls.end();) {
      const uint32_t index = pending->group->members.index_of(rank);
      if (index != Group::kNobody && concerns(*pending->group)) {
        pending->count(index);
        // This includes calls that the rank itself has made, because the first to hear makes no
        // more calls.
        if (!pending->failure) {
          fail(*pending, gone(*pending->group, pending->calls.front().message.name), out);
        }
      }
      pending = advance(calls, pending, out);
    }
    name = calls.empty() ? names_.erase(name) : std::next(name);
  }
}

void Coordinator::rank_gone(uint32_t rank, const std::string& how, Nanos now,
                            std::vector<Answer>& out) {
  std::vector<std::shared_ptr<JobGroup>> groups = groups_.of_rank(rank);
  // Groups that are being formed count, too.
  for (const auto& [name, calls] : names_) {
    if (name.first.first != Group::kForming) continue;
    for (const Pending& pending : calls) groups.push_back(pending.group);
  }
  for (const auto& group : groups) group->add_gone(rank, how);
  whereabouts_.set(rank, "");
  groups_.rank_gone(rank, how);
  never_called([](const JobGroup&) { return true; }, rank, out);
  mailbox_.fail_gone(out);
  settle(now, out);
}

void Coordinator::rank_gone(JobGroup& group, uint32_t rank, const std::string& how, Nanos now,
                            std::vector<Answer>& out) {
  group.add_gone(rank, how);
  never_called([&group](const JobGroup& one) { return &one == &group; }, rank, out);
  mailbox_.fail_gone(out);
  settle(now, out);
}

}  // namespace herring::server
