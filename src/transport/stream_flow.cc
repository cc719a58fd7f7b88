#include "transport/stream_flow.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace herring::transport {
namespace {

// The most bytes that one flow may read before the loop serves other flows.
constexpr size_t kReceiveBudget = 1 << 20;
constexpr int kMaxIov = 128;

}  // namespace

StreamFlow::StreamFlow(EventLoop& loop, FlowHandler& handler, std::string peer)
    : loop_(loop), handler_(handler), peer_(std::move(peer)),
      alive_(std::make_shared<bool>(true)) {
  flush_task_ = [this] {
    flush_scheduled_ = false;
    flush();
  };
}

StreamFlow::~StreamFlow() {
  *alive_ = false;
  loop_.forget(&flush_task_);
}

std::string StreamFlow::describe(int error) const { return strerror(error); }

void StreamFlow::on_writable() {
  writable_ = true;
  schedule_flush();  // clears the interest, unless the stream is full again
}

void StreamFlow::send(const wire::FrameHeader& header, const iovec* pieces, int count,
                      uint64_t token) {
  if (closed() || finishing_ || !broken_.ok()) return;
  OutFrame& frame = frames_.push({});
  frame.header = header;
  frame.pieces = static_cast<uint32_t>(count);
  frame.token = token;
  frame.bytes = wire::kHeaderBytes + header.payload;
  for (int i = 0; i < count; ++i) pieces_.push(pieces[i]);
  queued(frame);
}

void StreamFlow::lend(const wire::FrameHeader& header, const iovec* pieces, int count) {
  if (closed() || finishing_ || !broken_.ok()) return;
  send(header, pieces, count, 0);
  frames_[frames_.size() - 1].lent = header.payload >= kLeastLent && lends();
}

void StreamFlow::send_owned(wire::FrameHeader header, std::string payload) {
  if (closed() || finishing_ || !broken_.ok()) return;
  header.payload = static_cast<uint32_t>(payload.size());
  OutFrame& frame = frames_.push({});
  frame.header = header;
  frame.bytes = wire::kHeaderBytes + payload.size();
  frame.owned = std::move(payload);
  queued(frame);
}

// The frame is the last one in the queue.
void StreamFlow::queued(OutFrame& frame) {
  frame.header.check = wire::check_of(frame.header, counters_.frames_sent + frames_.size());
  backlog_ += frame.bytes;
  schedule_flush();
}

void StreamFlow::schedule_flush() {
  if (flush_scheduled_ || !writable_) return;
  flush_scheduled_ = true;
  loop_.at_iteration_end(&flush_task_);
}

// Writes the first frame. Its header is copied, but its pieces are not.
ssize_t StreamFlow::lend_front() {
  if (written_ < wire::kHeaderBytes) {
    return write_more(reinterpret_cast<const char*>(&frames_.front().header) + written_,
                      wire::kHeaderBytes - written_);
  }
  iovec iov[Destinations::kMaxPieces];
  int n = 0;
  size_t skip = written_ - wire::kHeaderBytes;
  for (uint32_t p = 0; p < frames_.front().pieces; ++p) {
    const size_t skipped = std::min(skip, pieces_[p].iov_len);
    skip -= skipped;
    if (skipped == pieces_[p].iov_len) continue;
    iov[n++] = {static_cast<char*>(pieces_[p].iov_base) + skipped, pieces_[p].iov_len - skipped};
  }
  return write_lent(iov, n, frames_.size() > 1);
}

void StreamFlow::flush() {
  while (!closed() && !frames_.empty()) {
    size_t wanted = 0;  // bytes offered; fewer are taken if the stream is full
    const ssize_t sent = frames_.front().lent ? lend_front() : write_gathered(&wanted);
    ++counters_.send_calls;
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        writable_ = false;
        break;
      }
      return stop_writing(errno);
    }
    written(static_cast<size_t>(sent));
    if (!closed() && static_cast<size_t>(sent) < wanted) {
      writable_ = false;  // the stream is full; on_writable() tells when it is not
      break;
    }
  }
  if (closed()) return;
  if (finishing_ && frames_.empty()) half_close();
  want_writable(!writable_);
}

