#include "virtual/streams.h"

#include <algorithm>

namespace herring::transport::virtual_time {

namespace {

constexpr uint32_t kRetries = 15;  // timeouts in a row until a connection is given up

// The finalizer of SplitMix64, so that consecutive values take unrelated paths.
uint32_t hash(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint32_t>((value ^ (value >> 31)) >> 32);
}

void add(StreamCounters* sum, const SenderCounters& one, uint64_t acks) {
  sum->packets += one.packets;
  sum->acks += acks;
  sum->retransmissions += one.retransmissions;
  sum->spurious += one.spurious;
  sum->probes += one.probes;
  sum->timeouts += one.timeouts;
}

}  // namespace

Streams::Streams(Network& network, StreamSettings settings, StreamEvents& events)
    : network_(network), settings_(settings), events_(events) {}

uint32_t Streams::connect(uint16_t host_a, uint16_t host_b, Nanos now) {
  const bool local = host_a == host_b;
  Nanos rtt = 2 * settings_.loopback_delay;
  if (!local) {
    Parcel empty{.bytes = settings_.link_header + settings_.header_bytes,
                 .source = host_a,
                 .destination = host_b};
    rtt = network_.transit(empty);
    std::swap(empty.source, empty.destination);
    rtt += network_.transit(empty);
  }
  const End end{Sender(settings_, rtt, now), Receiver(settings_, settings_.ack_delay(rtt)),
                host_a};
  connections_.push_back({kNever, {kNever, kNever}, local, {end, end}});
  connections_.back().ends[1].host = host_b;
  return static_cast<uint32_t>(connections_.size() - 1);
}

size_t Streams::write(uint32_t connection, int side, size_t bytes, Nanos now) {
  End& from = end(connection, side);
  if (from.gone || from.sender.finishing()) return 0;
  const size_t taken = from.sender.write(bytes);
  from.wants_room |= taken < bytes;
  if (taken > 0) send_written(connection, side, false, now);
  return taken;
}

void Streams::finish(uint32_t connection, int side, Nanos now) {
  End& from = end(connection, side);
  if (from.gone || from.sender.finishing()) return;
  from.sender.finish();
  send_written(connection, side, true, now);
}

void Streams::send_written(uint32_t connection, int side, bool last, Nanos now) {
  if (connections_[connection].local) {
    locals_.push_back({now + settings_.loopback_delay, end(connection, side).sender.written(),
                       connection, static_cast<uint8_t>(side), last});
  } else {
    pump(connection, side, now);
    schedule(connection, side);
  }
}

void Streams::abort(uint32_t connection, int side, Nanos now) {
  End& from = end(connection, side);
  if (from.gone) return;
  from.gone = true;
  from.sender.stop();
  if (connections_[connection].local) {
    locals_.push_back({now + settings_.loopback_delay, 0, connection, static_cast<uint8_t>(side),
                       true});
  } else {
    send(connection, side, nullptr, true, now);
  }
}

PathInfo Streams::path_info(uint32_t connection, int side, Nanos now) const {
  return end(connection, side).sender.path_info(now);
}

uint32_t Streams::window(uint32_t connection, int side) const {
  return end(connection, side).sender.congestion().window();
}

StreamCounters Streams::counters(uint32_t connection) const {
  StreamCounters sum;
  for (const End& one : connections_[connection].ends) {
    add(&sum, one.sender.counters(), one.acks);
  }
  return sum;
}

StreamCounters Streams::counters() const {
  StreamCounters sum;
  for (const Connection& connection : connections_) {
    for (const End& one : connection.ends) add(&sum, one.sender.counters(), one.acks);
  }
  return sum;
}

Nanos Streams::next() const {
  Nanos soonest = network_.next();
  if (!due_.empty()) soonest = std::min(soonest, due_.top().time);
  if (!locals_.empty()) soonest = std::min(soonest, locals_.front().time);
  return soonest;
}

void Streams::advance(Nanos now) {
  for (Nanos time; (time = next()) <= now && time != kNever;) {
    if (network_.next() == time) {
      network_.advance(time, &dropped_);
      free_.insert(free_.end(), dropped_.begin(), dropped_.end());
      dropped_.clear();
      while (auto delivery = network_.deliver(time)) {
        if (const Parcel* follows = network_.upcoming()) prefetch(follows->buffer);
        arrive(delivery->parcel.buffer, time);
      }
    } else if (!locals_.empty() && locals_.front().time == time) {
      const Local local = locals_.front();
      locals_.pop_front();
      arrive_locally(local, time);
    } else {
      const uint32_t id = static_cast<uint32_t>(due_.top().tag);
      due_.pop();
      if (connections_[id].due == time) on_due(id, time);
    }
  }
}

// Sends all packets that may be sent now.
void Streams::pump(uint32_t id, int side, Nanos now) {
  Sender& sender = end(id, side).sender;
  Segment segment;
  while (sender.next(now, &segment)) send(id, side, &segment, false, now);
  sender.sent(now);
}

void Streams::send(uint32_t id, int side, const Segment* segment, bool reset, Nanos now) {
  End& from = end(id, side);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(packets_.size()));
    packets_.emplace_back();
    owners_.push_back(0);
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  Packet& packet = packets_[place];
  packet.sent = now;
  packet.connection = id;
  packet.from = static_cast<uint8_t>(side);
  owners_[place] = 2 * id + static_cast<uint32_t>(1 - side);
  packet.data = segment != nullptr;
  packet.reset = reset;
  uint32_t bytes = settings_.header_bytes;
  if (segment) {
    packet.number = segment->number;
    packet.end = segment->end;
    packet.push = segment->push || segment->last;
    packet.last = segment->last;
    bytes += segment->bytes;
  } else {
    ++from.acks;
  }
  from.receiver.fill(&packet.ack);
  from.receiver.acknowledged(packet.data, now);
  const uint32_t runs = packet.ack.count + packet.ack.duplicate;
  if (runs > 0) bytes = std::min(settings_.mtu, bytes + 4 + 8 * runs);
  const uint64_t path = 2 * uint64_t{id} + packet.from;
  const Parcel parcel{.buffer = place,
                      .bytes = settings_.link_header + bytes,
                      .source = from.host,
                      .destination = end(id, 1 - side).host,
                      .flow = hash(settings_.spread_packets ? (++sent_ << 32) + path : path)};
  if (!network_.enter(parcel, now)) free_.push_back(place);
}

