// The seam between Herring's protocol and what carries it. A transport listens and connects; it
// brings proven connections, each of which becomes a flow of one loop. A flow is one ordered,
// reliable, authenticated connection that carries frames; payloads are read from it straight to
// where the handler wants them and written from where they lie. tcp/ is the first backend, virtual/
// a modelled network in virtual time.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/event_loop.h"
#include "wire/frame.h"
#include "wire/hello.h"

namespace herring::transport {

class Flow;

// A lost packet that no later one reveals is sent again when a round trip and a least time-out are
// over. The system's own is meant for any path and costs a round in a data centre 200 ms; a job's
// flows have as little as leaves a probe the time to be answered first (RFC 8985, section 7.2; on
// Linux it goes out two round trips and two ticks of 4 ms after the last acknowledgement).
inline constexpr Nanos kShortestTimeout = 10 * kMillisecond, kSystemTimeout = 200 * kMillisecond;
inline Nanos timeout_beyond(Nanos round_trip) {
  return std::min(3 * round_trip + kShortestTimeout, kSystemTimeout);
}

// Where the payload of one frame goes: up to kMaxPieces pieces, in order.
struct Destinations {
  static constexpr int kMaxPieces = 64;
  iovec pieces[kMaxPieces];
  int count = 0;

  // One piece too many leaves the payload without a place, which closes the flow.
  void add(void* data, size_t bytes) {
    if (count < kMaxPieces) pieces[count++] = {data, bytes};
  }
};

// All callbacks run on the thread of the flow's loop. None may destroy the flow; close() may be
// called from inside them.
class FlowHandler {
 public:
  virtual ~FlowHandler() = default;
  // A plausible header has arrived. The handler checks it against what it expects before any memory
  // is touched and says where the payload goes (exactly header.payload bytes). An error closes the
  // flow.
  virtual Status on_header(Flow& flow, const wire::FrameHeader& header, Destinations& out) = 0;
  // `received` bytes of the current frame's payload are in place (monotonic, also at its end).
  virtual void on_payload(Flow&, const wire::FrameHeader&, size_t /*received*/) {}
  // The whole frame is in place.
  virtual Status on_frame(Flow& flow, const wire::FrameHeader& header) = 0;
  // The bytes of the oldest frame sent with this token are out of our hands: their memory may be
  // reused. Called in the order of send().
  virtual void on_sent(Flow&, uint64_t /*token*/) {}
  // The flow has ended; no further callbacks. Called once, also for close() with an error.
  virtual void on_closed(Flow& flow, const Status& why) = 0;
};

struct FlowCounters {
  uint64_t bytes_sent = 0, bytes_received = 0;  // headers and payloads
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t send_calls = 0, receive_calls = 0;
};

// What the path says about itself; fields a backend cannot know stay 0.
struct PathInfo {
  uint64_t retransmits = 0;     // since the flow began
  uint64_t spurious = 0;        // of these, the peer had the data already (reported a little later)
  Nanos rtt = 0, min_rtt = 0;
  uint32_t unacknowledged = 0;  // packets; what the system could not even send is one more
  Nanos acknowledged_ago = 0;   // when the other side's system last acknowledged anything
};

// Counts losses on a path. A busy peer acknowledges late, and a sender then probes with a
// retransmission that nobody needed; the peer says so a round trip later. So a retransmission
// counts at the poll after the one that saw it first, unless it was disowned in between.
class LossCounter {
 public:
  // New losses since the last poll.
  uint64_t poll(const PathInfo& path) {
    const uint64_t lost = seen_ > path.spurious ? seen_ - path.spurious : 0;
    seen_ = path.retransmits;
    const uint64_t fresh = lost > counted_ ? lost - counted_ : 0;
    counted_ += fresh;
    return fresh;
  }

 private:
  uint64_t seen_ = 0, counted_ = 0;
};

class Flow {
 public:
  // To copy less is cheaper than to hand on pages.
  static constexpr size_t kLeastLent = 32 << 10;

  virtual ~Flow() = default;