// Writes as many frames as one call takes.
ssize_t StreamFlow::write_gathered(size_t* wanted) {
  iovec iov[kMaxIov];
  int n = 0;
  size_t skip = written_, piece = 0;
  for (size_t f = 0; f < frames_.size() && n < kMaxIov && !frames_[f].lent; ++f) {
    OutFrame& frame = frames_[f];
    const auto add = [&](void* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped || n == kMaxIov) return;
      iov[n++] = {static_cast<char*>(data) + skipped, bytes - skipped};
      *wanted += bytes - skipped;
    };
    add(&frame.header, wire::kHeaderBytes);
    if (!frame.owned.empty()) add(frame.owned.data(), frame.owned.size());
    for (uint32_t p = 0; p < frame.pieces; ++p, ++piece) {
      add(pieces_[piece].iov_base, pieces_[piece].iov_len);
    }
  }
  return write(iov, n);
}

void StreamFlow::written(size_t bytes) {
  counters_.bytes_sent += bytes;
  backlog_ -= bytes;
  written_ += bytes;
  while (!frames_.empty() && written_ >= frames_.front().bytes) {
    OutFrame& frame = frames_.front();
    written_ -= frame.bytes;
    pieces_.pop(frame.pieces);
    frame.owned = {};
    const uint64_t token = frame.token;
    frames_.pop();
    ++counters_.frames_sent;
    if (token != 0) handler_.on_sent(*this, token);
    if (closed()) return;
  }
}

// Reads the rest of the current payload and the next header in one call. So a frame costs one
// system call if its bytes are there, and every byte is read directly to its place.
void StreamFlow::on_readable() {
  if (finishing_) return drop_input();
  size_t budget = kReceiveBudget;
  while (!closed()) {
    iovec iov[Destinations::kMaxPieces + 1];
    int n = 0;
    size_t wanted = 0;
    if (in_payload_) {
      for (int i = next_piece_; i < destinations_.count; ++i) {
        iov[n++] = destinations_.pieces[i];
        wanted += destinations_.pieces[i].iov_len;
      }
    }
    const size_t header_start = in_payload_ ? 0 : header_have_;
    static_assert(sizeof(header_) == wire::kHeaderBytes);
    // The next header must not overwrite the current one while its payload is still coming.
    wire::FrameHeader next;
    char* header_into = in_payload_ ? reinterpret_cast<char*>(&next)
                                    : reinterpret_cast<char*>(&header_) + header_start;
    iov[n++] = {header_into, wire::kHeaderBytes - header_start};
    wanted += wire::kHeaderBytes - header_start;

    const ssize_t got = read(iov, n);
    ++counters_.receive_calls;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      return fail({Code::kPeerLost, concat("connection to ", peer_, " failed: ", describe(errno))});
    }
    if (got == 0) {
      return fail({Code::kPeerLost,
                   concat("connection to ", peer_, " was closed by the other side")});
    }
    counters_.bytes_received += got;
    size_t left = static_cast<size_t>(got);
    if (in_payload_) {
      const size_t payload_left = header_.payload - payload_have_;
      const size_t payload_now = std::min(left, payload_left);
      if (!consume(payload_now)) return;
      left -= payload_now;
      if (left > 0) {
        header_ = next;
        header_have_ = left;
      }
    } else {
      header_have_ += left;
    }
    if (!in_payload_ && header_have_ == wire::kHeaderBytes && !begin_frame()) return;
    if (static_cast<size_t>(got) < wanted) return;  // nothing more to read
    if (static_cast<size_t>(got) >= budget) return;  // other flows first; the loop reports again
    budget -= got;
  }
}

bool StreamFlow::consume(size_t bytes) {
  payload_have_ += bytes;
  while (bytes > 0) {
    iovec& piece = destinations_.pieces[next_piece_];
    const size_t n = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + n;
    piece.iov_len -= n;
    bytes -= n;
    if (piece.iov_len == 0) ++next_piece_;
  }
  handler_.on_payload(*this, header_, payload_have_);
  if (closed()) return false;
  return payload_have_ < header_.payload || end_frame();
}

