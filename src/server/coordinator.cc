#include "server/coordinator.h"

#include <algorithm>
#include <numeric>

#include "plan/split.h"
#include "reduce/reduce.h"

namespace herring::server {
namespace {

using wire::Announce;
using wire::Collective;
using Announces = std::vector<const Announce*>;  // by index in the group

using control::Group;

// What may wait here for one rank: far more than a program needs that waits for its results.
constexpr size_t kMostCalls = 1 << 16, kMostBytes = size_t{1} << 30;
// Calls that failed and that some rank has still not made. With more, ranks make different calls.
constexpr size_t kMostFailed = 1 << 16;
// Larger gathered results go by segments and credit, not as one frame.
constexpr uint64_t kLargestReply = 8 << 20;
constexpr uint64_t kLargestResult = uint64_t{1} << 60;  // bytes, all ranks' together

uint64_t row_elements(const Announce& a) {
  return std::accumulate(a.shape.begin() + (a.shape.empty() ? 0 : 1), a.shape.end(), uint64_t{1},
                         std::multiplies<>());
}

uint64_t rows(const Announce& a) { return a.shape.empty() ? 1 : a.shape[0]; }

// May ranks differ in the first dimension?
bool ragged(Collective kind) {
  return kind == Collective::kAllgather || kind == Collective::kAlltoall;
}

bool agree(const Announce& a, const Announce& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.op != b.op || a.root != b.root ||
      a.algorithm != b.algorithm ||
      a.prescale != b.prescale || a.postscale != b.postscale ||
      a.shape.size() != b.shape.size()) {
    return false;
  }
  if (a.kind == Collective::kReduceScatter && a.splits != b.splits) return false;
  const size_t from = ragged(a.kind) && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + from, a.shape.end(), b.shape.begin() + from);
}

