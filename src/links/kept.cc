#include "links/kept.h"

#include <algorithm>
#include <cstring>

#include "base/streams.h"

namespace herring::links {
namespace {

constexpr uint32_t kChunkSegments = 16;

// Returns the number of segments whose results fit into a chunk. They take at most four times the
// bytes of contributions.
uint32_t chunk_segments(const Transfer& transfer) {
  const size_t whole = result_bytes(kPackBytes, transfer.open.dtype);
  return whole <= kPackBytes ? kChunkSegments
                             : kChunkSegments / (whole <= 2 * kPackBytes ? 2 : 4);
}

}  // namespace

size_t Kept::chunk_bytes() const { return kChunkSegments * options_.segment_bytes; }

Kept::SettlingId Kept::settling_id(const Transfer& transfer, uint32_t run) {
  const StreamId id = stream_id(transfer, run);
  return {id, id.home == 0 ? 0 : transfer.key.buffer};
}

void Kept::begin(Transfer& transfer, uint32_t run) {
  if (!route_.keeps_results(transfer)) return;
  RunRoute& way = transfer.ways[run];
  Settling& settling = settling_[way.server][settling_id(transfer, run)];
  way.place = settling.pushed;
  const auto& answered = transfer.answered[run];
  settling.pushed += static_cast<size_t>(std::ranges::count(answered, false));
  settling.runs.push_back({transfer.key, run});
}

Transfer* Kept::known(const Key& key) {
  Transfer* const moves = sender_.in_flight(key);
  return moves != nullptr ? moves : find(key);
}

bool Kept::any(uint32_t group) const {
  return std::ranges::any_of(kept_, [&](const auto& one) { return one.first.group == group; });
}

std::vector<Key> Kept::keys() const {
  std::vector<Key> keys;
  for (const auto& [key, transfer] : kept_) keys.push_back(key);
  return keys;
}

// Returns whether the run still has results that are kept in this stream's order.
bool Kept::settles(uint32_t server, const StreamId& id, const Settling::Run& run) {
  const Transfer* const transfer = known(run.key);
  return transfer != nullptr && transfer->ways[run.run].server == server &&
         stream_id(*transfer, run.run) == id;
}

bool Kept::nothing_settles(uint32_t server, const StreamId& id, const Settling& settling) {
  return std::ranges::none_of(settling.runs, [&](const Settling::Run& run) {
    return settles(server, id, run);
  });
}

// Forgets the streams for which `which(server, id, settling)` is true.
template <typename Which>
void Kept::forget_settling(const Which& which) {
  for (uint32_t server = 0; server < settling_.size(); ++server) {
    std::erase_if(settling_[server],
                  [&](const auto& one) { return which(server, one.first, one.second); });
  }
}

void Kept::forget_streams() {
  forget_settling([this](uint32_t server, const SettlingId& id, const Settling& settling) {
    return nothing_settles(server, id, settling);
  });
}

Piece Kept::next_piece(Item& item, size_t most) {
  const Transfer& transfer = *item.transfer;
  const plan::SegmentRun& run = transfer.runs[item.run];
  const auto& answered = transfer.answered[item.run];
  const auto& chunks = transfer.ways[item.run].chunks;
  const uint32_t end = run.first + run.count, of_chunk = chunk_segments(transfer);
  const auto has = [&](uint32_t segment) { return answered[segment - run.first]; };
  const auto gone = [&](uint32_t segment) {
    const uint32_t chunk = (segment - run.first) / of_chunk;
    return has(segment) && (chunk >= chunks.size() || chunks[chunk] == nullptr);
  };
  while (item.next < end && gone(item.next)) ++item.next;
  Piece piece;
  if (item.next == end) return piece;
  piece.gives = has(item.next);
  while (piece.count < most && item.next + piece.count < end) {
    const auto segment = static_cast<uint32_t>(item.next + piece.count);
    if (has(segment) != piece.gives || gone(segment)) break;
    ++piece.count;
  }
  return piece;
}

size_t Kept::in_frame(const Transfer& transfer, size_t count) const {
  const size_t segment = options_.segment_bytes;
  return std::max<size_t>(1, count * segment / result_bytes(segment, transfer.open.dtype));
}

// Calls `action(chunk, at, range)` for the pieces of segments [first, first + count) of the shard:
// the place of their results in a chunk, and among all results. A chunk may be null.
template <typename Action>
void Kept::for_each_piece(Transfer& transfer, uint32_t r, uint32_t first, size_t count,
                          const Action& action) {
  const plan::SegmentRun& run = transfer.runs[r];
  const plan::Shard& shard = transfer.shards[run.shard];
  auto& chunks = transfer.ways[r].chunks;
  const uint32_t of_chunk = chunk_segments(transfer);
  chunks.resize((run.count + of_chunk - 1) / of_chunk, nullptr);
  for (size_t at = first - run.first, end = at + count; at < end;) {
    const size_t some = std::min(end - at, of_chunk - at % of_chunk);
    const size_t begin = (run.first + at) * options_.segment_bytes;
    const size_t bytes = std::min(some * options_.segment_bytes, shard.bytes - begin);
    const size_t before = at % of_chunk * options_.segment_bytes;
    action(chunks[at / of_chunk], of_results(transfer, {before, bytes}).offset,
           of_results(transfer, {shard.offset + begin, bytes}));
    at += some;
  }
}

void Kept::place_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count,
                         transport::Destinations& out) {
  for_each_piece(transfer, run, first, count, [&](char*& chunk, size_t at, plan::Range range) {
    if (chunk == nullptr) chunk = chunks_.take();
    out.add(chunk + at, range.bytes);
  });
}

