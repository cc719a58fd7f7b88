// The part of Links that lets a job go on when a server dies.
//
// The results of a run are received into memory of their own, so its contributions stay until they
// are answered, and then copied to their place. They are kept until no other worker can lack them
// (Settling), also when the transfer is over (`kept_`). When the set of servers changes, each rank
// acts alone. It pushes what another server now has to do, in the order of the keys: its
// contribution to a segment whose result it lacks, or else the result. A server that gets a result
// answers everybody with that. Otherwise it gets all contributions and sums them again. Both give
// the same bits.
//
// All-reduces that are announced in a later reign have streams of their own, and no later result in
// a stream says what others lack of the streams before it. So a rank pushes in a reign only when it
// has all results of earlier ones. All ranks hear of the calls of a reign before those of later
// ones, so no rank waits for another in a circle. The first result in a reign then proves that all
// ranks have all results of earlier reigns.
#include <algorithm>
#include <cstring>

#include "links/links.h"

namespace herring::links {
namespace {

constexpr uint32_t kChunkSegments = 16;
// Attempts that are not pushed yet may still name one of the latest versions.
constexpr size_t kMostVersions = 256;

}  // namespace

size_t Links::chunk_bytes(const LinksOptions& options) {
  return kChunkSegments * options.segment_bytes;
}

Links::StreamId Links::stream_id(const Transfer& transfer, uint32_t run) const {
  const Key& key = transfer.key;
  if (transfer.ways.empty() || transfer.ways[run].since == 0) {
    return {key.group, key.stream, 0, 0};
  }
  return {key.group, key.stream, home_of(transfer, run) + 1, transfer.ways[run].since};
}

Links::SettlingId Links::settling_id(const Transfer& transfer, uint32_t run) const {
  const StreamId id = stream_id(transfer, run);
  return {id, id.home == 0 ? 0 : transfer.key.buffer};
}

// What a worker lacks must be the last that it has pushed, so it must have one connection to each
// server. And the same rank of every other node must push what this one pushes.
bool Links::window_settles(uint32_t group) const {
  const Pace& pace = group == 0 ? world_ : groups_.find(group)->second;
  return pace.even && !options_.several_flows;
}

// Returns whether its results can be given to others: all of its contributors get all results, and
// it is known when these are not needed any more. A transfer that is over has no owner and no place
// for results, but still has chunks of them.
bool Links::keeps_results(const Transfer& transfer) const {
  if (transfer.receive == nullptr && transfer.owner != nullptr) return false;
  if (transfer.lockstep) return true;
  return transfer.open.participants == wire::Participants::kNodes &&
         window_settles(transfer.key.group);
}

const std::vector<uint32_t>& Links::owners_of(uint32_t group) const {
  return group == 0 ? all_servers_ : owners_.find(group)->second;
}

std::vector<Key> Links::kept() const {
  std::vector<Key> keys;
  for (const auto& [key, transfer] : kept_) keys.push_back(key);
  return keys;
}

Transfer* Links::find(const Key& key) {
  if (const auto found = transfers_.find(key); found != transfers_.end()) {
    return found->second.transfer;
  }
  const auto kept = kept_.find(key);
  return kept == kept_.end() ? nullptr : kept->second.get();
}

bool Links::can_move() const {
  return std::ranges::all_of(transfers_, [this](const auto& one) {
    const Transfer& transfer = *one.second.transfer;
    return keeps_results(transfer) || transfer.attempt || transfer.called_off;
  });
}

// Returns the set of servers that has the transfer's runs. If nobody keeps the results, the runs
// must not move when a server comes back: some ranks may have results that others lack. Either all
// ranks use the same version of the set, or nothing of it is in flight when a server is lost,
// because that would end the job.
const control::ServerSet& Links::set_of(const Transfer& transfer) const {
  if (keeps_results(transfer)) return serving_;
  return std::prev(versions_.upper_bound(transfer.attempt.value_or(lost_in_)))->second;
}

// Returns who has the run now; the epoch is 0 if that is its home.
control::ServerSet::StandIn Links::stand_in(const Transfer& transfer, uint32_t run) const {
  const uint32_t home = home_of(transfer, run);
  auto now = set_of(transfer).stand_in(home, transfer.key.buffer, owners_of(transfer.key.group));
  if (now.server == home) now.epoch = 0;
  return now;
}

// Returns whether the server of a run was lost after the attempt had begun. Another one may be in
// its place.
bool Links::is_gone(const Transfer& transfer, uint32_t run) const {
  return transfer.attempt && serving_.since[transfer.ways[run].server] > *transfer.attempt;
}

void Links::choose_way(Transfer& transfer, uint32_t run) {
  Way& way = transfer.ways[run];
  const control::ServerSet::StandIn now = stand_in(transfer, run);
  way.server = now.server;
  way.since = now.epoch;
  if (!keeps_results(transfer)) return;
  Settling& settling = links_[way.server].settling[settling_id(transfer, run)];
  way.place = settling.pushed;
  const auto& answered = transfer.answered[run];
  settling.pushed += static_cast<size_t>(std::ranges::count(answered, false));
  settling.runs.push_back({transfer.key, run});
}

// Moves a run whose server has changed.
void Links::move(Transfer& transfer, uint32_t run) {
  Way& way = transfer.ways[run];
  std::erase_if(way.elsewhere, [this](const auto& one) { return !serving_.has(one.server); });
  if (transfer.attempt) {
    if (is_gone(transfer, run)) lose(transfer, run);
    return;
  }
  if (transfer.called_off) {
    // It only waits for answers. Those of a server that is gone never come.
    if (!serving_.has(way.server)) {
      transfer.segments_left -= std::exchange(transfer.on_the_way[run], 0);
    }
    return;
  }
  if (const auto now = stand_in(transfer, run);
      now.server == way.server && now.epoch == way.since) {
    return;
  }
  requeue(transfer, run, nullptr);
  const uint32_t left = std::exchange(transfer.on_the_way[run], 0);
  if (left > 0 && serving_.has(way.server)) {
    way.elsewhere.push_back({way.server, way.since, left});
  }
  choose_way(transfer, run);
  way.again = true;
  transfer.opened[run] = 0;
  if (Item item{&transfer, run, transfer.runs[run].first}; next_piece(item, 1).count > 0) {
    enqueue(transfer, run, 0);
  }
}

// Queues the run at the end of its stream.
void Links::enqueue(Transfer& transfer, uint32_t run, uint64_t number) {
  const uint32_t server = server_of(transfer, run);
  const StreamId id = stream_id(transfer, run);
  Stream& stream = stream_of(links_[server], id, pace_of(id.group));
  stream.queue.push({&transfer, run, transfer.runs[run].first, number});
  if (balances_ && stream.queue.size() == 1) note_position(server, id, stream);
}

void Links::serve(const control::ServerSet& set) {
  const control::ServerSet before = serving_;
  serving_.adopt(set);
  for (uint32_t server = 0; server < links_.size(); ++server) {
    if (!before.has(server) || set.has(server)) continue;
    lost_in_ = set.epoch;
    drop_link(server);
  }
  versions_[set.epoch] = serving_;
  std::vector<Transfer*> moving;
  for (auto& [key, pushed] : transfers_) moving.push_back(pushed.transfer);
  for (auto& [key, transfer] : kept_) moving.push_back(transfer.get());
  std::ranges::sort(moving, {}, [](const Transfer* one) { return one->key; });
  for (Transfer* transfer : moving) {
    for (uint32_t run = 0; run < transfer->runs.size(); ++run) move(*transfer, run);
  }
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    if (is_over(*pushed.transfer)) ended.push_back(pushed.transfer);
  }
  for (Transfer* transfer : ended) keep(*transfer);
  end(ended);
  // What was on the way to a server that is gone does not come back.
  for (const Key& key : kept()) forget_kept(key);
  for (Link& link : links_) {
    std::erase_if(link.settling, [&](const auto& one) {
      return nothing_settles(link, one.first, one.second);
    });
  }
  forget_versions();
  for (uint32_t server = 0; server < links_.size(); ++server) pump(server);
}