std::string describe(const Announce& a) {
  std::string shape;
  for (uint64_t d : a.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  std::string text = concat(wire::name_of(a.kind), " of ", name_of(a.dtype), " [", shape, "]");
  if (a.kind == Collective::kAllreduce || a.kind == Collective::kReduceScatter) {
    text += concat(", op ", name_of(a.op));
    if (a.algorithm != wire::Algorithm::kHerring) {
      text += concat(", algorithm ", wire::name_of(a.algorithm));
    }
    if (a.prescale != 1.0) text += concat(", prescale ", a.prescale);
    if (a.postscale != 1.0) text += concat(", postscale ", a.postscale);
  }
  if (a.kind == Collective::kBroadcast || a.root != 0) text += concat(", root ", a.root);
  if (a.kind == Collective::kReduceScatter && !a.splits.empty()) {
    constexpr size_t kMostShown = 16;
    std::string splits;
    for (size_t i = 0; i < std::min(a.splits.size(), kMostShown); ++i) {
      splits += concat(i == 0 ? "" : ", ", a.splits[i]);
    }
    text += concat(", splits [", splits, a.splits.size() > kMostShown ? ", ...]" : "]");
  }
  return text;
}

// "" when all calls agree, else who called what.
std::string describe_mismatch(const control::Group& group, const Announces& calls) {
  const bool equal = std::all_of(calls.begin(), calls.end(),
                                 [&](const Announce* call) { return agree(*calls[0], *call); });
  if (equal) return {};
  std::map<std::string, std::vector<uint32_t>> who;
  for (uint32_t index = 0; index < calls.size(); ++index) {
    who[describe(*calls[index])].push_back(group.ranks()[index]);
  }
  std::string text = concat("ranks disagree about '", calls[0]->name, "'", group.suffix(), ":");
  for (const auto& [what, ranks] : who) {
    text += concat(" ", control::list_ranks(ranks), ": ", what, ";");
  }
  text.pop_back();
  return text;
}

uint64_t bytes_of(const Announce& a) { return a.elements() * size_of(a.dtype); }

// The bytes that the rank must send along: of a broadcast only the root has any.
uint64_t payload_bytes(const Announce& a, uint32_t index) {
  const bool sends = a.kind != Collective::kBarrier && a.kind != Collective::kFormGroup &&
                     a.kind != Collective::kReceive &&
                     (a.kind != Collective::kBroadcast || a.root == index);
  return a.inline_payload && a.refusal.empty() && sends ? bytes_of(a) : 0;
}

bool reduces(Collective kind) {
  return kind == Collective::kAllreduce || kind == Collective::kReduceScatter;
}

// Buffers of an all-to-all are numbered by sender and receiver together, in 32 bits.
constexpr uint32_t kMostRanksOfAlltoall = (1 << 16) - 1;

Status check_splits(const Announce& a, uint32_t size) {
  if (a.kind == Collective::kAlltoall && size > kMostRanksOfAlltoall) {
    return {Code::kInvalidArgument, concat("'", a.name, "' is an alltoall of ", size,
                                           " ranks; it takes at most ", kMostRanksOfAlltoall)};
  }
  uint64_t sum = 0;
  bool overflow = false;
  for (const uint64_t split : a.splits) overflow |= __builtin_add_overflow(sum, split, &sum);
  if (!overflow && a.splits.size() == size && sum == rows(a)) return {};
  return {Code::kInvalidArgument,
          concat("splits of '", a.name, "' must be ", size,
                 " counts that sum to the first dimension, ", rows(a))};
}

// What no rank could see alone.
Status check(const control::Group& group, const Announces& calls) {
  if (const std::string text = describe_mismatch(group, calls); !text.empty()) {
    return {Code::kMismatch, text};
  }
  const Announce& first = *calls[0];
  const auto size = static_cast<uint32_t>(calls.size());
  if (first.kind == Collective::kBroadcast && first.root >= size) {
    return {Code::kInvalidArgument, concat("root ", first.root, " of '", first.name, "'",
                                           group.suffix(), " is no rank; there are ", size)};
  }
  if (reduces(first.kind)) {
    HERRING_RETURN_IF_ERROR(
        check_reducible(first.dtype, first.op, first.prescale, first.postscale));
  }
  uint64_t all = 0;
  for (const Announce* call : calls) {
    const bool given = call->kind == Collective::kReduceScatter && !call->splits.empty();
    if (given || call->kind == Collective::kAlltoall) {
      HERRING_RETURN_IF_ERROR(check_splits(*call, size));
    }
    if (__builtin_add_overflow(all, bytes_of(*call), &all) || all > kLargestResult) {
      return {Code::kInvalidArgument, concat("the arrays of '", call->name, "' are too large: ",
                                             describe(*call))};
    }
  }
  return {};
}

// Of the rank that gets most.
uint64_t largest_reply(const Announces& calls) {
  const Collective kind = calls[0]->kind;
  uint64_t largest = 0;
  if (kind == Collective::kAllgather) {
    for (const Announce* call : calls) largest += bytes_of(*call);
  } else if (kind == Collective::kAlltoall) {
    for (size_t to = 0; to < calls.size(); ++to) {
      uint64_t bytes = 0;
      for (const Announce* call : calls) {
        bytes += call->splits[to] * row_elements(*call) * size_of(call->dtype);
      }
      largest = std::max(largest, bytes);
    }
  }
  return largest;
}

// What of a Go or a Reply is the same for all ranks.
wire::Go common_head(const Announces& calls) {
  wire::Go go;
  if (calls[0]->kind != Collective::kAllgather) return go;
  for (const Announce* call : calls) go.counts.push_back(rows(*call));
  return go;
}

void complete_head(wire::Go& go, const Announces& calls, uint32_t index) {
  go.id = calls[index]->id;
  if (calls[index]->kind != Collective::kAlltoall) return;
  go.counts.clear();
  for (const Announce* call : calls) go.counts.push_back(call->splits[index] * row_elements(*call));
}

wire::FrameHeader header_of(wire::FrameType type, const JobGroup& group) {
  wire::FrameHeader header;
  header.type = type;
  header.group = group.members.id();
  return header;
}

}  // namespace

Coordinator::Coordinator(const control::Cluster& cluster, GroupTable& groups, uint32_t stream)
    : cluster_(cluster),
      groups_(groups),
      stream_(stream),
      mailbox_(cluster, stream),
      loads_(cluster.size) {}

// The group that the call is for; of a call that forms one, what it is going to be.
Result<std::shared_ptr<JobGroup>> Coordinator::group_of(uint32_t group, const Announce& message,
                                                        uint32_t rank) const {
  const auto wrong = [&](const std::string& what) {
    return Status(Code::kInternal,
                  concat("rank ", rank, " announced '", message.name, "' ", what));
  };
  if (message.kind != Collective::kFormGroup) {
    auto found = groups_.find(group);
    if (!found) return wrong(concat("in group ", group, ", which it did not define"));
    if (!found->members.has(rank)) return wrong(concat("in group ", group, ", not as a member"));
    return found;
  }
  std::vector<uint32_t> ranks;
  for (const uint64_t one : message.splits) {
    ranks.push_back(static_cast<uint32_t>(std::min<uint64_t>(one, cluster_.size)));
  }
  if (Status fits = control::Group::check(cluster_, ranks); !fits.ok()) {
    return wrong(concat("with an impossible group: ", fits.message()));
  }
  auto formed = std::make_shared<JobGroup>(
      control::Group(Group::kForming, cluster_, std::move(ranks), message.name), 1);
  if (!formed->members.has(rank)) return wrong("without being a member");
  groups_.note_gone(*formed);
  return formed;
}

