// A modelled network in virtual time. The lab's switch takes real packets through it.
//
//   host -> [egress] -> path: loss, delay, jitter -> ([spine] -> its path) -> [port] -> host
//
// A link serializes strictly: a packet takes length / rate, one after the other, and is dropped if
// it would have to wait longer than the queue is deep. All times are computed from the moment a
// packet came in; being called late delays what is delivered late, never what follows.
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
  // Packets that are queued already keep the time at which they leave.
  void set(LinkSettings settings) {
    settings_ = settings;
    last_bytes_ = 0;
  }
  const LinkSettings& settings() const { return settings_; }
  const LinkCounters& counters() const { return counters_; }

  Nanos duration(uint32_t bytes) const;
  // Returns when the last bit of a packet that comes at `now` has left; nothing if it is dropped.
  std::optional<Nanos> send(Nanos now, uint32_t bytes);

 private:
  LinkSettings settings_;
  LinkCounters counters_;
  Nanos free_ = 0;  // when the last packet accepted has left
  uint32_t last_bytes_ = 0;  // most packets are as long as the one before
  Nanos last_duration_ = 0;
};

struct PathSettings {
  Nanos delay = 0;
  Nanos jitter = 0;  // up to so much more, evenly distributed; packets do not overtake each other
  double loss = 0;   // probability
};

// What the network knows of a packet.
struct Parcel {
  uint32_t buffer = 0;  // the caller's name for it
  uint32_t bytes = 0;
  uint16_t source = 0;
  uint16_t destination = 0;
  uint32_t flow = 0;  // hash of addresses and ports: chooses the spine
  bool safe = false;  // is never lost at random (ARP: its retries take seconds)
};

class Network {
 public:
  struct Delivery {
    Parcel parcel;
    Nanos due = 0;
  };

  // `spines` > 0: hosts are on two leaves (even and odd ones) with so many links between them.
  Network(size_t hosts, size_t spines, uint64_t seed);

  size_t hosts() const { return hosts_; }
  size_t links() const { return links_.size(); }
  // Numbers of links: the hosts' egress, their switch ports, each spine away from leaf 0 and 1.
  size_t egress(size_t host) const { return host; }
  size_t port(size_t host) const { return hosts_ + host; }
  size_t spine(size_t number, size_t from) const { return 2 * hosts_ + 2 * number + from; }

  Link& link(size_t number) { return links_[number]; }
  const Link& link(size_t number) const { return links_[number]; }
  void set_path(size_t source, size_t destination, PathSettings settings);
  void set_all_paths(PathSettings settings);
  void set_spine_path(size_t number, PathSettings settings);

  // A host sends. False: the packet is dropped or lost. `now` must not be before an earlier one.
  bool enter(const Parcel& parcel, Nanos now);
  // Takes everything through the links that is there by `now`; appends the buffers of what is
  // dropped or lost on the way.
  void advance(Nanos now, std::vector<uint32_t>* dropped);
  // The next packet whose last bit is at its receiver by `now`; nothing if there is none.
  std::optional<Delivery> deliver(Nanos now);
  // Most likely the next to be delivered; nullptr: none is at its last link.
  const Parcel* upcoming() const { return deliveries_.empty() ? nullptr : &deliveries_.top(); }
  // When advance() and deliver() have something to do next; kNever: nothing is on its way.
  Nanos next() const;

  // How long a lone packet takes, without jitter.
  Nanos transit(const Parcel& parcel) const;

  uint64_t lost() const { return lost_; }
  size_t under_way() const { return arrivals_.size() + deliveries_.size(); }

 private:
  struct Arrival {
    Parcel parcel;
    uint32_t link;  // the one it comes to
  };

  size_t next_link(const Parcel& parcel) const;
  const PathSettings& path(size_t pair) const { return paths_.empty() ? all_ : paths_[pair]; }
  // Returns when a packet that starts at `now` is at the other end; nothing if it is lost.
  std::optional<Nanos> travel(const PathSettings& path, Nanos now, bool safe, Nanos* last);
  double uniform();

  size_t hosts_;
  size_t spines_;
  std::vector<Link> links_;
  PathSettings all_;                       // where paths_ is empty
  std::vector<PathSettings> paths_;        // by source and destination
  std::vector<Nanos> last_;                // arrival of the last packet, likewise, with jitter
  std::vector<PathSettings> spine_paths_;  // by spine
  std::vector<Nanos> spine_last_;          // by spine and direction
  // No packet that enters from now on comes to its next link sooner than after this time: what
  // comes there within it can be decided now.
  Nanos lookahead_ = 0;
  EventQueue<Arrival> arrivals_;   // a lane for each link that was left
  EventQueue<Parcel> deliveries_;  // a lane for each port
  uint64_t lost_ = 0;
  std::mt19937_64 random_;
};

}  // namespace herring::transport::virtual_time
