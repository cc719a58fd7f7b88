// The interface between Herring's protocol and what carries it. A transport listens and connects.
// It brings proven connections, each of which becomes a flow on one loop. A flow is an ordered,
// reliable, authenticated connection that carries frames. Payloads are read directly to where the
// handler wants them, and written from where they lie. tcp/ is the first backend; virtual/ is a
// modelled network in virtual time.
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

// A lost packet that no later packet reveals is sent again after a round trip and a minimum
// timeout. The system's minimum suits any path, but costs a round in a data centre 200 ms. A job's
// flows use a minimum just long enough for a probe to be answered first (RFC 8985, section 7.2). On
// Linux, that probe goes out two round trips and two ticks of 4 ms after the last acknowledgement.
inline constexpr Nanos kShortestTimeout = 10 * kMillisecond, kSystemTimeout = 200 * kMillisecond;
inline Nanos timeout_beyond(Nanos round_trip) {
  return std::min(3 * round_trip + kShortestTimeout, kSystemTimeout);
}

// Where the payload of one frame goes: up to kMaxPieces pieces, in order.
struct Destinations {
  static constexpr int kMaxPieces = 64;
  iovec pieces[kMaxPieces];
  int count = 0;

  // With one piece too many, the payload does not fit its destinations, which closes the flow.
  void add(void* data, size_t bytes) {
    if (count < kMaxPieces) pieces[count++] = {data, bytes};
  }
};

// All callbacks run on the thread of the flow's loop. No callback may destroy the flow, but each
// may call close().
class FlowHandler {
 public:
  virtual ~FlowHandler() = default;
  // A plausible header has arrived. Before any memory is touched, the handler must check it against
  // what it expects. Then it says where the payload goes (exactly header.payload bytes). An error
  // closes the flow.
  virtual Status on_header(Flow& flow, const wire::FrameHeader& header, Destinations& out) = 0;
  // The first `received` bytes of the current frame's payload are in place. The number only grows;
  // the last call has all bytes.
  virtual void on_payload(Flow&, const wire::FrameHeader&, size_t /*received*/) {}
  // The whole frame is in place.
  virtual Status on_frame(Flow& flow, const wire::FrameHeader& header) = 0;
  // The oldest frame sent with this token has been handed to the system, so its memory may be
  // reused. Called in the order of send().
  virtual void on_sent(Flow&, uint64_t /*token*/) {}
  // The flow has ended and no callback follows. Called once, also after close() with an error.
  virtual void on_closed(Flow& flow, const Status& why) = 0;
};

struct FlowCounters {
  uint64_t bytes_sent = 0, bytes_received = 0;  // headers and payloads
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t send_calls = 0, receive_calls = 0;
};

// What the path reports about itself. Fields that a backend cannot know stay 0.
struct PathInfo {
  uint64_t retransmits = 0;     // since the flow began
  uint64_t spurious = 0;        // of these, the peer had the data already (known a little later)
  Nanos rtt = 0, min_rtt = 0;
  uint32_t unacknowledged = 0;  // packets; unsent bytes count as one more packet
  Nanos acknowledged_ago = 0;   // time since the other side's system last acknowledged anything
};

// Counts losses on a path. A busy peer acknowledges late, so a sender probes with a retransmission
// that was not needed, and the peer says so a round trip later. So a retransmission counts at the
// poll after the one that first saw it, unless the peer has reported it as unneeded in between.
class LossCounter {
 public:
  // Returns the number of new losses since the last poll.
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
  // Below this size, copying is cheaper than lending pages.
  static constexpr size_t kLeastLent = 32 << 10;

  virtual ~Flow() = default;