// The call that a rank makes with its next announcement of a name: the first it has not made.
Coordinator::Calls::iterator Coordinator::next_call(Calls& calls,
                                                    const std::shared_ptr<JobGroup>& group,
                                                    uint32_t index, Nanos now) {
  const auto found = std::find_if(calls.begin(), calls.end(), [index](const Pending& pending) {
    return !pending.here[index];
  });
  if (found != calls.end()) return found;
  Pending& pending = calls.emplace_back();
  pending.group = group;
  pending.since = now;
  pending.here.assign(group->members.size(), false);
  for (const JobGroup::Gone& one : group->gone) pending.here[one.index] = true;
  pending.arrived = static_cast<uint32_t>(group->gone.size());
  return calls.end() - 1;
}

Status Coordinator::announce(uint32_t rank, uint32_t group_id, std::string text, Nanos now,
                             std::vector<Answer>& out) {
  auto decoded = wire::decode_announce(text);
  if (!decoded.ok()) return decoded.status();
  auto group = group_of(group_id, *decoded, rank);
  if (!group.ok()) return group.status();
  const control::Group& members = (*group)->members;
  const uint32_t index = members.index_of(rank);
  if (decoded->payload.size() != payload_bytes(*decoded, index)) {
    return {Code::kInternal,
            concat("rank ", rank, " announced '", decoded->name, "' with ",
                   decoded->payload.size(), " bytes, not ", payload_bytes(*decoded, index))};
  }
  if ((*group)->is_gone(index)) return {};  // nobody waits for what it says
  if (decoded->kind == Collective::kSend || decoded->kind == Collective::kReceive) {
    mailbox_.post(*group, rank, std::move(text), std::move(*decoded), now, out);
    return {};
  }
  Name key{members.id(), decoded->name};
  if (members.id() == Group::kForming) key.second += '\n' + control::list_ranks(members.ranks());
  const auto name = names_.try_emplace(std::move(key)).first;
  const auto place = next_call(name->second, *group, index, now);
  Pending& pending = *place;
  pending.here[index] = true;
  ++pending.arrived;

  Call call{index, std::move(text), std::move(*decoded)};
  if (pending.failure) {
    if (call.message.refusal.empty()) {
      out.push_back(error_answer(rank, call.message.id, *pending.failure));
    }
  } else {
    Status objection = objection_to(*pending.group, call);
    if (call.message.refusal.empty()) {
      pending.timeout_ms = std::min(pending.timeout_ms, call.message.timeout_ms);
      ++waiting_;
      ++loads_[rank].calls;
      loads_[rank].bytes += call.text.size();
      // Moving the text may have moved its bytes; the payload is its tail.
      const size_t payload = call.message.payload.size();
      Call& kept = pending.calls.emplace_back(std::move(call));
      kept.message.payload = std::string_view(kept.text).substr(kept.text.size() - payload);
    }
    if (!objection.ok()) fail(pending, std::move(objection), out);
  }
  if (pending.arrived == members.size()) {
    if (pending.failure) {
      --failed_;
    } else {
      resolve(pending, out);
    }
    name->second.erase(place);
    if (name->second.empty()) names_.erase(name);
  }
  return {};
}

Status Coordinator::gone(const JobGroup& group, const std::string& name) const {
  const JobGroup::Gone& first = group.gone.front();
  return {Code::kPeerLost,
          concat("'", name, "'", group.members.suffix(), " cannot complete: ",
                 cluster_.describe_rank(group.members.ranks()[first.index]), " ", first.how)};
}

// Why a call cannot complete, whatever the other ranks do.
Status Coordinator::objection_to(const JobGroup& group, const Call& call) const {
  const Announce& message = call.message;
  const uint32_t rank = group.members.ranks()[call.index];
  if (!message.refusal.empty()) {
    return {Code::kInvalidArgument,
            concat(wire::name_of(message.kind), " '", message.name, "'", group.members.suffix(),
                   " was refused by ", cluster_.describe_rank(rank), ": ", message.refusal)};
  }
  if (!group.gone.empty()) return gone(group, message.name);
  const Load& load = loads_[rank];
  if (load.calls >= kMostCalls || load.bytes + call.text.size() > kMostBytes) {
    return {Code::kInvalidArgument,
            concat("'", message.name, "' is one too many: ", load.calls, " calls of ",
                   cluster_.describe_rank(rank), " with ", load.bytes,
                   " bytes wait for others; wait for some before more are made")};
  }
  return {};
}

