#include "server/peer.h"

#include <algorithm>

#include "server/server.h"
#include "wire/credit.h"

namespace herring::server {
namespace {

constexpr uint32_t kMaxOpenPayload = 4096;

// Homes have streams of their own.
Key stream_of(const Key& key) {
  return {key.stream, 0, 0, key.group, key.home, key.epoch};
}

}  // namespace

Peer::Peer(Server& server, Proxy& proxy, uint32_t rank, uint32_t number)
    : server_(server), proxy_(proxy), rank_(rank), number_(number) {
  flush_task_ = [this] {
    flush_scheduled_ = false;
    flush_results();
  };
}

transport::EventLoop& Peer::loop() { return proxy_.loop(); }

Peer::~Peer() { proxy_.loop().forget(&flush_task_); }

Status Peer::on_header(transport::Flow&, const wire::FrameHeader& header,
                       transport::Destinations& out) {
  if (!expelled_) {
    Status status = begin_frame(header, out);
    if (status.ok()) return {};
    expel(status);
  }
  out.count = 0;
  return take_payload(header, out);
}

Status Peer::take_payload(const wire::FrameHeader& header, transport::Destinations& out) {
  control_.resize(header.payload);
  out.add(control_.data(), control_.size());
  return {};
}

Status Peer::begin_frame(const wire::FrameHeader& header, transport::Destinations& out) {
  switch (header.type) {
    case wire::FrameType::kData: return begin_data(header, out);
    case wire::FrameType::kOpen:
      if (header.payload > kMaxOpenPayload || opened_) break;
      return take_payload(header, out);
    case wire::FrameType::kAnnounce:
    case wire::FrameType::kEnlist:
    case wire::FrameType::kJoin:
    case wire::FrameType::kReceived:
    case wire::FrameType::kSeries:
    case wire::FrameType::kRound:
    case wire::FrameType::kGroup:
    case wire::FrameType::kLeaveGroup:
    case wire::FrameType::kSettled:
      if (header.payload > server_.max_announce_payload()) break;
      return take_payload(header, out);
    case wire::FrameType::kHandOver: return take_payload(header, out);
    case wire::FrameType::kWhereabouts:
      if (header.payload > wire::kMaxWhereabouts) break;
      return take_payload(header, out);
    case wire::FrameType::kTaken:
      if (header.payload > 0) break;
      if (const auto group = server_.group(header.group)) steer(*group, header);
      return taken(header.taken);
    case wire::FrameType::kReleased:
      if (header.payload > 0) break;
      return {};
    default: break;
  }
  return breach("unexpected ", wire::name_of(header.type), " frame of ", header.payload,
                " bytes from rank ", rank_);
}

Status Peer::begin_data(const wire::FrameHeader& header, transport::Destinations& out) {
  HERRING_RETURN_IF_ERROR(taken(header.taken));
  const Key key{header.stream, header.round,  header.buffer,
                header.group,  header.home, header.epoch};
  if (opened_ && *opened_ != key) {
    return breach("rank ", rank_, " opened an operation but sent no data for it");
  }
  if (outstanding_of_.size() >= streams_kept_) forget_idle_streams();
  const auto stream = outstanding_of_.try_emplace(stream_of(key)).first;
  if (!within_credit(key, stream->second, header.segments) ||
      outstanding_of_.size() > kMostStreams) {
    return breach("rank ", rank_, " exceeds its credit of ", server_.credit_max(), " segments: ",
                  header.segments, " new, ", outstanding_, " outstanding, ", stream->second,
                  " of these in one of ", outstanding_of_.size(), " streams");
  }
  auto begun = server_.aggregator().begin(header, rank_, this, out, slots_);
  if (!begun.ok()) return begun.status();
  opened_.reset();
  begun_ = *begun;
  if (begun_ != Aggregator::Begun::kTaken) return take_payload(header, out);
  segments_complete_ = 0;
  segments_total_ = header.segments;
  piece_bytes_ = header.flags & wire::kFlagGives ? slots_[0]->result_bytes : slots_[0]->bytes;
  outstanding_ += header.segments;
  stream->second += header.segments;
  steer(*slots_[0]->op->group, header);
  if (header.signals != last_signals_) {
    server_.add_signals(header.signals - last_signals_);
    last_signals_ = header.signals;
  }
  return {};
}

// Takes the credit of a group from its first rank.
void Peer::steer(JobGroup& group, const wire::FrameHeader& header) {
  if ((header.flags & wire::kFlagSteers) && rank_ == group.members.ranks().front()) {
    server_.set_credit(group, header.credit);
  }
}

// Workers open a new stream for a home with each version of the set of servers, so that streams
// which this server counts as one may each have one segment beyond the window.
bool Peer::within_credit(const Key& key, size_t of_stream, size_t count) const {
  const size_t most = server_.credit_max();
  return wire::within_credit(outstanding_, of_stream, count, most) ||
         (key.home > 0 && outstanding_ + count <= 2 * most);
}

void Peer::on_payload(transport::Flow&, const wire::FrameHeader& header, size_t received) {
  if (header.type == wire::FrameType::kData && !expelled_ &&
      begun_ == Aggregator::Begun::kTaken) {
    complete_segments(received == header.payload ? segments_total_ : received / piece_bytes_);
  }
}

void Peer::complete_segments(size_t up_to) {
  if (segments_complete_ >= up_to) return;
  const Nanos now = proxy_.loop().now();  // these segments came together
  while (segments_complete_ < up_to) {
    server_.aggregator().arrived(*slots_[segments_complete_++], rank_, now);
  }
}

Status Peer::on_frame(transport::Flow&, const wire::FrameHeader& header) {
  if (expelled_) return {};
  Status status;
  switch (header.type) {
    case wire::FrameType::kData:
      begun_ == Aggregator::Begun::kTaken ? complete_segments(segments_total_)
                                          : answer_without_result(header);
      break;
    case wire::FrameType::kTaken: break;
    case wire::FrameType::kOpen: {
      auto open = wire::decode_open(control_);
      opened_ = {header.stream, header.round, header.buffer,
                 header.group,  header.home,  header.epoch};
      status = open.ok() ? server_.open(*opened_, std::move(*open), rank_) : open.status();
      break;
    }
    default: status = server_.changes().control(header, rank_, std::move(control_));
  }
  if (!status.ok()) expel(status);
  return {};
}

// Answers a segment of a group that is called off, or whose home serves again. Every segment is
// answered once, so that its credit comes back.
void Peer::answer_without_result(const wire::FrameHeader& data) {
  wire::FrameHeader header = data;
  header.type = wire::FrameType::kResult;
  header.flags = wire::kFlagEmpty | (begun_ == Aggregator::Begun::kMoved ? wire::kFlagMoved
                                                                         : wire::kFlagCalledOff);
  header.payload = 0;
  header.signals = server_.signals();
  header.workers = 0;
  flow_->send(header, nullptr, 0, 0);
}

// Handles a member that breaks the protocol: its job ends, and all members, including this one, are
// told why. A rank that is gone does not end the job. It may have sent data for a group that the
// others have forgotten.
void Peer::expel(const Status& why) {
  expelled_ = true;
  const std::string text = concat("server ", server_.index(), " gave up on rank ", rank_, ": ",
                                  why.message());
  // A worker checks its caller's arguments before it sends anything, so nonsense is a fault of the
  // worker.
  server_.changes().end_job(why.is_fault() ? Status(why.code(), text) : breach(text), rank_);
  // Results that were given to the flow stay, because they are still being written.
  release_queued();
  proxy_.loop().post([this] { flow_->finish(); });
}

void Peer::queue_result(Slot& slot, bool with_payload) {
  if (flow_->closed() || expelled_) {
    server_.aggregator().result_sent(slot);
    return;
  }
  results_.push({&slot, with_payload});
  if (!std::exchange(flush_scheduled_, true)) proxy_.loop().at_iteration_end(&flush_task_);
}

// Returns the number of workers whose contributions are in a result. If a contributor to a round of
// a partial all-reduce died, only some segments may contain its part. The workers must know whether
// the round is whole.
uint32_t Peer::workers_in(const Slot& slot) {
  if (slot.given) return slot.given_workers;
  const Operation& op = *slot.op;
  return static_cast<uint32_t>(op.key.outlives_members() ? slot.added : op.workers);
}

// Sends adjacent segments of one operation as one frame.
void Peer::flush_results() {
  const Nanos now = proxy_.loop().now();
  while (!results_.empty() && !flow_->closed()) {
    const Result first = results_.front();
    Operation& op = *first.slot->op;
    op.handed.store(now, std::memory_order_relaxed);
    wire::FrameHeader header{.type = wire::FrameType::kResult};
    if (!first.with_payload) header.flags = wire::kFlagEmpty;
    if (first.slot->called_off) {
      header.flags |= op.moved ? wire::kFlagMoved : wire::kFlagCalledOff;
    }
    header.home = static_cast<uint16_t>(op.key.home);
    header.epoch = op.key.epoch;
    header.group = op.key.group;
    header.stream = op.key.stream;
    header.round = op.key.round;
    header.buffer = op.key.buffer;
    header.first_segment = first.slot->segment;
    header.credit = op.group->credit.load(std::memory_order_relaxed);
    header.workers = workers_in(*first.slot);
    header.signals = server_.signals();
    iovec pieces[transport::Destinations::kMaxPieces];
    Slot* frame[transport::Destinations::kMaxPieces];
    int n = 0;
    const size_t most =  // results may be larger than contributions
        size_t{server_.max_frame_segments()} * first.slot->bytes / first.slot->result_bytes;
    while (!results_.empty() && header.segments < std::max<size_t>(most, 1)) {
      const Result& next = results_.front();
      if (next.slot->op != &op || next.with_payload != first.with_payload ||
          next.slot->segment != first.slot->segment + header.segments ||
          next.slot->called_off != first.slot->called_off ||
          workers_in(*next.slot) != header.workers) {
        break;
      }
      ++header.segments;
      if (next.with_payload) {
        pieces[n++] = {next.slot->result, next.slot->result_bytes};
        header.payload += next.slot->result_bytes;
      }
      frame[header.segments - 1] = next.slot;
      results_.pop();
    }
    const bool lend = header.payload >= transport::Flow::kLeastLent;
    if (!lend) answered(op.key, header.segments);
    Ring<Slot*>& kept = lend ? lent_ : in_flight_;
    for (int i = 0; i < header.segments; ++i) kept.push(frame[i]);
    if (lend) {
      header.flags |= wire::kFlagLent;
      flow_->lend(header, pieces, n);
    } else {
      flow_->send(header, pieces, n, header.segments);
    }
  }
}

void Peer::on_sent(transport::Flow&, uint64_t segments) { release(in_flight_, segments); }

void Peer::forget_idle_streams() {
  std::erase_if(outstanding_of_, [](const auto& one) { return one.second == 0; });
  streams_kept_ = std::clamp(2 * outstanding_of_.size(), kStreamsKept, kMostStreams);
}

void Peer::answered(const Key& key, uint32_t segments) {
  outstanding_ -= segments;
  outstanding_of_.find(stream_of(key))->second -= segments;
}

Status Peer::taken(uint32_t taken) {
  const uint32_t count = taken - std::exchange(taken_, taken);
  if (count > lent_.size()) {
    return breach("rank ", rank_, " reported ", count, " lent segments as read, but only ",
                  lent_.size(), " were lent");
  }
  for (uint32_t i = 0; i < count; ++i) answered(lent_[i]->op->key, 1);
  release(lent_, count);
  return {};
}

void Peer::release(Ring<Slot*>& slots, size_t count) {
  for (; count > 0; --count) {
    Slot* slot = slots.front();
    slots.pop();
    server_.aggregator().result_sent(*slot);
  }
}

void Peer::release_queued() {
  for (; !results_.empty(); results_.pop()) {
    server_.aggregator().result_sent(*results_.front().slot);
  }
}

// Releases all results, because the flow has ended. Its worker may be alive and read on: only the
// connection may have failed, or it was dropped because the worker was silent for too long.
void Peer::release_all() {
  release_queued();
  release(in_flight_, in_flight_.size());
  for (; !lent_.empty(); lent_.pop()) server_.aggregator().result_unread(*lent_.front());
}

void Peer::send(const wire::FrameHeader& header, std::string payload) {
  flow_->send_owned(header, std::move(payload));
}

// A flow that is closed here says nothing of its end.
void Peer::drop() {
  const bool open = !flow_->closed();
  flow_->close({});
  release_all();
  if (open) server_.peer_closed(*this, {Code::kPeerLost, "its rank is gone"});
}

void Peer::on_closed(transport::Flow&, const Status& why) {
  release_all();
  server_.peer_closed(*this, why);
}

}  // namespace herring::server