void Kept::copy_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count) {
  for_each_piece(transfer, run, first, count, [&](char* chunk, size_t at, plan::Range range) {
    std::memcpy(transfer.receive + range.offset, chunk + at, range.bytes);
  });
}

std::string Kept::results(Transfer& transfer, uint32_t run, uint32_t first, size_t count) {
  std::string bytes;
  for_each_piece(transfer, run, first, count, [&](const char* chunk, size_t at, plan::Range range) {
    bytes.append(chunk + at, range.bytes);
  });
  return bytes;
}

// Frees the chunks of a run of which all places are settled.
void Kept::free_chunks(Transfer& transfer, uint32_t r, uint64_t settled) {
  RunRoute& way = transfer.ways[r];
  if (!way.elsewhere.empty()) return;
  const uint32_t count = transfer.runs[r].count, of_chunk = chunk_segments(transfer);
  for (uint32_t chunk = 0; chunk < way.chunks.size(); ++chunk) {
    const uint32_t end = std::min((chunk + 1) * of_chunk, count);
    if (way.place + end > settled) return;
    if (way.chunks[chunk] == nullptr) continue;
    const auto first = transfer.answered[r].begin() + chunk * of_chunk;
    if (std::find(first, transfer.answered[r].begin() + end, false) !=
        transfer.answered[r].begin() + end) {
      return;
    }
    chunks_.give(std::exchange(way.chunks[chunk], nullptr));
  }
}

void Kept::keep(Transfer& transfer) {
  if (transfer.ways.empty()) return;
  if (!route_.keeps_results(transfer) || transfer.called_off) return release(transfer);
  auto kept = std::make_unique<Transfer>(transfer);
  for (RunRoute& way : transfer.ways) way.chunks.clear();
  note_over(transfer);
  kept->send = nullptr;
  kept->receive = nullptr;
  kept->owner = nullptr;
  kept->mark = {};
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    // What is still to be given from the old object is given from the new one.
    if (transfer.ways[run].again) sender_.requeue(transfer, run, kept.get());
  }
  kept_[transfer.key] = std::move(kept);
}

// No other worker can lack the results.
void Kept::release(Transfer& transfer) {
  for (RunRoute& way : transfer.ways) {
    way.settled = true;
    release_settled(way);
  }
}

// Where part of a result may still come, the memory stays until then.
void Kept::release_settled(RunRoute& way) {
  if (!way.settled || !way.elsewhere.empty()) return;
  for (char*& chunk : way.chunks) {
    if (chunk != nullptr) chunks_.give(std::exchange(chunk, nullptr));
  }
}

void Kept::forget(const Key& key) {
  const auto found = kept_.find(key);
  if (found == kept_.end()) return;
  Transfer& transfer = *found->second;
  const uint32_t group = key.group;
  for (RunRoute& way : transfer.ways) release_settled(way);
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    const RunRoute& way = transfer.ways[run];
    if (transfer.on_the_way[run] > 0 || !way.elsewhere.empty()) return;
    if (std::ranges::any_of(way.chunks, [](const char* chunk) { return chunk != nullptr; })) return;
  }
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    sender_.requeue(transfer, run, nullptr);
  }
  kept_.erase(found);
  sender_.forgotten(group);
}

void Kept::forget_all() {
  for (const Key& key : keys()) forget(key);
}

void Kept::remove_group(uint32_t group) {
  forget_settling(
      [&](uint32_t, const SettlingId& id, const Settling&) { return id.group == group; });
  std::erase_if(reigns_, [&](const auto& one) { return one.first.first == group; });
  std::erase_if(over_, [&](const auto& one) { return one.first.first == group; });
  std::vector<Key> all = keys();
  std::erase_if(all, [group](const Key& key) { return key.group != group; });
  forget_settled(all);
}

void Kept::abandon(uint32_t group) {
  forget_settling(
      [&](uint32_t, const SettlingId& id, const Settling&) { return id.group == group; });
  for (const Key& key : keys()) {
    if (key.group != group) continue;
    Transfer& transfer = *kept_[key];
    transfer.on_the_way.assign(transfer.on_the_way.size(), 0);
    for (RunRoute& way : transfer.ways) way.elsewhere.clear();
    release(transfer);
    forget(key);
  }
}

void Kept::clear() {
  reigns_.clear();
  over_.clear();
  kept_.clear();
}

