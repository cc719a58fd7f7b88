// How the coordinator takes over names from a server that is gone; see handover.h.
#include <algorithm>
#include <map>
#include <utility>

#include "server/coordinator.h"

namespace herring::server {

using control::Group;

namespace {

// Returns how many elements of an all-to-all each rank has for each rank, by index; nothing for a
// rank of which it is not known. A rank that lacks the answer has made the call again.
std::vector<std::vector<uint64_t>> elements_of(const Handover& handover,
                                               const wire::KeptAnswer& answer) {
  std::vector<std::vector<uint64_t>> elements(handover.said.size());
  for (uint32_t index = 0; index < elements.size(); ++index) {
    if (!handover.said[index]) continue;
    const wire::KeptAnswer* const kept = handover.said[index]->find(answer.number);
    if (kept != nullptr) elements[index] = kept->own;
  }
  for (const Announcement& call : handover.held) {
    const auto* alltoall = std::get_if<wire::AllToAll>(&call.message.what);
    const bool lacks = call.message.name == answer.name && elements[call.index].empty();
    if (alltoall == nullptr || !lacks) continue;
    elements[call.index] = alltoall->rows;
    for (uint64_t& one : elements[call.index]) one *= call.message.arrays.front().row_elements();
  }
  return elements;
}

// Returns what a rank gets that has joined and takes part in an all-reduce.
Result<std::string> as_joined(const wire::KeptAnswer& answer) {
  std::string_view rest;
  const auto go = wire::decode_go(wire::payload_of(answer.text, 0), &rest);
  if (!go.ok()) return go.status();
  HERRING_ASSIGN_OR_RETURN(auto& call, wire::decode_announce(answer.call));
  call.servers = go->servers;
  return encode(wire::Go{}) + encode(call);
}

}  // namespace

// Returns the hand-over that calls of this reign wait for; null if they need not wait. What comes
// first in a reign begins its hand-over.
Result<Handover*> Coordinator::handover_of(const std::shared_ptr<JobGroup>& group,
                                           Reign reign) {
  const Home home{group->members.id(), reign.home};
  const auto found = handovers_.find(home);
  const bool waits = found != handovers_.end();
  const uint32_t epoch =
      waits ? found->second.reign.epoch : group->sequences[reign.home].epoch;
  if (reign.epoch == epoch) return waits ? &found->second : nullptr;
  if (waits || reign.epoch < epoch) {
    return breach("a rank speaks to server ", index_, " as the one that answers for server ",
                  reign.home, " since version ", reign.epoch, "; others say since ", epoch);
  }
  Handover& begun = handovers_[home];
  begun.reign = reign;
  begun.group = group;
  begun.said.resize(group->members.size());
  return &begun;
}

Status Coordinator::hand_over(uint32_t rank, uint32_t group_id, Reign reign, std::string_view text,
                              Nanos now, std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& decoded, wire::decode_handover(text));
  const std::shared_ptr<JobGroup> group = groups_.find(group_id);
  if (!group || !group->members.has(rank) || reign.home >= servers_) {
    return breach("rank ", rank, " hands over names of server ", reign.home, " in group ", group_id,
                  ", which is not possible");
  }
  const uint32_t index = group->members.index_of(rank);
  if (group->is_gone(index)) return {};
  HERRING_ASSIGN_OR_RETURN(auto& handover, handover_of(group, reign));
  if (handover == nullptr || handover->said[index]) {
    return breach("rank ", rank, " hands over the same names twice");
  }
  handover->said[index] = std::move(decoded);
  if (!handover->missing().empty()) return {};
  auto ready = handovers_.extract({group_id, reign.home});
  take_over(ready.mapped(), now, out);
  return {};
}

// Goes on with the hand-overs that no longer wait for anybody, because ranks are gone.
void Coordinator::settle(Nanos now, std::vector<Answer>& out) {
  std::vector<Home> ready;
  for (const auto& [home, handover] : handovers_) {
    if (handover.missing().empty()) ready.push_back(home);
  }
  for (const Home& home : ready) {
    auto handover = handovers_.extract(home);
    take_over(handover.mapped(), now, out);
  }
}