void Links::forget_versions() {
  uint32_t used = lost_in_;
  for (const auto& [key, pushed] : transfers_) {
    used = std::min(used, pushed.transfer->attempt.value_or(lost_in_));
  }
  // A version counts until the next one.
  while (versions_.size() > kMostVersions && std::next(versions_.begin())->first <= used) {
    versions_.erase(versions_.begin());
  }
}

// Returns whether the run still has results that are kept in this stream's order.
bool Links::settles(const Link& link, const StreamId& id, const Settling::Run& run) {
  const Transfer* const transfer = find(run.key);
  return transfer != nullptr && &links_[transfer->ways[run.run].server] == &link &&
         stream_id(*transfer, run.run) == id;
}

bool Links::nothing_settles(const Link& link, const StreamId& id, const Settling& settling) {
  return std::ranges::none_of(settling.runs, [&](const Settling::Run& run) {
    return settles(link, id, run);
  });
}

// The server is dead: nothing on its flows comes back.
void Links::drop_link(uint32_t server) {
  Link& link = links_[server];
  for (auto& flow : link.flows) flow->flow->abandon();
  for (Path& path : link.paths) path = {};
  link.count(loop_.now());
  link.outstanding = 0;
  link.streams.clear();
  link.settling.clear();
  link.groups = 0;
  world_.forget(server);
  for (auto& [group, pace] : groups_) pace.forget(server);
  std::vector<StreamId> idle;
  for (auto& [id, order] : orders_) {
    order.balance.remove(server);
    while (const auto next = order.balance.release()) released_.push_back(*next);
    if (order.balance.empty() && !is_queued(id)) idle.push_back(id);
  }
  for (const StreamId& id : idle) orders_.erase(id);
}