bool StreamFlow::begin_frame() {
  // Nothing that has not been sent has any effect, so to the owner the connection is lost.
  if (header_.check != wire::check_of(header_, counters_.frames_received + 1)) {
    refuse({Code::kPeerLost,
            concat("connection to ", peer_, " failed: what arrived is not what was sent (frame ",
                   counters_.frames_received + 1,
                   "): it was changed, repeated or lost on its way")});
    return false;
  }
  if (!wire::plausible(header_)) {
    refuse(breach("malformed frame header from ", peer_));
    return false;
  }
  destinations_.count = 0;
  next_piece_ = 0;
  payload_have_ = 0;
  Status status = handler_.on_header(*this, header_, destinations_);
  if (closed()) return false;
  if (status.ok() && header_.payload > 0) {
    size_t total = 0;
    for (int i = 0; i < destinations_.count; ++i) total += destinations_.pieces[i].iov_len;
    if (total != header_.payload) {
      status = defect("no place for the payload of a ", wire::name_of(header_.type), " frame from ",
                      peer_);
    }
  }
  if (!status.ok()) {
    refuse(std::move(status));
    return false;
  }
  in_payload_ = true;
  return header_.payload > 0 || end_frame();
}

bool StreamFlow::end_frame() {
  in_payload_ = false;
  header_have_ = 0;
  ++counters_.frames_received;
  Status status = handler_.on_frame(*this, header_);
  if (closed()) return false;
  if (!status.ok()) {
    refuse(std::move(status));
    return false;
  }
  return true;
}

void StreamFlow::fail(Status why, bool drop) {
  if (closed()) return;
  end(drop);
  if (!finishing_) {
    const bool told_before = why.code() == Code::kPeerLost && !broken_.ok();
    handler_.on_closed(*this, told_before ? broken_ : why);
  }
}

// The other side lives and reads on, but the owner will use what it has lent.
void StreamFlow::refuse(Status why) { fail(std::move(why), true); }

void StreamFlow::drop_queued() {
  frames_.clear();
  pieces_.clear();
  backlog_ = written_ = 0;
}

// The other side takes no more bytes, but what it sent before must still be read. Only the end of
// that input ends the flow.
void StreamFlow::stop_writing(int error) {
  if (finishing_) return close({});
  broken_ = {Code::kPeerLost, concat("connection to ", peer_, " failed: ", describe(error))};
  drop_queued();
  want_writable(false);
  // If the other side is alive and only writing has failed, this tells it to close.
  static_cast<void>(end_writing());
}

void StreamFlow::drop_input() {
  static thread_local char dropped[64 << 10];
  for (size_t budget = kReceiveBudget; !closed();) {
    const iovec piece{dropped, sizeof(dropped)};
    const ssize_t got = read(&piece, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close({});
    if (static_cast<size_t>(got) >= budget) return;
    budget -= static_cast<size_t>(got);
  }
}

void StreamFlow::end(bool drop) {
  if (closed()) return;
  shut(drop);
  drop_queued();
}

void StreamFlow::close(Status why) {
  if (closed()) return;
  end(false);
  if (!why.ok()) {
    loop_.post([this, alive = alive_, why = std::move(why)] {
      if (*alive) handler_.on_closed(*this, why);
    });
  }
}

void StreamFlow::abandon() { end(true); }

void StreamFlow::finish(bool writes_queued) {
  if (closed() || finishing_) return;
  if (!broken_.ok()) return close({});
  finishing_ = true;
  if (!writes_queued) drop_queued();
  if (frames_.empty()) return half_close();
  schedule_flush();
}

// Closing a connection while bytes arrive resets it, and the other side may lose what it has not
// read by then. So only the sending direction ends; drop_input() sees the other side close.
void StreamFlow::half_close() {
  if (std::exchange(half_closed_, true)) return;
  if (!end_writing()) close({});
}

}  // namespace herring::transport
