// A modelled network in virtual time. The lab's switch takes real packets through it. The caller
// passes the time.
//
//   host -> [egress] -> path: loss, delay, jitter -> ([spine] -> its path) -> [port] -> host
//
// Links are strict. A packet takes length / rate, one packet after the other, and is dropped if it
// would wait longer than the queue is deep. All times are computed from the moment when a packet
// came in. So a late call makes its own deliveries late, but not those of later packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "base/clock.h"
#include "virtual/event_queue.h"

namespace herring::transport::virtual_time {

struct LinkSettings {
  double bits_per_second = 0;  // 0: no limit
  Nanos queue = 20 * kMillisecond;
};

struct LinkCounters {
  uint64_t packets = 0;
  uint64_t bytes = 0;
  uint64_t drops = 0;
};

// One direction of a link and the queue before it.
class Link {
 public:
  // Packets that are already queued keep the time at which they leave.
  void set(LinkSettings settings) {
    settings_ = settings;
    last_bytes_ = 0;
  }
  const LinkSettings& settings() const { return settings_; }
  const LinkCounters& counters() const { return counters_; }

  Nanos duration(uint32_t bytes) const;
  // Returns when the last bit of a packet that comes at `now` leaves; nothing if it is dropped.
  std::optional<Nanos> send(Nanos now, uint32_t bytes);

 private:
  LinkSettings settings_;
  LinkCounters counters_;
  Nanos free_ = 0;  // when the last accepted packet has left
  uint32_t last_bytes_ = 0;  // most packets are as long as the previous one
  Nanos last_duration_ = 0;
};

struct PathSettings {
  Nanos delay = 0;
  Nanos jitter = 0;  // longest extra delay, evenly distributed; packets keep their order
  double loss = 0;   // probability that a packet is lost
};

// What the network knows about a packet.
struct Parcel {
  uint32_t buffer = 0;  // the caller's name for it
  uint32_t bytes = 0;
  uint16_t source = 0;
  uint16_t destination = 0;
  uint32_t flow = 0;  // hash of addresses and ports, which chooses the spine
  bool safe = false;  // never lost at random (for ARP, whose retries take seconds)
};

class Network {
 public:
  struct Delivery {
    Parcel parcel;
    Nanos due = 0;
  };

  // With `spines` > 0, even and odd hosts are on two leaves with this number of links between them.
  Network(size_t hosts, size_t spines, uint64_t seed);

  size_t hosts() const { return hosts_; }
  size_t links() const { return links_.size(); }
  // Return the number of a link: a host's egress, its switch port, or a spine away from a leaf.
  size_t egress(size_t host) const { return host; }
  size_t port(size_t host) const { return hosts_ + host; }
  size_t spine(size_t number, size_t from) const { return 2 * hosts_ + 2 * number + from; }

  Link& link(size_t number) { return links_[number]; }
  const Link& link(size_t number) const { return links_[number]; }
  void set_path(size_t source, size_t destination, PathSettings settings);
  void set_all_paths(PathSettings settings);
  void set_spine_path(size_t number, PathSettings settings);

  // Sends a packet from its host. Returns false if it is dropped or lost. `now` must not decrease.
  bool enter(const Parcel& parcel, Nanos now);
  // Takes packets through all links that they reach by `now`. Appends the buffers of packets that
  // are dropped or lost on the way.
  void advance(Nanos now, std::vector<uint32_t>* dropped);
  // Returns the next packet whose last bit is at its receiver by `now`; nothing if there is none.
  std::optional<Delivery> deliver(Nanos now);
  // Returns the packet that is most likely delivered next; nullptr if none is at its last link.
  const Parcel* upcoming() const { return deliveries_.empty() ? nullptr : &deliveries_.top(); }
  // Returns when advance() or deliver() has something to do; kNever if no packet is under way.
  Nanos next() const;

  // Returns how long a lone packet takes, without jitter.
  Nanos transit(const Parcel& parcel) const;

  uint64_t lost() const { return lost_; }
  size_t under_way() const { return arrivals_.size() + deliveries_.size(); }

 private:
  struct Arrival {
    Parcel parcel;
    uint32_t link;  // the link that it comes to
  };

  size_t next_link(const Parcel& parcel) const;
  const PathSettings& path(size_t pair) const { return paths_.empty() ? all_ : paths_[pair]; }
  // Returns when a packet that starts at `now` reaches the other end; nothing if it is lost.
  std::optional<Nanos> travel(const PathSettings& path, Nanos now, bool safe, Nanos* last);
  double uniform();

  size_t hosts_;
  size_t spines_;
  std::vector<Link> links_;
  PathSettings all_;                       // used while paths_ is empty
  std::vector<PathSettings> paths_;        // by source and destination
  std::vector<Nanos> last_;                // by source and destination: last arrival, for jitter
  std::vector<PathSettings> spine_paths_;  // by spine
  std::vector<Nanos> spine_last_;          // by spine and direction
  // Packets that enter from now on reach their next link after this time at the earliest. So
  // arrivals within this time can be decided now.
  Nanos lookahead_ = 0;
  EventQueue<Arrival> arrivals_;   // a lane for each link that packets come from
  EventQueue<Parcel> deliveries_;  // a lane for each port
  uint64_t lost_ = 0;
  std::mt19937_64 random_;
};

}  // namespace herring::transport::virtual_time