void Coordinator::take_over(Handover& handover, Nanos now, std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup>& group = handover.group;
  JobGroup::Sequence& sequence = group->sequences[handover.reign.home];
  sequence.epoch = handover.reign.epoch;
  auto known = what_is_known(handover);
  Status status = known.ok() ? Status() : known.status();
  if (status.ok()) {
    sequence.answered = known->highest;
    // In this order, so that the tickets of a stream keep their order on all ranks.
    for (const Lacked& lacked : known->lacked) {
      const bool joined = lacked.answer->name == wire::kJoinName &&
                          lacked.answer->type == wire::FrameType::kReply;
      if (joined) status = take_late(handover, lacked, now, out);
      if (!status.ok()) break;
      if (status = give(handover, lacked, now, out); !status.ok()) break;
    }
    introduce(handover, out);
  }
  for (Announcement& call : handover.held) {
    loads_.remove(*group, call);
    if (status.ok()) take(group, handover.reign, std::move(call), now, out);
  }
  if (status.ok()) return;
  for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
    out.push_back(error_answer(rank, 0, status));
  }
}

// All have joined, and some ranks have yet to hear of it. Calls that they have made before went on
// without the others, who do not know them. So their answers get the number of the join.
Status Coordinator::take_late(Handover& handover, const Lacked& join, Nanos now,
                              std::vector<Answer>& out) {
  const auto is_late = [&](const Announcement& call) {
    return std::ranges::count(join.by, call.index) > 0 && !wire::is_reserved(call.message.name) &&
           !wire::is_message(call.message.what);
  };
  const std::shared_ptr<JobGroup>& group = handover.group;
  uint64_t& answered = group->sequences[handover.reign.home].answered;
  const uint64_t before = answered;
  const size_t first = out.size();
  for (Announcement& call : handover.held) {
    if (!is_late(call)) continue;
    loads_.remove(*group, call);
    take(group, handover.reign, std::move(call), now, out);
    call.index = control::Group::kNobody;
  }
  std::erase_if(handover.held, [](const Announcement& call) {
    return call.index == control::Group::kNobody;
  });
  for (uint32_t index = 0; index < group->members.size(); ++index) {
    this->join({group->members.id(), handover.reign.home}, index, out);
  }
  answered = before;
  for (size_t i = first; i < out.size(); ++i) {
    if (out[i].header.type == wire::FrameType::kGo) {
      return {Code::kPeerLost, "a server is lost, and with it the answer to a call before join()"};
    }
    wire::set_answer_number(out[i].header, join.answer->number);
  }
  return {};
}

// Gives an answer of the server that is gone to the ranks that lack it. If the call failed, they
// may not have made it yet.
Status Coordinator::give(Handover& handover, const Lacked& lacked, Nanos now,
                         std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup>& group = handover.group;
  const wire::KeptAnswer& answer = *lacked.answer;
  if (answer.type == wire::FrameType::kOpError) {
    HERRING_ASSIGN_OR_RETURN(auto& error, wire::decode_op_error(wire::payload_of(answer.text, 1)));
    const Home home{group->members.id(), handover.reign.home};
    Calls& calls = names_[{home, answer.name}];
    Pending& pending = calls.emplace_back(group, handover.reign, now);
    pending.number = answer.number;
    pending.failure = Status(error.code, error.text);
    const auto comes = [&](uint32_t index) {
      return std::ranges::count(lacked.by, index) > 0 && !handover.said[index]->joined;
    };
    for (const uint32_t index : lacked.by) {
      const auto call = handover.find(index, answer.name);
      if (comes(index) || call == handover.held.end()) continue;
      tell_failure(pending, group->members.ranks()[index], call->message.id, out);
      loads_.remove(*group, *call);
      handover.held.erase(call);
    }
    for (uint32_t index = 0; index < pending.here.size(); ++index) {
      if (!comes(index)) pending.count(index);
    }
    ++failed_;
    advance(calls, std::prev(calls.end()), out);
    if (calls.empty()) names_.erase({home, answer.name});
    return {};
  }
  const auto elements = answer.own.empty() ? std::vector<std::vector<uint64_t>>()
                                           : elements_of(handover, answer);
  const auto lost = [&](uint32_t rank, const char* why) {
    return Status(Code::kPeerLost,
                  concat("a server is lost, and with it the answer to '", answer.name, "'",
                         group->members.suffix(), " of rank ", rank, ", ", why));
  };
  for (const uint32_t index : lacked.by) {
    if (group->is_gone(index)) continue;
    const uint32_t rank = group->members.ranks()[index];
    const auto call = handover.find(index, answer.name);
    const bool made = call != handover.held.end() && call->message.refusal.empty();
    const bool joined = handover.said[index]->joined;
    if (!made && !joined) return lost(rank, "which did not make the call");
    if (!made && answer.call.empty()) continue;  // it does not take part
    wire::FrameHeader header;
    header.type = answer.type;
    header.group = group->members.id();
    header.stream = answer.type == wire::FrameType::kGo ? answer.stream
                                                        : stream_of(handover.reign, servers_);
    header.round = answer.ticket;
    wire::set_answer_number(header, answer.number);
    if (!made) {
      HERRING_ASSIGN_OR_RETURN(auto& text, as_joined(answer));
      out.push_back({rank, header, std::move(text)});
      continue;
    }
    // What has failed after all had joined waits for its calls again.
    if (answer.name == wire::kJoinName) handover.said[index]->joined = false;
    std::string payload = wire::payload_of(answer.text, call->message.id);
    if (!elements.empty()) {
      std::string_view rest;
      HERRING_ASSIGN_OR_RETURN(auto& go, wire::decode_go(payload, &rest));
      go.counts.clear();
      for (const std::vector<uint64_t>& of_rank : elements) {
        if (of_rank.size() != elements.size()) return lost(rank, "which no other rank knows");
        go.counts.push_back(of_rank[index]);
      }
      payload = encode(go);
    }
    out.push_back({rank, header, std::move(payload)});
    loads_.remove(*group, *call);
    handover.held.erase(call);
  }
  return {};
}