void Links::server_replaced(uint32_t server,
                            std::vector<std::unique_ptr<transport::Connection>> connections) {
  Link& link = links_[server];
  link.flows.clear();
  link.paths.clear();
  link.shortest = link.round_trip = 0;
  link.length = 1;
  link.waited = link.answered = 0;
  for (const auto& connection : connections) add_flow(server, *connection);
  const auto begin_anew = [&](Pace& pace) {
    fit(pace);
    pace.links[server].signals = 0;
    pace.links[server].said = 0;
    pace.links[server].returned = 0;
  };
  begin_anew(world_);
  for (auto& [group, pace] : groups_) begin_anew(pace);
}

// Takes a run out of the queue of its stream, or lets another object for the transfer take its
// place there.
void Links::requeue(const Transfer& transfer, uint32_t run, Transfer* other) {
  Link& link = links_[transfer.ways[run].server];
  const auto found = link.streams.find(stream_id(transfer, run));
  if (found == link.streams.end()) return;
  Stream& stream = found->second;
  for (size_t left = stream.queue.size(); left > 0; --left) {
    Item item = stream.queue.front();
    stream.queue.pop();
    if (item.transfer == &transfer && item.run == run) {
      if (other == nullptr) continue;
      item.transfer = other;
    }
    stream.queue.push(item);
  }
  if (balances_) {
    const uint32_t server = transfer.ways[run].server;
    note_position(server, found->first, stream);
    released_.push_back(server);  // it is held no more
  }
  if (stream.queue.empty() && stream.outstanding == 0) erase_stream(link, found);
}

