// The part of Links that lets a job go on when a server dies. When the set of servers changes, each
// rank acts alone. It pushes what another server now has to do, in the order of the keys: its
// contribution to a segment whose result it lacks, or else the result (Kept). A server that gets a
// result answers everybody with that. Otherwise it gets all contributions and sums them again. Both
// give the same bits.
#include <algorithm>

#include "links/links.h"

namespace herring::links {

Transfer* Links::in_flight(const Key& key) {
  const auto found = transfers_.find(key);
  return found == transfers_.end() ? nullptr : found->second.transfer;
}

std::vector<StreamProgress> Links::over() const {
  auto over = kept_.over();
  for (const auto& [key, pushed] : transfers_) {
    const auto found = over.find({key.group, key.stream});
    if (found != over.end() && wire::settled_at(key) <= found->second) over.erase(found);
  }
  std::vector<StreamProgress> all;
  for (const auto& [where, upto] : over) all.push_back({where.first, where.second, upto});
  return all;
}

bool Links::can_move() const {
  return std::ranges::all_of(transfers_, [this](const auto& one) {
    const Transfer& transfer = *one.second.transfer;
    return route_.keeps_results(transfer) || transfer.attempt || transfer.called_off;
  });
}

void Links::choose_way(Transfer& transfer, uint32_t run) {
  const control::ServerSet::StandIn now = route_.stand_in(transfer, run);
  transfer.ways[run].server = now.server;
  transfer.ways[run].since = now.epoch;
  kept_.begin(transfer, run);
}

// Moves a run whose server has changed.
void Links::move(Transfer& transfer, uint32_t run) {
  RunRoute& way = transfer.ways[run];
  const control::ServerSet& serving = route_.serving();
  std::erase_if(way.elsewhere, [&](const auto& one) { return !serving.has(one.server); });
  if (transfer.attempt) {
    if (route_.is_gone(transfer, run)) lose(transfer, run);
    return;
  }
  if (transfer.called_off) {
    // It only waits for answers. Those of a server that is gone never come.
    if (!serving.has(way.server)) {
      transfer.segments_left -= std::exchange(transfer.on_the_way[run], 0);
    }
    return;
  }
  if (const auto now = route_.stand_in(transfer, run);
      now.server == way.server && now.epoch == way.since) {
    return;
  }
  requeue(transfer, run, nullptr);
  const uint32_t left = std::exchange(transfer.on_the_way[run], 0);
  if (left > 0 && serving.has(way.server)) {
    way.elsewhere.push_back({way.server, way.since, left});
  }
  choose_way(transfer, run);
  way.again = true;
  transfer.opened[run] = 0;
  if (Item item{&transfer, run, transfer.runs[run].first}; Kept::next_piece(item, 1).count > 0) {
    enqueue(transfer, run, 0);
  }
}

void Links::serve(const control::ServerSet& set) {
  for (const uint32_t server : route_.serve(set)) drop_link(server);
  std::vector<Transfer*> moving;
  for (auto& [key, pushed] : transfers_) moving.push_back(pushed.transfer);
  for (const Key& key : kept_.keys()) moving.push_back(kept_.find(key));
  std::ranges::sort(moving, {}, [](const Transfer* one) { return one->key; });
  for (Transfer* transfer : moving) {
    for (uint32_t run = 0; run < transfer->runs.size(); ++run) move(*transfer, run);
  }
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    if (is_over(*pushed.transfer)) ended.push_back(pushed.transfer);
  }
  for (Transfer* transfer : ended) kept_.keep(*transfer);
  end(ended);
  // What was on the way to a server that is gone does not come back.
  kept_.forget_all();
  kept_.forget_streams();
  uint32_t earliest = route_.lost_in();
  for (const auto& [key, pushed] : transfers_) {
    earliest = std::min(earliest, pushed.transfer->attempt.value_or(earliest));
  }
  route_.forget_versions(earliest);
  for (uint32_t server = 0; server < links_.size(); ++server) pump(server);
}

void Links::drop_link(uint32_t server) {
  links_[server].drop(loop_.now());
  for (Path& path : links_[server].paths) path = {};
  kept_.lose_server(server);
  credits_.forget(server);
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
  credits_.begin_anew(server);
}

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
  if (stream.queue.empty() && stream.outstanding == 0) link.erase(found);
}

}  // namespace herring::links
