#include "server/changes.h"

#include <algorithm>

#include "base/log.h"
#include "server/peer.h"

namespace herring::server {
namespace {

constexpr Nanos kMoment = kMillisecond;

}  // namespace

Changes::Changes(const control::Cluster& cluster, GroupTable& groups, Aggregator& aggregator,
                 uint32_t index, const observe::RankStates& states, transport::EventLoop& loop,
                 bool several_loops)
    : groups_(groups),
      aggregator_(aggregator),
      loop_(loop),
      several_loops_(several_loops),
      coordinator_(cluster, groups, index, states),
      series_(cluster, groups, index, coordinator_.whereabouts()),
      settlements_(groups),
      recipients_(cluster.size) {}

void Changes::connected(Peer& peer, bool all) {
  std::lock_guard lock(mutex_);
  Recipient& recipient = recipients_[peer.rank()];
  ++recipient.flows;
  recipient.reached |= all;
  if (peer.number() != 0) return;
  recipient.peer = &peer;
  send_waiting(peer.rank());
}

void Changes::disconnected(const Peer& peer) {
  std::lock_guard lock(mutex_);
  Recipient& recipient = recipients_[peer.rank()];
  --recipient.flows;
  recipient.end = ++flows_ended_;
  if (recipient.peer != &peer) return;
  recipient.peer = nullptr;
  recipient.gone = true;
}

void Changes::end_job(const Status& why, uint32_t rank) {
  const bool gone = groups_.is_gone(rank);
  log(gone ? LogLevel::kDebug : LogLevel::kError, why.message());
  if (gone) return;
  std::lock_guard lock(mutex_);
  if (over_) return;
  std::vector<Answer> answers;
  for (uint32_t rank = 0; rank < recipients_.size(); ++rank) {
    answers.push_back(error_answer(rank, 0, why));
  }
  answer(std::move(answers), kNobody);
}

Status Changes::control(const wire::FrameHeader& header, uint32_t rank, std::string text) {
  return change([&](Nanos now, std::vector<Answer>& out) {
    if (groups_.is_gone(rank)) return Status();  // nobody waits for its announcements
    switch (header.type) {
      case wire::FrameType::kAnnounce:
        return coordinator_.announce(rank, header.group, {header.stream, header.round},
                                     std::move(text), now, out);
      case wire::FrameType::kHandOver:
        return coordinator_.hand_over(rank, header.group, {header.stream, header.round}, text, now,
                                      out);
      case wire::FrameType::kGroup: return define_group(header, rank, text, out);
      case wire::FrameType::kLeaveGroup: return leave_group(header, rank, text, out);
      case wire::FrameType::kEnlist:
        return series_.enlist(rank, header.group, {header.stream, header.round}, text, now, out);
      case wire::FrameType::kSeries:
        return series_.tell(rank, header.group, {header.stream, header.round}, text, now, out);
      case wire::FrameType::kRound: return series_.tell_round(rank, header, std::move(text));
      case wire::FrameType::kJoin: return series_.join(rank, text, now, out);
      case wire::FrameType::kWhereabouts:
        coordinator_.set_whereabouts(rank, std::move(text));
        return Status();
      case wire::FrameType::kReleased:
        recipients_[rank].released = true;
        return Status();
      case wire::FrameType::kSettled: return settlements_.say(rank, header.group, text);
      default: return series_.received(rank, text, now, out);
    }
  }, rank);
}

Status Changes::define_group(const wire::FrameHeader& header, uint32_t rank, std::string_view text,
                             std::vector<Answer>& out) {
  HERRING_ASSIGN_OR_RETURN(auto& message, wire::decode_group(text));
  const bool formed = header.flags & wire::kFlagFormed;
  const Status defined = groups_.define(header.group, std::move(message.name),
                                        std::move(message.ranks), rank, message.id, formed);
  if (defined.code() == Code::kInvalidArgument) {
    out.push_back(error_answer(rank, message.id, defined));
    return {};
  }
  HERRING_RETURN_IF_ERROR(defined);
  answer_defined(out);
  return {};
}

// Members hear at once that a group is formed, or that it cannot be. A member that has heard may
// use the group and leave before the others have heard.
void Changes::answer_defined(std::vector<Answer>& out) {
  for (const GroupTable::Defined& one : groups_.take_defined()) {
    if (!one.status.ok()) {
      out.push_back(error_answer(one.rank, one.call, one.status));
      continue;
    }
    out.push_back({one.rank, {.type = wire::FrameType::kReply, .group = one.group},
                   encode(wire::Go{one.call, {}})});
  }
}

// Ranks that wait for other ranks rather than for a server would not hear of it otherwise.
void Changes::call_off(JobGroup& group, uint32_t author, const std::string& why,
                       std::vector<Answer>& out) {
  if (std::exchange(group.told, true)) return;
  wire::FrameHeader header{.type = wire::FrameType::kLeaveGroup, .flags = wire::kFlagCalledOff,
                           .group = group.members.id()};
  for (const uint32_t rank : group.members.ranks()) {
    if (rank != author) out.push_back({rank, header, why});
  }
  aggregator_.break_group(group);
}

// A member that finds another one gone reports it, so that others do not wait for that one in vain.
Status Changes::leave_group(const wire::FrameHeader& header, uint32_t rank, const std::string& why,
                            std::vector<Answer>& out) {
  const std::shared_ptr<JobGroup> group = groups_.find(header.group);
  const bool called_off = header.flags & wire::kFlagCalledOff;
  if (!group) return {};  // it could not be formed, or its members are gone
  if (!group->members.has(rank) || (group->members.is_world() && !called_off)) {
    return breach("rank ", rank, " left group ", header.group, " without being a member");
  }
  if (called_off) call_off(*group, rank, why.substr(0, wire::kMaxRefusal), out);
  coordinator_.rank_gone(*group, rank,
                          called_off
                              ? concat("has called it off: ", why.substr(0, wire::kMaxRefusal))
                              : std::string(kDestroyedGroup),
                          loop_.now(), out);
  // A rank that calls off a group goes on with partial all-reduces of the group, so it stays a
  // member.
  if (!called_off) groups_.leave(header.group, rank);
  settlements_.some_gone();
  series_.settle(loop_.now(), out);
  answer_defined(out);
  return {};
}

// All answers to workers go through this function, except the end of the job. `from`: the rank that
// asked for the change.
Status Changes::change(const Change& change, uint32_t from) {
  std::lock_guard lock(mutex_);
  if (over_ || half_changed_) return {};
  return or_tell([this](const Status&) { half_changed_ = true; }, [&] {
    std::vector<Answer> answers;
    Status status = change(loop_.now(), answers);
    answer(std::move(answers), from);
    set_timers();
    return status;
  });
}

// If many workers share few cores, computing ranks would wake up between ranks that wait for a
// round. So they are told a moment later, or when they ask for something themselves.
void Changes::answer(std::vector<Answer> answers, uint32_t from) {
  if (from != kNobody) send_waiting(from);
  for (Answer& one : answers) {
    const uint32_t rank = one.rank;
    const bool can_wait = one.can_wait;
    recipients_[rank].waiting.push_back(std::move(one));
    if (!can_wait) {
      send_waiting(rank);
    } else if (!std::exchange(some_wait_, true)) {
      loop_.post([this] {
        loop_.call_after(kMoment, [this] {
          std::lock_guard lock(mutex_);
          some_wait_ = false;
          for (uint32_t r = 0; r < recipients_.size(); ++r) send_waiting(r);
        });
      });
    }
  }
}

// If there are several loops, everything goes through the queue of the peer's loop; otherwise
// answers could overtake each other.
void Changes::send_waiting(uint32_t rank) {
  Recipient& to = recipients_[rank];
  if (to.waiting.empty() || (to.peer == nullptr && !to.gone)) return;
  std::vector<Answer> answers = std::exchange(to.waiting, {});
  if (to.gone) return;
  auto send = [peer = to.peer, answers = std::move(answers)]() mutable {
    for (Answer& one : answers) peer->send(one.header, std::move(one.payload));
  };
  several_loops_ ? static_cast<void>(to.peer->loop().post(std::move(send))) : send();
}

void Changes::set_timers() {
  const Nanos wake = series_.wake_at();
  if (wake == 0 || (series_wake_ != 0 && wake >= series_wake_)) return;
  series_wake_ = wake;
  loop_.post([this, wake] {
    loop_.call_at(wake, [this] {
      static_cast<void>(change([this](Nanos now, std::vector<Answer>& out) {
        series_wake_ = 0;
        series_.tick(now, out);
        return Status();
      }));
    });
  });
}

void Changes::check_overdue(bool by_left) {
  static_cast<void>(change([this, by_left](Nanos now, std::vector<Answer>& out) {
    coordinator_.overdue(now, out);
    series_.overdue(now, out);
    report_overdue(now, out);
    for (const auto& [group, why] : aggregator_.stranded(now, by_left)) {
      call_off(*group, kNobody, why, out);
    }
    settlements_.settle(out);
    return Status();
  }));
}

void Changes::report(Nanos now, ServerView& view) {
  std::lock_guard lock(mutex_);
  coordinator_.report(now, view);
  series_.report(now, view);
}

void Changes::report_overdue(Nanos now, std::vector<Answer>& out) {
  for (const Aggregator::Overdue& item : aggregator_.overdue(now)) {
    const Whereabouts& whereabouts = coordinator_.whereabouts();
    const std::string text = item.text + (item.awaited.missing.empty()
                                              ? whereabouts.describe_behind(item.awaited.behind)
                                              : whereabouts.describe(item.awaited.missing));
    for (const uint32_t rank : item.awaited.present) {
      out.push_back(item.fatal ? error_answer(rank, 0, {Code::kTimeout, text})
                               : warning_answer(rank, text));
      if (!item.fatal) break;  // one rank's log is enough
    }
  }
}

void Changes::rank_gone(uint32_t rank, const std::string& how) {
  static_cast<void>(change([&](Nanos now, std::vector<Answer>& out) {
    coordinator_.rank_gone(rank, how, now, out);
    settlements_.some_gone();
    answer_defined(out);
    series_.settle(now, out);
    return Status();
  }));
}

void Changes::data_missing(uint32_t rank) {
  static_cast<void>(change([this, rank](Nanos now, std::vector<Answer>& out) {
    series_.lost(rank, now, out);
    return Status();
  }));
}

void Changes::server_gone(uint32_t server) {
  static_cast<void>(change([this, server](Nanos, std::vector<Answer>&) {
    series_.server_gone(server);
    return Status();
  }));
}

bool Changes::idle() {
  std::lock_guard lock(mutex_);
  return !some_wait_ && coordinator_.idle();
}

bool Changes::released() {
  std::lock_guard lock(mutex_);
  for (uint32_t rank = 0; rank < recipients_.size(); ++rank) {
    const Recipient& one = recipients_[rank];
    const bool ready = one.reached ? one.flows == 0 || one.released : groups_.is_gone(rank);
    if (!ready) return false;
  }
  return true;
}

std::vector<uint32_t> Changes::disconnected_ranks(bool late) {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < recipients_.size(); ++rank) {
    const Recipient& one = recipients_[rank];
    const bool ended = (one.reached || late) && one.flows == 0;
    if (ended && !groups_.is_gone(rank)) ranks.push_back(rank);
  }
  std::ranges::stable_sort(ranks, {}, [this](uint32_t rank) { return recipients_[rank].end; });
  return ranks;
}

void Changes::end() {
  std::lock_guard lock(mutex_);
  over_ = true;
}

}  // namespace herring::server