// A send and a receive had met, and one of their ranks has heard. Tells the other the same. No rank
// forgets before the message has arrived, so the other has not forgotten either.
void Coordinator::introduce(Handover& handover, std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup>& group = handover.group;
  using Call = std::pair<uint32_t, uint64_t>;  // index of the rank, and ID
  std::map<Call, std::pair<uint32_t, const wire::Met*>> met;
  for (uint32_t index = 0; index < handover.said.size(); ++index) {
    if (!handover.said[index] || group->is_gone(index)) continue;
    for (const wire::Met& one : handover.said[index]->met) {
      met.emplace(Call(one.other, one.others), std::pair(index, &one));
    }
  }
  std::erase_if(handover.held, [&](const Announcement& call) {
    if (!wire::is_message(call.message.what)) return false;
    const auto found = met.find({call.index, call.message.id});
    if (found == met.end()) return false;
    const auto& [index, one] = found->second;
    wire::FrameHeader header{.type = one->type, .flags = wire::kFlagMet,
                             .group = group->members.id(), .stream = one->stream,
                             .round = one->type == wire::FrameType::kGo ? one->ticket : index};
    wire::set_answer_number(header, one->own);
    out.push_back({group->members.ranks()[call.index], header,
                   wire::payload_of(one->text, call.message.id)});
    loads_.remove(*group, call);
    return true;
  });
}

void Coordinator::overdue(Handover& handover, Nanos now, std::vector<Answer>& out) {
  const auto waits = [&](const Announcement& call) {
    return concat("'", call.message.name, "'", handover.group->members.suffix(), " has waited ",
                  in_seconds(now - call.since), " for ",
                  cluster_.describe_ranks(handover.missing()),
                  " to hear that a server is lost", whereabouts_.describe(handover.missing()));
  };
  for (const Announcement& call : handover.held) {
    const wire::Announce& message = call.message;
    if (!message.refusal.empty()) continue;  // its rank waits for nothing
    const uint32_t rank = handover.group->members.ranks()[call.index];
    const Nanos age = now - call.since;
    if (age > message.timeout_ms * kMillisecond) {
      // The call cannot fail alone: the server that is gone may have answered it.
      out.push_back(error_answer(rank, 0, {Code::kTimeout, waits(call)}));
      return;
    }
    if (age > message.warn_ms * kMillisecond && !std::exchange(handover.warned, true)) {
      out.push_back(warning_answer(rank, waits(call)));
    }
  }
}

}  // namespace herring::server
