// A flow without a network. The test puts frames in, and what comes out is read and dropped. Memory
// that was handed over without a copy is read when it would be written to the network. Memory that
// was freed too early is therefore found.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "tests/fuzz/input.h"
#include "transport/event_loop.h"
#include "transport/transport.h"

namespace herring::fuzz {

class MemoryFlow final : public transport::Flow {
 public:
  MemoryFlow(transport::EventLoop& loop, transport::FlowHandler& handler)
      : loop_(loop), handler_(handler) {}

  // Delivers one frame, with its payload in up to two portions.
  void deliver(wire::FrameHeader header, const std::string& payload, size_t cut) {
    if (closed_) return;
    header.payload = static_cast<uint32_t>(payload.size());
    if (!wire::plausible(header)) return;
    count_frames(1);
    transport::Destinations out;
    if (Status status = handler_.on_header(*this, header, out); !status.ok()) return fail(status);
    if (closed_) return;
    size_t room = 0;
    for (int i = 0; i < out.count; ++i) room += out.pieces[i].iov_len;
    if (room != payload.size()) return fail({Code::kInternal, "no place for the payload"});
    const size_t ends[] = {std::min(cut, payload.size()), payload.size()};
    size_t at = 0;
    int piece = 0;
    size_t in_piece = 0;
    for (const size_t end : ends) {
      while (at < end) {
        const iovec& to = out.pieces[piece];
        const size_t n = std::min(end - at, to.iov_len - in_piece);
        if (n > 0) {
          std::memcpy(static_cast<char*>(to.iov_base) + in_piece, payload.data() + at, n);
        }
        at += n;
        in_piece += n;
        if (in_piece == to.iov_len) {
          ++piece;
          in_piece = 0;
        }
      }
      if (end > 0) handler_.on_payload(*this, header, end);
      if (closed_) return;
    }
    if (Status status = handler_.on_frame(*this, header); !status.ok()) fail(status);
  }

  // Reads what was sent since the last call, as if writing it to the network.
  void drain() {
    for (auto& frame : std::exchange(sent_, {})) {
      read(frame.pieces);
      if (frame.lent) {
        lent_.push_back({frame.segments, std::move(frame.pieces)});
      } else if (frame.token != 0 && !closed_) {
        handler_.on_sent(*this, frame.token);
      }
    }
  }

  // Reads the segments of the oldest lent results, as an honest worker does. Returns the new count.
  uint16_t take(size_t frames) {
    for (; frames > 0 && !lent_.empty(); --frames) {
      read(lent_.front().pieces);
      taken_ = static_cast<uint16_t>(taken_ + lent_.front().segments);
      lent_.pop_front();
    }
    return taken_;
  }

  void fail(Status why) {
    if (closed_) return;
    closed_ = true;
    handler_.on_closed(*this, why);
  }

  void send(const wire::FrameHeader& header, const iovec* pieces, int count,
            uint64_t token) override {
    put(header, pieces, count, token, false);
  }
  void lend(const wire::FrameHeader& header, const iovec* pieces, int count) override {
    put(header, pieces, count, 0, true);
  }
  void send_owned(wire::FrameHeader, std::string payload) override {
    counters_.bytes_sent += payload.size();
    ++counters_.frames_sent;
  }
  size_t backlog() const override { return sent_.size(); }
  void close(Status why) override {
    if (closed_) return;
    closed_ = true;
    if (why.ok()) return;
    loop_.post([this, why] { handler_.on_closed(*this, why); });
  }
  void abandon() override {
    close({});
    std::erase_if(sent_, [](const Frame& frame) { return frame.lent; });
  }
  void finish(bool) override { close({}); }
  bool closed() const override { return closed_; }
  const transport::FlowCounters& counters() const override { return counters_; }
  transport::PathInfo path_info() const override { return {}; }
  const std::string& peer() const override { return name_; }

 private:
  struct Frame {
    std::vector<iovec> pieces;
    uint64_t token = 0;
    bool lent = false;
    uint16_t segments = 0;
  };
  struct Lent {
    uint16_t segments = 0;
    std::vector<iovec> pieces;
  };

  void put(const wire::FrameHeader& header, const iovec* pieces, int count, uint64_t token,
           bool lent) {
    if (closed_) return;
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
    expect(bytes == header.payload);
    ++counters_.frames_sent;
    sent_.push_back({{pieces, pieces + count}, token, lent, header.segments});
  }

  void read(const std::vector<iovec>& pieces) {
    for (const iovec& piece : pieces) {
      const auto* bytes = static_cast<const unsigned char*>(piece.iov_base);
      for (size_t i = 0; i < piece.iov_len; i += 64) sum_ = sum_ + bytes[i];
      if (piece.iov_len > 0) sum_ = sum_ + bytes[piece.iov_len - 1];
    }
  }

  transport::EventLoop& loop_;
  transport::FlowHandler& handler_;
  const std::string name_ = "memory";
  transport::FlowCounters counters_;
  std::deque<Frame> sent_;
  std::deque<Lent> lent_;
  uint16_t taken_ = 0;
  bool closed_ = false;
  volatile unsigned sum_ = 0;
};

}  // namespace herring::fuzz