  // Queues a frame, which is written at the end of the loop's iteration. The pieces are not copied,
  // so they must not change until on_sent(token). With token 0, on_sent() is not called.
  // header.payload must equal the sum of the pieces.
  virtual void send(const wire::FrameHeader& header, const iovec* pieces, int count,
                    uint64_t token) = 0;
  // Like send() without on_sent(), but the pieces may be sent without a copy: they must not change
  // until the other side is known to have read them.
  virtual void lend(const wire::FrameHeader& header, const iovec* pieces, int count) = 0;
  // Queues a small control frame whose payload the flow keeps. Fills in header.payload.
  virtual void send_owned(wire::FrameHeader header, std::string payload) = 0;
  // Returns the number of bytes queued here and not yet handed to the system.
  virtual size_t backlog() const = 0;
  // Stops at once. With an error, on_closed(error) follows from the loop; with ok, nothing follows.
  virtual void close(Status why) = 0;
  // Like close({}), but also takes back what was lent and has not left: it is no longer read.
  virtual void abandon() = 0;
  // Tells the other side that no more comes, after queued frames have been written. Input from then
  // on is read and dropped: the system resets a connection that is closed with unread input, and
  // the other side would lose what it has not read. The flow closes, without a callback, when the
  // other side does; the caller must bound that wait (`await_delivery`). With `writes_queued`
  // false, queued frames are dropped, even one that is half written.
  virtual void finish(bool writes_queued = true) = 0;
  virtual bool closed() const = 0;

  virtual const FlowCounters& counters() const = 0;
  virtual PathInfo path_info() const = 0;
  virtual const std::string& peer() const = 0;  // "10.0.0.3:40123", for messages

  // For the owner's use (who is on the other side).
  void* user = nullptr;
  uint64_t user_index = 0;
};

// What a flow will carry, which a backend may take into account.
enum class Traffic {
  kCredit,    // segments and results, bounded by credit
  kSchedule,  // steps of a schedule between workers: many bytes at once, then a pause
  kControl,   // small messages, whose absence is a signal
};

// A connection whose two sides have proved themselves. Nothing has been sent on it yet.
class Connection {
 public:
  virtual ~Connection() = default;
  // May be called once, on the thread of `loop`, which must belong to the same transport.
  virtual std::unique_ptr<Flow> open(EventLoop& loop, FlowHandler& handler, Traffic traffic) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual const Address& address() const = 0;
  // Accepts nobody any more. May be called inside a callback.
  virtual void close() = 0;
  // `told` is called repeatedly while this process has no descriptors for new connections.
  virtual void on_starved(std::function<void(const Status& why)> /*told*/) {}
};

// A connection that is being made. Destroying the object gives it up.
class Connecting {
 public:
  virtual ~Connecting() = default;
};

namespace tcp {
class Tls;
}

// What a process must prove to take part in a job, and what encrypts its connections.
struct Credentials {
  std::string secret;
  wire::JobId job{};
  std::shared_ptr<const tcp::Tls> tls = nullptr;  // null: nothing is encrypted
};

class Transport {
 public:
  // Called on the loop's thread with a proven connection. A verdict other than kAccepted refuses
  // it. After kAccepted, the peer has been told before Accepted runs.
  using Admit = std::function<wire::Verdict(const wire::Hello&)>;
  using Accepted =
      std::function<void(std::unique_ptr<Connection>, const wire::Hello&, const Address& peer)>;
  // Called once, from the loop, with a proven connection or the reason why there is none. May
  // destroy the Connecting.
  using Connected = std::function<void(Result<std::unique_ptr<Connection>>)>;

  virtual ~Transport() = default;
  // `lends`: waiting threads may drive() the loop.
  virtual std::shared_ptr<EventLoop> make_loop(bool lends) = 0;
  // Accepts connections on `loop`. Port 0 picks any free port. Errors name the address.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                                   Credentials credentials, Admit admit,
                                                   Accepted accepted) = 0;
  // Makes one attempt, bounded by `patience`, to connect to a literal address where a process
  // already listens. `source` is the address to connect from, or empty.
  virtual std::unique_ptr<Connecting> connect(EventLoop& loop, const Address& address,
                                              const std::string& source, const wire::Hello& hello,
                                              const Credentials& credentials, Nanos patience,
                                              Connected connected) = 0;
};

}  // namespace herring::transport
