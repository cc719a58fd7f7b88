#include "control/teller.h"

#include <utility>

#include "base/process_texts.h"

namespace herring::control {
namespace {

using wire::FrameType;

// Bytes that wait for the rendezvous, beyond which nothing is told.
constexpr size_t kMostBacklog = 1 << 20;
// Entries of a timeline wait for a clock as good as this, or for so long.
constexpr Nanos kGoodClock = 300 * kMicrosecond, kClockPatience = 4 * kSecond;
// Operations may fail by the dozen, for one reason.
constexpr Nanos kFailurePause = 5 * kSecond;

}  // namespace

void Teller::observe(Member::Observer observer) {
  observer_ = std::move(observer);
  if (timeline_wanted_ && observer_.timeline) observer_.timeline(true);
}

void Teller::heartbeat(const Rhythm& rhythm) {
  clock_.exchanged(rhythm.echo, rhythm.received, rhythm.sent, loop_.now());
  send_held();
}

Status Teller::on_message(FrameType type, uint8_t flags, std::string_view payload) {
  switch (type) {
    case FrameType::kRankTexts: {
      HERRING_ASSIGN_OR_RETURN(auto& texts, observe::decode_rank_texts(payload));
      if (observer_.rank_texts) observer_.rank_texts(texts);
      return {};
    }
    case FrameType::kRecord:
      if (flags == kFlagPlace) {
        set_record_place(std::string(payload.substr(0, kMaxTextBytes)));
      } else if (observer_.record && may_tell()) {
        if (auto record = observer_.record()) tell(FrameType::kRecord, std::move(*record), 0);
      }
      return {};
    case FrameType::kTimeline:
      timeline_wanted_ = flags == kFlagWanted;
      if (observer_.timeline) {
        observer_.timeline(timeline_wanted_);
      } else if (!timeline_wanted_) {
        tell(FrameType::kTimeline, std::exchange(held_, {}), kFlagLast);
      }
      return {};
    default: return breach("unexpected ", wire::name_of(type), " message");
  }
}

void Teller::report(observe::Report report) {
  if (!may_tell()) {
    if (observer_.dropped) observer_.dropped();
    return;
  }
  report.sent = loop_.now();
  report.offset = clock_.offset();
  report.offset_error = clock_.error();
  channel_.send(FrameType::kReport, observe::encode(report));
}

void Teller::timeline(observe::ProcessRecord entries, bool last) {
  if (silent_ || channel_.closed()) return;
  if (held_.entries.empty()) held_since_ = loop_.now();
  held_.lost += entries.lost;
  const size_t room = observe::kMostEntries - held_.entries.size();
  if (channel_.backlog() > kMostBacklog || entries.entries.size() > room) {
    held_.lost += entries.entries.size();
    entries.entries.clear();
  }
  held_.entries.insert(held_.entries.end(), entries.entries.begin(), entries.entries.end());
  if (last) {
    tell(FrameType::kTimeline, std::exchange(held_, {}), kFlagLast);
  } else {
    send_held();
  }
}

void Teller::failed(const std::string& why) {
  const Nanos now = loop_.now();
  if (!may_tell() || !observer_.record || now < fails_again_at_) return;
  fails_again_at_ = now + kFailurePause;
  auto record = observer_.record();
  if (!record) return;
  record->failure = why;
  tell(FrameType::kRecord, std::move(*record), kFlagFailed);
}

// A connection that is full carries what matters more.
bool Teller::may_tell() const {
  return !silent_ && !channel_.closed() && channel_.backlog() <= kMostBacklog;
}

void Teller::tell(FrameType type, observe::ProcessRecord record, uint8_t flags) {
  record.offset = clock_.offset();
  record.offset_error = clock_.error();
  channel_.send(type, observe::encode(record), flags);
}

// Sends entries of the timeline once the clock of the rendezvous is known well. On a busy machine
// that may take several exchanges.
void Teller::send_held() {
  if (!clock_.known() || held_.entries.empty() || !may_tell()) return;
  if (clock_.error() > kGoodClock && loop_.now() - held_since_ < kClockPatience &&
      held_.entries.size() < observe::kMostEntries / 2) {
    return;
  }
  tell(FrameType::kTimeline, std::exchange(held_, {}), 0);
}

}  // namespace herring::control
