#include "transport/virtual/network.h"

#include <algorithm>
#include <cmath>

namespace herring::transport::virtual_time {

std::optional<Nanos> Link::send(Nanos now, uint32_t bytes) {
  Nanos start = std::max(now, free_);
  if (settings_.bits_per_second > 0) {
    if (start - now > settings_.queue) {
      ++counters_.drops;
      return std::nullopt;
    }
    free_ = start + std::llround(bytes * 8e9 / settings_.bits_per_second);
  } else {
    free_ = start;  // behind what was accepted while there was a limit
  }
  ++counters_.packets;
  counters_.bytes += bytes;
  return free_;
}

Network::Network(size_t hosts, size_t spines, uint64_t seed)
    : hosts_(hosts),
      spines_(spines),
      links_(2 * hosts + 2 * spines),
      paths_(hosts * hosts),
      last_(hosts * hosts),
      spine_paths_(spines),
      spine_last_(2 * spines),
      random_(seed) {}

void Network::set_path(size_t source, size_t destination, PathSettings settings) {
  paths_[source * hosts_ + destination] = settings;
  lookahead_ = std::min(lookahead_, settings.delay);
}

void Network::set_all_paths(PathSettings settings) {
  std::fill(paths_.begin(), paths_.end(), settings);
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

bool Network::enter(const Parcel& parcel, Nanos now) {
  auto left = links_[egress(parcel.source)].send(now, parcel.bytes);
  if (!left) return false;
  size_t pair = parcel.source * hosts_ + parcel.destination;
  auto there = travel(paths_[pair], *left, parcel.safe, &last_[pair]);
  if (!there) return false;
  size_t next = port(parcel.destination);
  if (spines_ > 0 && (parcel.source ^ parcel.destination) % 2 != 0) {
    next = spine(parcel.flow % spines_, parcel.source % 2);
  }
  arrivals_.push({*there, order_++, parcel, static_cast<uint32_t>(next)});
  return true;
}

void Network::advance(Nanos now, std::vector<uint32_t>* dropped) {
  while (!arrivals_.empty() && arrivals_.top().time <= now + lookahead_) {
    Event event = arrivals_.top();
    arrivals_.pop();
    auto left = links_[event.link].send(event.time, event.parcel.bytes);
    if (left && event.link >= 2 * hosts_) {
      size_t direction = event.link - 2 * hosts_;
      auto there = travel(spine_paths_[direction / 2], *left, event.parcel.safe,
                          &spine_last_[direction]);
      if (there) {
        uint32_t last = static_cast<uint32_t>(port(event.parcel.destination));
        arrivals_.push({*there, order_++, event.parcel, last});
        continue;
      }
      left.reset();
    }
    if (left) {
      deliveries_.push({*left, order_++, event.parcel, 0});
    } else {
      dropped->push_back(event.parcel.buffer);
    }
  }
}

std::optional<Network::Delivery> Network::deliver(Nanos now) {
  if (deliveries_.empty() || deliveries_.top().time > now) return std::nullopt;
  Delivery delivery{deliveries_.top().parcel, deliveries_.top().time};
  deliveries_.pop();
  return delivery;
}

Nanos Network::next() const {
  // Nothing is delivered before it has come to its last link.
  Nanos soonest = deliveries_.empty() ? kNever : deliveries_.top().time;
  return arrivals_.empty() ? soonest : std::min(soonest, arrivals_.top().time);
}

}  // namespace herring::transport::virtual_time