// Prefetches the connection of a packet: with thousands of connections, most are not in a cache.
void Streams::prefetch(uint32_t place) const {
  constexpr size_t kLine = 64;
  auto fetch = [](const void* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += kLine) {
      __builtin_prefetch(static_cast<const char*>(from) + at);
    }
  };
  fetch(&packets_[place], sizeof(Packet));
  const Connection& connection = connections_[owners_[place] / 2];
  fetch(&connection, kLine);
  fetch(&connection.ends[owners_[place] % 2], sizeof(End));
}

void Streams::arrive(uint32_t place, Nanos now) {
  const Packet packet = packets_[place];
  free_.push_back(place);
  const uint32_t id = packet.connection;
  const int side = 1 - packet.from;
  End& to = end(id, side);
  if (to.gone) {
    if (!packet.reset) send(id, side, nullptr, true, now);
    return;
  }
  if (packet.reset) return lose(id, side, now);
  const uint64_t acknowledged = to.sender.acknowledged(), received = to.receiver.total();
  to.sender.on_ack(packet.ack, now);
  if (packet.data) {
    if (packet.last) to.receiver.set_all(packet.number + 1);
    if (to.receiver.on_packet(packet.number, packet.push, packet.sent, now)) {
      // More packets than this one are in order if it filled a hole.
      const uint64_t packets = to.receiver.packets();
      to.receiver.set_total(packets == packet.number + 1
                                ? packet.end
                                : end(id, 1 - side).sender.end_of(packets - 1));
    }
  }
  pump(id, side, now);
  if (to.receiver.wants_ack(now)) send(id, side, nullptr, false, now);
  schedule(id, side);
  tell(id, side, acknowledged, received, now);
  if (!to.gone && to.receiver.on_read()) {
    send(id, side, nullptr, false, now);
    schedule(id, side);
  }
}

void Streams::arrive_locally(const Local& local, Nanos now) {
  const uint32_t id = local.connection;
  End& from = end(id, local.from);
  End& to = end(id, 1 - local.from);
  if (to.gone) return;
  if (from.gone && local.last) return lose(id, 1 - local.from, now);
  const uint64_t before = to.receiver.total();
  const uint64_t acknowledged = from.sender.acknowledged();
  to.receiver.set_total(local.total);
  if (local.last) to.receiver.set_all(to.receiver.packets());
  from.sender.hand_over(std::max(acknowledged, local.total), now);
  tell(id, 1 - local.from, to.sender.acknowledged(), before, now);
  tell(id, local.from, acknowledged, from.receiver.total(), now);
}

// Calls the events of `side`, given its counts before.
void Streams::tell(uint32_t id, int side, uint64_t acknowledged, uint64_t received, Nanos now) {
  End& one = end(id, side);
  if (!one.gone && one.sender.acknowledged() > acknowledged) {
    events_.on_acknowledged(id, side, one.sender.acknowledged(), now);
    if (!one.gone && one.wants_room && one.sender.buffered() <= settings_.send_buffer / 3 * 2) {
      one.wants_room = false;
      events_.on_writable(id, side, now);
    }
  }
  if (!one.gone && one.receiver.total() > received) {
    events_.on_received(id, side, one.receiver.total(), now);
  }
  if (!one.gone && one.receiver.has_all() && !one.told_end) {
    one.told_end = true;
    events_.on_finished(id, side, now);
  }
}

// Tells `side` that the other side is gone.
void Streams::lose(uint32_t id, int side, Nanos now) {
  End& one = end(id, side);
  one.gone = true;
  one.sender.stop();
  events_.on_aborted(id, side, now);
}

// Updates the heap. Must be called after every change of a deadline of `side`.
void Streams::schedule(uint32_t id, int side) {
  Connection& connection = connections_[id];
  const End& one = connection.ends[static_cast<size_t>(side)];
  Nanos& due = connection.ends_due[static_cast<size_t>(side)];
  due = one.gone ? kNever : std::min(one.sender.deadline(), one.receiver.deadline());
  // If the deadline became later, on_due() sets it when the earlier entry comes.
  if (due >= connection.due) return;
  connection.due = due;
  due_.push({due, id});
}

void Streams::on_due(uint32_t id, Nanos now) {
  connections_[id].due = kNever;
  for (int side = 0; side < 2; ++side) {
    End& one = end(id, side);
    if (!one.gone && one.sender.deadline() <= now) {
      one.sender.on_deadline(now);
      if (one.sender.timeouts() > kRetries) {
        lose(id, side, now);
      } else {
        pump(id, side, now);
      }
    }
    if (!one.gone && one.receiver.deadline() <= now) {
      one.receiver.on_deadline();
      if (one.receiver.wants_ack(now)) send(id, side, nullptr, false, now);
    }
    schedule(id, side);
  }
}

}  // namespace herring::transport::virtual_time