// Answers those who have made the call; the others are answered when they make it.
void Coordinator::fail(Pending& pending, Status why, std::vector<Answer>& out) {
  const std::vector<uint32_t>& ranks = pending.group->members.ranks();
  for (const Call& call : pending.calls) {
    out.push_back(error_answer(ranks[call.index], call.message.id, why));
  }
  answered(pending);
  pending.calls.clear();
  pending.failure = std::move(why);
  if (++failed_ != kMostFailed) return;
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
    out.push_back(error_answer(
        rank, 0,
        {Code::kMismatch,
         concat("ranks make different calls: ", kMostFailed,
                " have failed that some rank has not made; the last: ",
                pending.failure->message())}));
  }
}

void Coordinator::answered(const Pending& pending) {
  waiting_ -= pending.calls.size();
  for (const Call& call : pending.calls) {
    Load& load = loads_[pending.group->members.ranks()[call.index]];
    --load.calls;
    load.bytes -= call.text.size();
  }
}

void Coordinator::resolve(Pending& pending, std::vector<Answer>& out) {
  JobGroup& group = *pending.group;
  Announces calls(group.members.size());
  bool small = true;
  for (const Call& call : pending.calls) {
    calls[call.index] = &call.message;
    small &= call.message.inline_payload;
  }
  answered(pending);
  if (Status wrong = check(group.members, calls); !wrong.ok()) {
    for (const Call& call : pending.calls) {
      out.push_back(error_answer(group.members.ranks()[call.index], call.message.id, wrong));
    }
  } else if (calls[0]->kind == Collective::kFormGroup) {
    form(group, calls, out);
  } else if (small && largest_reply(calls) <= kLargestReply) {
    compute(group, calls, out);
  } else {
    launch(group, calls, out);
  }
}

// Every server forms groups, so each has numbers of its own.
void Coordinator::form(const JobGroup& group, const Announces& calls, std::vector<Answer>& out) {
  const auto servers = static_cast<uint32_t>(cluster_.servers.size());
  const uint64_t number = 1 + uint64_t{formed_++} * servers + stream_;
  for (uint32_t index = 0; index < calls.size(); ++index) {
    const uint32_t rank = group.members.ranks()[index];
    if (number >= Group::kForming) {
      out.push_back(error_answer(rank, calls[index]->id,
                                 {Code::kInvalidArgument, "this job has formed too many groups"}));
      continue;
    }
    wire::FrameHeader header;
    header.type = wire::FrameType::kReply;
    out.push_back({rank, header, encode(wire::Go{calls[index]->id, {number}})});
  }
}

void Coordinator::launch(JobGroup& group, const Announces& calls, std::vector<Answer>& out) {
  wire::Go go = common_head(calls);
  wire::FrameHeader header = header_of(wire::FrameType::kGo, group);
  header.stream = stream_;
  header.round = group.next_ticket++;
  for (uint32_t index = 0; index < calls.size(); ++index) {
    complete_head(go, calls, index);
    out.push_back({group.members.ranks()[index], header, encode(go)});
  }
}

void Coordinator::compute(const JobGroup& group, const Announces& calls,
                          std::vector<Answer>& out) const {
  const Announce& first = *calls[0];
  const size_t item = size_of(first.dtype);
  const auto size = static_cast<uint32_t>(calls.size());
  std::string common;                         // result that all ranks share
  std::vector<std::string> own(size);         // or one for each
  switch (first.kind) {
    case Collective::kBarrier:
    case Collective::kFormGroup:
    case Collective::kSend:
    case Collective::kReceive: break;
    case Collective::kBroadcast: common = calls[first.root]->payload; break;
    case Collective::kAllreduce:
    case Collective::kReduceScatter: {
      std::vector<const void*> sources;
      for (const Announce* call : calls) sources.push_back(call->payload.data());
      std::string result(first.payload.size(), '\0');
      const reduce::Stage stage{first.dtype, first.dtype, first.op, first.prescale,
                                first.op == ReduceOp::kAverage ? double(size) : 1.0,
                                first.postscale};
      reduce::combine(sources.data(), size, result.data(), result.size() / item, stage);
      if (first.kind == Collective::kAllreduce) {
        common = std::move(result);
        break;
      }
      const size_t row = row_elements(first) * item;
      const std::vector<plan::Part> parts = plan::split(rows(first), size, first.splits);
      for (uint32_t to = 0; to < size; ++to) {
        own[to] = result.substr(parts[to].first * row, parts[to].count * row);
      }
      break;
    }
    case Collective::kAllgather:
      for (const Announce* call : calls) common += call->payload;
      break;
    case Collective::kAlltoall:
      for (const Announce* call : calls) {
        const size_t row = row_elements(*call) * item;
        size_t at = 0;
        for (uint32_t to = 0; to < size; ++to) {
          own[to] += call->payload.substr(at, call->splits[to] * row);
          at += call->splits[to] * row;
        }
      }
      break;
  }
  wire::Go head = common_head(calls);
  const wire::FrameHeader header = header_of(wire::FrameType::kReply, group);
  for (uint32_t index = 0; index < size; ++index) {
    complete_head(head, calls, index);
    out.push_back({group.members.ranks()[index], header,
                   encode(head) + (own[index].empty() ? common : own[index])});
  }
}