  // Queues a frame; it is written at the end of the loop's iteration. The pieces are not copied:
  // they must stay unchanged until on_sent(token). token 0: no report wanted. header.payload must
  // equal the sum of the pieces.
  virtual void send(const wire::FrameHeader& header, const iovec* pieces, int count,
                    uint64_t token) = 0;
  // Like send() without a report, but the pieces may be handed on without a copy: they must stay
  // unchanged until the other side is known to have read them.
  virtual void lend(const wire::FrameHeader& header, const iovec* pieces, int count) = 0;
  // Queues a small control frame whose payload the flow keeps; header.payload is filled in.
  virtual void send_owned(wire::FrameHeader header, std::string payload) = 0;
  // Bytes queued here and not yet handed on.
  virtual size_t backlog() const = 0;
  // Stops at once. With an error, on_closed(error) follows from the loop; with ok nothing follows.
  virtual void close(Status why) = 0;
  // As close({}), and what was lent and has not left yet is taken back: none of it is read later.
  virtual void abandon() = 0;
  // Tells the other side that no more comes, after what is queued has been written. What arrives
  // from then on is read and dropped, because the system resets a connection that is closed with
  // unread input, and the other side would lose what it has not read. Closes, without a report,
  // when the other side does; the caller bounds that (`await_delivery`). `writes_queued` false:
  // frames that are queued are dropped, the one that is being written in its middle.
  virtual void finish(bool writes_queued = true) = 0;
  virtual bool closed() const = 0;

  virtual const FlowCounters& counters() const = 0;
  virtual PathInfo path_info() const = 0;
  virtual const std::string& peer() const = 0;  // "10.0.0.3:40123", for messages

  // The owner's own data (who is on the other side).
  void* user = nullptr;
  uint64_t user_index = 0;
};

// What a flow will carry, so that a backend can treat it accordingly.
enum class Traffic {
  kCredit,    // segments and results, kept in bounds by credit
  kSchedule,  // steps of a schedule between workers: much at once, then nothing for a while
  kControl,   // small messages, whose silence means something
};

// Both sides have proven themselves; nothing was sent on it yet.
class Connection {
 public:
  virtual ~Connection() = default;
  // Once, on the thread of `loop`, which must be one of the same transport.
  virtual std::unique_ptr<Flow> open(EventLoop& loop, FlowHandler& handler, Traffic traffic) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual const Address& address() const = 0;
  // Nobody else is let in; from inside a callback too.
  virtual void close() = 0;
  // Told, again and again, while this process has no descriptors for those who come.
  virtual void on_starved(std::function<void(const Status& why)> /*told*/) {}
};

// A connection that is being made; destroyed, it is given up.
class Connecting {
 public:
  virtual ~Connecting() = default;
};

// What a process must show to take part in a job.
struct Credentials {
  std::string secret;
  wire::JobId job{};
};

class Transport {
 public:
  // Called on the loop's thread with a proven connection. Returning another verdict than kAccepted
  // refuses it; on kAccepted the peer has been told already when `then` runs.
  using Admit = std::function<wire::Verdict(const wire::Hello&)>;
  using Accepted =
      std::function<void(std::unique_ptr<Connection>, const wire::Hello&, const Address& peer)>;
  // Called once, from the loop: a proven connection, or why there is none. May destroy the
  // Connecting.
  using Connected = std::function<void(Result<std::unique_ptr<Connection>>)>;

  virtual ~Transport() = default;
  // `lends`: waiting threads may drive() it.
  virtual std::shared_ptr<EventLoop> make_loop(bool lends) = 0;
  // Accepts on `loop`; port 0: any that is free. Errors name the address.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                                   Credentials credentials, Admit admit,
                                                   Accepted accepted) = 0;
  // `address` is literal, and somebody listens there already: one attempt, bounded by `patience`.
  // `source`: the address to connect from, or empty.
  virtual std::unique_ptr<Connecting> connect(EventLoop& loop, const Address& address,
                                              const std::string& source, const wire::Hello& hello,
                                              const Credentials& credentials, Nanos patience,
                                              Connected connected) = 0;
};

}  // namespace herring::transport