// The result of a round is here, so all ranks have those of earlier rounds.
void Kept::settle_rounds_before(const Key& key) {
  std::vector<Key> settled;
  for (auto one = kept_.lower_bound({key.stream}); one != kept_.end(); ++one) {
    if (one->first.stream != key.stream || one->first.round >= key.round) break;
    if (one->first.group == key.group) settled.push_back(one->first);
  }
  forget_settled(settled);
}

void Kept::forget_settled(const std::vector<Key>& keys) {
  for (const Key& key : keys) {
    release(*kept_[key]);
    forget(key);
  }
}

// Returns the group and the home for which the all-reduces of a stream were announced; nothing for
// other streams.
std::optional<Kept::Home> Kept::home_of_calls(uint32_t group, uint32_t stream) const {
  const auto servers = static_cast<uint32_t>(settling_.size());
  if (!options_.failover || !is_of_calls(stream, servers)) return std::nullopt;
  const uint32_t home = herring::home_of(stream, servers);
  return home < servers ? std::optional(Home{group, home}) : std::nullopt;
}

void Kept::begin_in_reign(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (home) ++reigns_[*home].in_flight[key.stream];
}

bool Kept::end_in_reign(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (!home) return false;
  auto& in_flight = reigns_[*home].in_flight;
  const auto found = in_flight.find(key.stream);
  if (--found->second > 0) return false;
  in_flight.erase(found);
  return !in_flight.empty();
}

bool Kept::waits_for_earlier_reign(const StreamId& id) const {
  const auto home = home_of_calls(id.group, id.stream);
  if (!home) return false;
  const auto found = reigns_.find(*home);
  if (found == reigns_.end() || found->second.in_flight.empty()) return false;
  return found->second.in_flight.begin()->first < id.stream;
}

// A result of a reign is here, so all ranks have those of earlier reigns.
void Kept::settle_reigns_before(const Key& key) {
  const auto home = home_of_calls(key.group, key.stream);
  if (!home || reigns_[*home].settled >= key.stream) return;
  reigns_[*home].settled = key.stream;
  const auto is_earlier = [&](uint32_t group, uint32_t stream) {
    return stream < key.stream && home_of_calls(group, stream) == home;
  };
  std::vector<Key> settled;
  for (const auto& [one, transfer] : kept_) {
    if (is_earlier(one.group, one.stream)) settled.push_back(one);
  }
  forget_settled(settled);
  forget_settling([&](uint32_t, const SettlingId& id, const Settling&) {
    return is_earlier(id.group, id.stream);
  });
}

void Kept::settle(const Transfer& transfer, uint32_t run, uint32_t segment) {
  if (transfer.lockstep && !kept_.empty()) settle_rounds_before(transfer.key);
  if (!route_.window_settles(transfer.key.group)) return;
  if (transfer.key.stream >= kReignStreams) settle_reigns_before(transfer.key);
  const RunRoute& way = transfer.ways[run];
  auto& of_server = settling_[way.server];
  const auto found = of_server.find(settling_id(transfer, run));
  if (found == of_server.end()) return;
  Settling& settling = found->second;
  // A run that is pushed again contributes to some of its segments only.
  const uint64_t place = way.place + (way.again ? 0 : segment - transfer.runs[run].first);
  settling.answered = std::max(settling.answered, place + 1);
  const size_t window = size_t{options_.credit_max} + 1;  // what a worker may have outstanding
  if (settling.answered <= window) return;
  const uint64_t settled = settling.answered - window;
  while (!settling.runs.empty()) {
    const Settling::Run front = settling.runs.front();
    const bool here = settles(way.server, found->first, front);
    if (here) {
      Transfer* const one = known(front.key);
      free_chunks(*one, front.run, settled);
      if (!one->ways[front.run].elsewhere.empty()) break;
      if (one->ways[front.run].place + one->runs[front.run].count > settled) break;
      const bool answered = std::ranges::find(one->answered[front.run], false) ==
                            one->answered[front.run].end();
      if (!answered) break;
    }
    settling.runs.pop_front();
    if (here) forget(front.key);
  }
}

void Kept::note_over(const Transfer& transfer) {
  uint64_t& upto = over_[{transfer.key.group, transfer.key.stream}];
  upto = std::max(upto, wire::settled_at(transfer.key));
}

void Kept::settle(const StreamProgress& all) {
  std::vector<Key> settled;
  for (auto one = kept_.lower_bound({all.stream}); one != kept_.end(); ++one) {
    const Key& key = one->first;
    if (key.stream != all.stream) break;
    if (key.group == all.group && wire::settled_at(key) <= all.upto) settled.push_back(key);
  }
  forget_settled(settled);
  const auto found = over_.find({all.group, all.stream});
  if (found == over_.end() || found->second > all.upto) return;
  over_.erase(found);
  forget_settling([&](uint32_t server, const SettlingId& id, const Settling& settling) {
    return id.group == all.group && id.stream == all.stream &&
           nothing_settles(server, id, settling);
  });
}

}  // namespace herring::links
