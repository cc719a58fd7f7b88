#include "server/peer.h"

#include <algorithm>

#include "server/server.h"

namespace herring::server {
namespace {

constexpr uint32_t kMaxOpenPayload = 4096;
// Streams that may each have one frame beyond the credit, and a change of credit on its way.
constexpr size_t kSlackSegments = 64 * 64;

}  // namespace

Peer::Peer(Server& server, Proxy& proxy, uint32_t rank)
    : server_(server), proxy_(proxy), rank_(rank) {
  flush_task_ = [this] {
    flush_scheduled_ = false;
    flush_results();
  };
}

Peer::~Peer() { proxy_.loop().forget(&flush_task_); }

Status Peer::on_header(transport::Flow&, const wire::FrameHeader& header,
                       transport::Destinations& out) {
  switch (header.type) {
    case wire::FrameType::kData:
      if (outstanding_ + header.segments > server_.max_outstanding_segments() + kSlackSegments) {
        return {Code::kInternal, concat("rank ", rank_, " exceeds its credit")};
      }
      HERRING_RETURN_IF_ERROR(taken(header.taken));
      HERRING_RETURN_IF_ERROR(server_.aggregator().begin(header, rank_, this, out, slots_));
      segments_complete_ = 0;
      segments_total_ = header.segments;
      outstanding_ += header.segments;
      if (header.flags & wire::kFlagSteers) server_.set_credit(header.credit);
      if (header.signals != last_signals_) {
        server_.add_signals(header.signals - last_signals_);
        last_signals_ = header.signals;
      }
      return {};
    case wire::FrameType::kOpen:
      if (header.payload > kMaxOpenPayload) break;
      control_.resize(header.payload);
      out.add(control_.data(), control_.size());
      return {};
    case wire::FrameType::kAnnounce:
    case wire::FrameType::kEnlist:
    case wire::FrameType::kJoin:
    case wire::FrameType::kReceived:
      if (header.payload > server_.max_announce_payload()) break;
      control_.resize(header.payload);
      out.add(control_.data(), control_.size());
      return {};
    case wire::FrameType::kTaken:
      if (header.payload > 0) break;
      return taken(header.taken);
    default: break;
  }
  return {Code::kInternal, concat("unexpected ", wire::name_of(header.type), " frame of ",
                                  header.payload, " bytes from rank ", rank_)};
}

void Peer::on_payload(transport::Flow&, const wire::FrameHeader& header, size_t received) {
  if (header.type == wire::FrameType::kData) {
    const size_t segment = server_.aggregator().segment_bytes();
    complete_segments(received == header.payload ? segments_total_ : received / segment);
  }
}

void Peer::complete_segments(size_t up_to) {
  while (segments_complete_ < up_to) {
    server_.aggregator().arrived(*slots_[segments_complete_++], rank_);
  }
}

Status Peer::on_frame(transport::Flow&, const wire::FrameHeader& header) {
  switch (header.type) {
    case wire::FrameType::kData:
      complete_segments(segments_total_);
      return {};
    case wire::FrameType::kTaken: return {};
    case wire::FrameType::kOpen: {
      auto open = wire::decode_open(control_);
      if (!open.ok()) return open.status();
      return server_.open({header.stream, header.round, header.buffer}, std::move(*open), rank_);
    }
    case wire::FrameType::kAnnounce: return server_.announce(rank_, std::move(control_));
    default: return server_.series(header.type, rank_, control_);
  }
}

void Peer::queue_result(Slot& slot, bool with_payload) {
  if (flow_->closed()) {
    server_.aggregator().result_sent(slot);
    return;
  }
  results_.push({&slot, with_payload});
  if (!std::exchange(flush_scheduled_, true)) proxy_.loop().at_iteration_end(&flush_task_);
}

// Those whose contributions are in a result. A contributor to a round of a partial all-reduce that
// died may be in some of its segments: its workers must know which round is whole.
uint16_t Peer::workers_in(const Slot& slot) {
  const Operation& op = *slot.op;
  return static_cast<uint16_t>(op.key.stream < wire::kPartialStreams ? op.workers : slot.given);
}

// Adjacent segments of one operation leave as one frame.
void Peer::flush_results() {
  while (!results_.empty() && !flow_->closed()) {
    const Result first = results_.front();
    const Operation& op = *first.slot->op;
    wire::FrameHeader header;
    header.type = wire::FrameType::kResult;
    header.flags = first.with_payload ? 0 : wire::kFlagEmpty;
    header.stream = op.key.stream;
    header.round = op.key.round;
    header.buffer = op.key.buffer;
    header.first_segment = first.slot->segment;
    header.credit = server_.credit();
    header.workers = workers_in(*first.slot);
    header.signals = server_.signals();
    iovec pieces[transport::Destinations::kMaxPieces];
    Slot* frame[transport::Destinations::kMaxPieces];
    int n = 0;
    while (!results_.empty() && header.segments < server_.max_frame_segments()) {
      const Result& next = results_.front();
      if (next.slot->op != &op || next.with_payload != first.with_payload ||
          next.slot->segment != first.slot->segment + header.segments ||
          workers_in(*next.slot) != header.workers) {
        break;
      }
      ++header.segments;
      if (next.with_payload) {
        pieces[n++] = {next.slot->result, next.slot->bytes};
        header.payload += next.slot->bytes;
      }
      frame[header.segments - 1] = next.slot;
      results_.pop();
    }
    outstanding_ -= header.segments;
    const bool lend = header.payload >= transport::Flow::kLeastLent;
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

Status Peer::taken(uint16_t taken) {
  const auto count = static_cast<uint16_t>(taken - std::exchange(taken_, taken));
  if (count > lent_.size()) {
    return {Code::kInternal, concat("rank ", rank_, " took ", count, " segments where ",
                                    lent_.size(), " were lent")};
  }
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

void Peer::send(const wire::FrameHeader& header, std::string payload) {
  flow_->send_owned(header, std::move(payload));
}

void Peer::drop() {
  flow_->close({});
  for (; !results_.empty(); results_.pop()) {
    server_.aggregator().result_sent(*results_.front().slot);
  }
  release(in_flight_, in_flight_.size());
  release(lent_, lent_.size());  // who is dropped reads nothing more that counts
}

void Peer::on_closed(transport::Flow&, const Status& why) { server_.peer_closed(*this, why); }

}  // namespace herring::server
