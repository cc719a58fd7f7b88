#include "virtual/network.h"

#include <algorithm>
#include <cmath>

namespace herring::transport::virtual_time {

Nanos Link::duration(uint32_t bytes) const {
  if (settings_.bits_per_second <= 0) return 0;
  return std::llround(bytes * 8e9 / settings_.bits_per_second);
}

std::optional<Nanos> Link::send(Nanos now, uint32_t bytes) {
  Nanos start = std::max(now, free_);
  if (settings_.bits_per_second > 0) {
    if (start - now > settings_.queue) {
      ++counters_.drops;
      return std::nullopt;
    }
    if (bytes != last_bytes_) {
      last_bytes_ = bytes;
      last_duration_ = duration(bytes);
    }
    free_ = start + last_duration_;
  } else {
    free_ = start;  // after packets that were accepted while there was a limit
  }
  ++counters_.packets;
  counters_.bytes += bytes;
  return free_;
}

Network::Network(size_t hosts, size_t spines, uint64_t seed)
    : hosts_(hosts),
      spines_(spines),
      links_(2 * hosts + 2 * spines),
      spine_paths_(spines),
      spine_last_(2 * spines),
      arrivals_(links_.size()),
      deliveries_(hosts),
      random_(seed) {}

void Network::set_path(size_t source, size_t destination, PathSettings settings) {
  if (paths_.empty()) paths_.resize(hosts_ * hosts_, all_);
  paths_[source * hosts_ + destination] = settings;
  lookahead_ = std::min(lookahead_, settings.delay);
}

void Network::set_all_paths(PathSettings settings) {
  paths_.clear();
  all_ = settings;
  lookahead_ = settings.delay;
}

void Network::set_spine_path(size_t number, PathSettings settings) {
  spine_paths_[number] = settings;
}

double Network::uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

std::optional<Nanos> Network::travel(const PathSettings& path, Nanos now, bool safe, Nanos* last) {
  if (path.loss > 0 && !safe && uniform() < path.loss) {
    ++lost_;
    return std::nullopt;
  }
  Nanos there = now + path.delay;
  if (path.jitter > 0) {
    there += std::llround(uniform() * static_cast<double>(path.jitter));
    there = std::max(there, *last);
    *last = there;
  }
  return there;
}

size_t Network::next_link(const Parcel& parcel) const {
  const bool crosses = spines_ > 0 && (parcel.source ^ parcel.destination) % 2 != 0;
  return crosses ? spine(parcel.flow % spines_, parcel.source % 2) : port(parcel.destination);
}

bool Network::enter(const Parcel& parcel, Nanos now) {
  auto left = links_[egress(parcel.source)].send(now, parcel.bytes);
  if (!left) return false;
  const size_t pair = parcel.source * hosts_ + parcel.destination;
  const PathSettings& way = path(pair);
  if (way.jitter > 0 && last_.empty()) last_.resize(hosts_ * hosts_);
  auto there = travel(way, *left, parcel.safe, way.jitter > 0 ? &last_[pair] : nullptr);
  if (!there) return false;
  arrivals_.push(egress(parcel.source), *there,
                 {parcel, static_cast<uint32_t>(next_link(parcel))});
  return true;
}

void Network::advance(Nanos now, std::vector<uint32_t>* dropped) {
  while (!arrivals_.empty() && arrivals_.time() <= now + lookahead_) {
    const Nanos time = arrivals_.time();
    const Arrival event = arrivals_.top();
    arrivals_.pop();
    auto left = links_[event.link].send(time, event.parcel.bytes);
    if (left && event.link >= 2 * hosts_) {
      const size_t direction = event.link - 2 * hosts_;
      auto there = travel(spine_paths_[direction / 2], *left, event.parcel.safe,
                          &spine_last_[direction]);
      if (there) {
        arrivals_.push(event.link, *there,
                       {event.parcel, static_cast<uint32_t>(port(event.parcel.destination))});
        continue;
      }
      left.reset();
    }
    if (left) {
      deliveries_.push(event.parcel.destination, *left, event.parcel);
    } else {
      dropped->push_back(event.parcel.buffer);
    }
  }
}

std::optional<Network::Delivery> Network::deliver(Nanos now) {
  if (deliveries_.empty() || deliveries_.time() > now) return std::nullopt;
  Delivery delivery{deliveries_.top(), deliveries_.time()};
  deliveries_.pop();
  return delivery;
}

Nanos Network::next() const {
  // Packets reach their last link before they are delivered.
  Nanos soonest = deliveries_.empty() ? kNever : deliveries_.time();
  return arrivals_.empty() ? soonest : std::min(soonest, arrivals_.time());
}

Nanos Network::transit(const Parcel& parcel) const {
  Nanos time = path(parcel.source * hosts_ + parcel.destination).delay;
  time += links_[egress(parcel.source)].duration(parcel.bytes);
  time += links_[port(parcel.destination)].duration(parcel.bytes);
  const size_t between = next_link(parcel);
  if (between < 2 * hosts_) return time;
  return time + links_[between].duration(parcel.bytes) +
         spine_paths_[(between - 2 * hosts_) / 2].delay;
}

}  // namespace herring::transport::virtual_time
