// A modelled cluster in virtual time: hosts with processors, a network between them, and the loops
// that run there. One thread runs all of it, event after event; a seed gives the same events again.
//
// A loop's iteration takes a processor of its host, for as long as its work is said to cost. First
// everything that is ready is read and handled, then, so much later, what that produced is sent.
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
  double wakeup = 5000;          // of an iteration
  double call = 1500;            // each reading or writing call
  double byte_received = 0.12;   // copied, and for servers summed
  double byte_sent = 0.08;
  double packet = 300;           // of the system, for each packet in either direction
};

struct SimulationOptions {
  size_t hosts = 1;
  size_t spines = 0;      // see Network
  size_t cores = 0;       // of a host, or of all of them together; 0: as many as are needed
  bool shared_cores = false;
  Costs costs;
  StreamSettings streams;
  bool carries_data = true;  // payloads of segments and results; without, only their headers
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

  // Calls `task` then.
  void call_at(Nanos when, std::function<void()> task);
  // Runs until `done()`, which is asked after every event, or `deadline`. False: not done, as the
  // deadline has passed or nothing will happen any more.
  bool run_until(const std::function<bool()>& done, Nanos deadline);

 private:
  friend class VirtualFlow;
  friend class VirtualLoop;
  friend class VirtualConnection;
  friend class VirtualListener;
  friend class VirtualTransport;

  // Processors that some loops share.
  struct Cores {
    size_t free = 0;
    std::deque<VirtualLoop*> waiting;
  };
  struct Event {
    Nanos time;
    uint64_t order;
    size_t loop;    // kNoLoop: a task
    uint64_t what;  // the loop's ticket, or the task's number
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  // One end of a connection.
  struct End {
    explicit End(bool carries_data) : incoming(carries_data) {}
    VirtualFlow* flow = nullptr;  // once it is open
    Pipe incoming;
    uint64_t arrived = 0;         // bytes of it that are here
    bool finished = false;        // no more will come
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
  std::vector<VirtualLoop*> loops_;  // by number; null once gone
};

}  // namespace herring::transport::virtual_time
