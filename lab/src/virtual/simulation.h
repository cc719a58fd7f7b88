// A modelled cluster in virtual time: hosts with processors, a network between them, and the loops
// that run on the hosts. The caller's thread runs one event after another. The same seed gives the
// same events.
//
// A loop's iteration occupies a processor of its host for the modelled cost of its work. In its
// first half the loop reads and handles everything that is ready. When that work is done, it sends
// what it has produced, in the second half.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <queue>
#include <unordered_map>
#include <vector>

#include "virtual/network.h"
#include "virtual/pipe.h"
#include "virtual/streams.h"

namespace herring::transport::virtual_time {

class VirtualFlow;
class VirtualListener;
class VirtualLoop;

// Processor time, in nanoseconds.
struct Costs {
  double wakeup = 5000;          // for each iteration
  double call = 1500;            // for each read or write call
  double byte_received = 0.12;   // for each byte copied, and summed on servers
  double byte_sent = 0.08;
  double packet = 300;           // the system's work for each packet in either direction
};

struct SimulationOptions {
  size_t hosts = 1;
  size_t spines = 0;      // see Network
  size_t cores = 0;       // cores of a host, or of all hosts with `shared_cores`; 0: unlimited
  bool shared_cores = false;
  Costs costs;
  StreamSettings streams;
  bool carries_data = true;  // whether payloads of segments and results are carried
  uint64_t seed = 1;
};

class Simulation final : private StreamEvents {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  const SimulationOptions& options() const { return options_; }
  Network& network() { return network_; }
  Streams& streams() { return streams_; }
  Nanos now() const { return now_; }
  uint64_t events() const { return events_; }

  // Calls `task` at `when`.
  void call_at(Nanos when, std::function<void()> task);
  // Runs until `done()`, which is called after every event, or until `deadline`. Returns false if
  // the deadline has passed or no events are left before `done()`.
  bool run_until(const std::function<bool()>& done, Nanos deadline);

 private:
  friend class VirtualFlow;
  friend class VirtualLoop;
  friend class VirtualConnection;
  friend class VirtualListener;
  friend class VirtualTransport;

  // Processors that several loops share.
  struct Cores {
    size_t free = 0;
    std::deque<VirtualLoop*> waiting;
  };
  struct Event {
    Nanos time;
    uint64_t order;
    size_t loop;    // the loop's number; kNoLoop for a task
    uint64_t what;  // the loop's ticket or the task's number
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  // One end of a connection.
  struct End {
    explicit End(bool carries_data) : incoming(carries_data) {}
    VirtualFlow* flow = nullptr;  // null until it is open
    Pipe incoming;
    uint64_t arrived = 0;         // bytes of `incoming` that have arrived
    bool finished = false;        // whether all bytes have arrived
  };

  static constexpr size_t kNoLoop = ~size_t{0};

  void push(Nanos when, size_t loop, uint64_t what);
  bool step(Nanos deadline);
  Cores& cores_of(size_t host) { return cores_[options_.shared_cores ? 0 : host]; }
  uint32_t connect(size_t from, size_t to);
  End& end(uint32_t connection, int side) { return ends_[2 * connection + side]; }

  void on_received(uint32_t connection, int side, uint64_t total, Nanos now) override;
  void on_writable(uint32_t connection, int side, Nanos now) override;
  void on_finished(uint32_t connection, int side, Nanos now) override;
  void on_aborted(uint32_t connection, int side, Nanos now) override;

  const SimulationOptions options_;
  Network network_;
  Streams streams_;
  Nanos now_ = 0;
  uint64_t events_ = 0, order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::unordered_map<uint64_t, std::function<void()>> tasks_;
  uint64_t next_task_ = 0;
  std::vector<Cores> cores_;
  std::deque<End> ends_;
  std::unordered_map<std::string, VirtualListener*> listeners_;  // by address
  uint16_t next_port_ = 40000;
  std::vector<VirtualLoop*> loops_;  // by number; null when destroyed
};

}  // namespace herring::transport::virtual_time