std::string Coordinator::missing(const Pending& pending) const {
  std::string text;
  for (uint32_t index = 0; index < pending.here.size(); ++index) {
    if (pending.here[index]) continue;
    text += (text.empty() ? "" : ", ") +
            cluster_.describe_rank(pending.group->members.ranks()[index]);
  }
  return text;
}

void Coordinator::overdue(Nanos now, std::vector<Answer>& out) {
  mailbox_.overdue(now, out);
  if (waiting_ == 0) return;
  for (auto& [name, calls] : names_) {
    for (Pending& pending : calls) {
      if (pending.failure) continue;
      const Announce& first = pending.calls.front().message;
      const control::Group& members = pending.group->members;
      const Nanos age = now - pending.since;
      const auto what = [&] {
        return concat(wire::name_of(first.kind), " '", first.name, "'", members.suffix());
      };
      if (age > pending.timeout_ms * kMillisecond) {
        fail(pending,
             {Code::kTimeout,
              concat(what(), " waited ", to_seconds(age), " s for ", missing(pending),
                     ", which did not call it; check that every rank makes the same calls, or "
                     "raise HERRING_TIMEOUT")},
             out);
      } else if (!pending.warned && age > first.warn_ms * kMillisecond) {
        pending.warned = true;
        const uint32_t rank = members.ranks()[pending.calls.front().index];
        out.push_back(warning_answer(rank, concat(what(), " has waited ", age / kSecond, " s for ",
                                                  missing(pending))));
      }
    }
  }
}

// Of the calls of the groups that are concerned, none waits for this rank any more.
template <typename Concerns>
void Coordinator::never_called(const Concerns& concerns, uint32_t rank,
                               std::vector<Answer>& out) {
  for (auto name = names_.begin(); name != names_.end();) {
    Calls& calls = name->second;
    for (auto pending = calls.begin(); pending != calls.end();) {
      const uint32_t index = pending->group->members.index_of(rank);
      if (index != Group::kNobody && concerns(*pending->group)) {
        if (!pending->here[index]) {
          pending->here[index] = true;
          ++pending->arrived;
        }
        // Also what it has called itself: who hears of it first calls nothing any more.
        if (!pending->failure) {
          fail(*pending, gone(*pending->group, pending->calls.front().message.name), out);
        }
      }
      if (pending->arrived == pending->here.size()) {
        --failed_;
        pending = calls.erase(pending);
      } else {
        ++pending;
      }
    }
    name = calls.empty() ? names_.erase(name) : std::next(name);
  }
}

void Coordinator::rank_gone(uint32_t rank, const std::string& how, std::vector<Answer>& out) {
  std::vector<std::shared_ptr<JobGroup>> groups = groups_.of_rank(rank);
  // Those that are being formed, too.
  for (const auto& [name, calls] : names_) {
    if (name.first != Group::kForming) continue;
    for (const Pending& pending : calls) groups.push_back(pending.group);
  }
  for (const auto& group : groups) group->add_gone(rank, how);
  groups_.rank_gone(rank, how);
  never_called([](const JobGroup&) { return true; }, rank, out);
  mailbox_.fail_gone(out);
}

void Coordinator::rank_gone(JobGroup& group, uint32_t rank, const std::string& how,
                            std::vector<Answer>& out) {
  group.add_gone(rank, how);
  never_called([&group](const JobGroup& one) { return &one == &group; }, rank, out);
  mailbox_.fail_gone(out);
}

}  // namespace herring::server