// Skips segments of a run that is pushed again whose results no other worker can lack.
Links::Piece Links::next_piece(Item& item, size_t most) {
  const Transfer& transfer = *item.transfer;
  const plan::SegmentRun& run = transfer.runs[item.run];
  const auto& answered = transfer.answered[item.run];
  const auto& chunks = transfer.ways[item.run].chunks;
  const uint32_t end = run.first + run.count;
  const auto has = [&](uint32_t segment) { return answered[segment - run.first]; };
  const auto gone = [&](uint32_t segment) {
    const uint32_t chunk = (segment - run.first) / kChunkSegments;
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

// Calls `action(chunk, at, range)` for the pieces of segments [first, first + count) of the shard:
// their bytes `at` in a chunk, and their range of the buffer. A chunk may be null.
template <typename Action>
void Links::for_each_piece(Transfer& transfer, uint32_t r, uint32_t first, size_t count,
                           const Action& action) {
  const plan::SegmentRun& run = transfer.runs[r];
  const plan::Shard& shard = transfer.shards[run.shard];
  auto& chunks = transfer.ways[r].chunks;
  chunks.resize((run.count + kChunkSegments - 1) / kChunkSegments, nullptr);
  for (size_t at = first - run.first, end = at + count; at < end;) {
    const size_t some = std::min(end - at, kChunkSegments - at % kChunkSegments);
    const size_t begin = (run.first + at) * options_.segment_bytes;
    const size_t bytes = std::min(some * options_.segment_bytes, shard.bytes - begin);
    action(chunks[at / kChunkSegments], at % kChunkSegments * options_.segment_bytes,
           plan::Range{shard.offset + begin, bytes});
    at += some;
  }
}

// Says where results are received.
void Links::place_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count,
                          transport::Destinations& out) {
  for_each_piece(transfer, run, first, count, [&](char*& chunk, size_t at, plan::Range range) {
    if (chunk == nullptr) chunk = chunks_.take();
    out.add(chunk + at, range.bytes);
  });
}

// Copies results to their place.
void Links::copy_results(Transfer& transfer, uint32_t run, uint32_t first, uint32_t count) {
  for_each_piece(transfer, run, first, count, [&](char* chunk, size_t at, plan::Range range) {
    std::memcpy(transfer.receive + range.offset, chunk + at, range.bytes);
  });
}

// Returns the kept results of segments.
std::string Links::results(Transfer& transfer, uint32_t run, uint32_t first, size_t count) {
  std::string bytes;
  for_each_piece(transfer, run, first, count, [&](const char* chunk, size_t at, plan::Range range) {
    bytes.append(chunk + at, range.bytes);
  });
  return bytes;
}

// Frees the chunks of a run of which all places are settled.
void Links::free_chunks(Transfer& transfer, uint32_t r, uint64_t settled) {
  Way& way = transfer.ways[r];
  if (!way.elsewhere.empty()) return;
  const uint32_t count = transfer.runs[r].count;
  for (uint32_t chunk = 0; chunk < way.chunks.size(); ++chunk) {
    const uint32_t end = std::min((chunk + 1) * kChunkSegments, count);
    if (way.place + end > settled) return;
    if (way.chunks[chunk] == nullptr) continue;
    const auto first = transfer.answered[r].begin() + chunk * kChunkSegments;
    if (std::find(first, transfer.answered[r].begin() + end, false) !=
        transfer.answered[r].begin() + end) {
      return;
    }
    chunks_.give(std::exchange(way.chunks[chunk], nullptr));
  }
}

// Returns whether another server has the run than the one that sent this result.
bool Links::is_elsewhere(const Transfer& transfer, uint32_t run, uint32_t server,
                         const wire::FrameHeader& result) {
  return !transfer.ways.empty() && (transfer.ways[run].server != server ||
                                    transfer.ways[run].since != result.epoch);
}

// Returns what is on the way to a server from before; null if there is nothing.
Way::Elsewhere* Links::elsewhere_of(Transfer& transfer, uint32_t run, uint32_t server,
                                    uint32_t since) {
  auto& all = transfer.ways[run].elsewhere;
  const auto found = std::ranges::find_if(all, [&](const Way::Elsewhere& one) {
    return one.server == server && one.since == since;
  });
  return found == all.end() ? nullptr : &*found;
}

// A server has answered segments that another server has now.
void Links::on_result_elsewhere(LinkFlow& flow, const wire::FrameHeader& header) {
  Transfer& transfer = *flow.transfer;
  const uint32_t run = flow.run, server = flow.server;
  Way& way = transfer.ways[run];
  Way::Elsewhere* const left = elsewhere_of(transfer, run, server, header.epoch);
  const uint32_t home = left->since == 0 ? 0 : home_of(transfer, run) + 1;
  account_answer(flow, header, {transfer.key.group, transfer.key.stream, home, left->since},
                 *flow.pace, loop_.now());
  if ((left->segments -= header.segments) == 0) {
    std::erase_if(way.elsewhere, [](const auto& one) { return one.segments == 0; });
  }
  const auto found = transfers_.find(transfer.key);
  if (found == transfers_.end()) {
    forget_kept(Key(transfer.key));
  } else if (is_over(transfer)) {
    keep(transfer);
    end({&transfer});
  }
  for (uint32_t one = 0; one < links_.size(); ++one) pump(one);
  give_back(flow);
}

// Returns whether all results are here, and no flow reads the transfer's memory.
bool Links::is_over(const Transfer& transfer) {
  return transfer.segments_left == 0 && std::ranges::all_of(transfer.ways, [](const Way& way) {
    return way.elsewhere.empty();
  });
}

// Keeps what other workers may lack of a transfer that is over here.
void Links::keep(Transfer& transfer) {
  if (transfer.ways.empty()) return;
  if (!keeps_results(transfer) || transfer.called_off) return release(transfer);
  auto kept = std::make_unique<Transfer>(transfer);
  for (Way& way : transfer.ways) way.chunks.clear();
  note_over(transfer);
  kept->send = nullptr;
  kept->receive = nullptr;
  kept->owner = nullptr;
  kept->mark = {};
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    // What is still to be given from the old object is given from the new one.
    if (transfer.ways[run].again) requeue(transfer, run, kept.get());
  }
  kept_[transfer.key] = std::move(kept);
}

// No other worker can lack the results.
void Links::release(Transfer& transfer) {
  for (Way& way : transfer.ways) {
    way.settled = true;
    release_settled(way);
  }
}

// Where part of a result may still come, the memory stays until then.
void Links::release_settled(Way& way) {
  if (!way.settled || !way.elsewhere.empty()) return;
  for (char*& chunk : way.chunks) {
    if (chunk != nullptr) chunks_.give(std::exchange(chunk, nullptr));
  }
}

// Forgets a transfer that is over, if no other worker can lack anything of it.
void Links::forget_kept(const Key& key) {
  const auto found = kept_.find(key);
  if (found == kept_.end()) return;
  Transfer& transfer = *found->second;
  const uint32_t group = key.group;
  for (Way& way : transfer.ways) release_settled(way);
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    const Way& way = transfer.ways[run];
    if (transfer.on_the_way[run] > 0 || !way.elsewhere.empty()) return;
    if (std::ranges::any_of(way.chunks, [](const char* chunk) { return chunk != nullptr; })) return;
  }
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    requeue(transfer, run, nullptr);
  }
  kept_.erase(found);
  end_removal(group);
}

Nanos Links::unheard(uint32_t server) {
  Nanos longest = 0;
  for (const auto& flow : links_[server].flows) {
    if (flow->flow->closed()) continue;
    longest = std::max(longest, flow->silence.at(flow->flow->path_info(), loop_.now()));
  }
  return longest;
}

}  // namespace herring::links
