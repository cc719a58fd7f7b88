// The part of Links that handles what comes back from servers: results, returned credit, and
// measurements of the paths. It also handles results that will never come. Sending is in links.cc.
#include <algorithm>
#include <numeric>

#include "links/links.h"
#include "links/window.h"

namespace herring::links {
namespace {

// Results needed from the nearest server between two measurements of the time to a result.
constexpr double kLeastAnswered = 8;
// Speed of today's fastest links, in bytes per nanosecond (100 Gbit/s).
constexpr double kFastestLink = 12.5;

}  // namespace

void Links::measure_paths() {
  const Link* near = nullptr;
  for (const Link& link : links_) {
    if (link.shortest > 0 && (near == nullptr || link.shortest < near->shortest)) near = &link;
  }
  if (near == nullptr || near->answered < kLeastAnswered) return;
  const double response = near->waited / near->answered;
  const Nanos nearest = near->shortest;
  for (Link& link : links_) {
    if (link.answered > 0) {
      link.frames = frames_of(static_cast<double>(link.round_trip), link.waited / link.answered);
    }
    if (!options_.credit_fixed) {
      link.length = length_of(static_cast<double>(link.shortest - nearest), response);
    }
    link.waited = link.answered = 0;
  }
}

// Tells the server which lent results were read. Data frames carry this number; if nothing is left
// to push, a frame of its own does.
void Links::give_back(LinkFlow& flow) {
  if (flow.taken == flow.taken_told || path_of(flow).outstanding > 0) return;
  wire::FrameHeader header;
  header.type = wire::FrameType::kTaken;
  header.taken = flow.taken_told = flow.taken;
  flow.flow->send_owned(header, {});
}

// Tells the credit to servers to which this rank pushes nothing of the group now. Others of its
// node may do so: each has a part of a buffer, and with it some of the servers.
void Links::tell_credit(uint32_t group, Pace& pace) {
  const uint16_t credit = pace.credit();
  for (const uint32_t server : owners_of(group)) {
    Link& link = links_[server];
    if (pace.links[server].said == credit) continue;
    if (!serving_.has(server) || link.flows.empty()) continue;
    const auto stream = link.streams.lower_bound({group, 0, 0, 0});
    if (stream != link.streams.end() && stream->first.group == group) continue;
    LinkFlow& flow = *link.flows.front();
    wire::FrameHeader header;
    header.type = wire::FrameType::kTaken;
    header.flags = wire::kFlagSteers;
    header.group = group;
    header.credit = pace.links[server].said = credit;
    header.taken = flow.taken_told = flow.taken;
    flow.flow->send_owned(header, {});
  }
}

Status Links::on_header(transport::Flow& flow, const wire::FrameHeader& header,
                        transport::Destinations& out) {
  auto& link_flow = *static_cast<LinkFlow*>(flow.user);
  switch (header.type) {
    case wire::FrameType::kResult: return on_result_header(link_flow, header, out);
    case wire::FrameType::kGo:
    case wire::FrameType::kReply:
    case wire::FrameType::kOpError:
    case wire::FrameType::kWarning:
    case wire::FrameType::kRound:
    case wire::FrameType::kCommit:
    case wire::FrameType::kLeaveGroup:
    case wire::FrameType::kSettled:
      link_flow.control.resize(header.payload);
      out.add(link_flow.control.data(), link_flow.control.size());
      return {};
    default: break;
  }
  return breach("unexpected ", wire::name_of(header.type), " frame from server ", link_flow.server);
}

Status Links::on_result_header(LinkFlow& flow, const wire::FrameHeader& header,
                               transport::Destinations& out) {
  const Key key{header.stream, header.round, header.buffer, header.group};
  Transfer* const known = find(key);
  const auto nonsense = [&](const char* what) {
    return breach("server ", flow.server, " sent a result ", what, " (stream ", key.stream,
                  ", round ", key.round, ", buffer ", key.buffer, ", segments ",
                  header.first_segment, "+", header.segments, ")");
  };
  if (known == nullptr) return nonsense("that no transfer waits for");
  Transfer& transfer = *known;
  const uint32_t home = header.home == 0 ? flow.server : header.home - 1u;
  uint32_t r = 0;
  for (; r < transfer.runs.size(); ++r) {
    if (home_of(transfer, r) == home) break;
  }
  if (r == transfer.runs.size()) return nonsense("of a shard that another server owns");
  const plan::SegmentRun& run = transfer.runs[r];
  const uint64_t first = header.first_segment, count = header.segments;
  if (first < run.first || first + count > uint64_t{run.first} + run.count) {
    return nonsense("of segments that were not pushed");
  }
  const Way* const way = transfer.ways.empty() ? nullptr : &transfer.ways[r];
  const bool elsewhere = is_elsewhere(transfer, r, flow.server, header);
  if (way == nullptr && home != flow.server) return nonsense("of a shard that another server owns");
  const bool empty = header.flags & wire::kFlagEmpty;
  const bool unused = elsewhere || (header.flags & wire::kFlagMoved);
  // A server acknowledges results that were given to it.
  bool given = way != nullptr && way->again && empty;
  for (uint64_t s = first; s < first + count; ++s) {
    const bool answered = transfer.answered[r][s - run.first];
    given &= answered;
    if (answered && !unused && !(empty && way != nullptr && way->again)) return nonsense("twice");
  }
  const plan::Shard& shard = transfer.shards[run.shard];
  const size_t begin = first * options_.segment_bytes;
  const size_t bytes = std::min(count * options_.segment_bytes, shard.bytes - begin);
  const bool lacks = (header.flags & wire::kFlagCalledOff) || unused || given;
  if ((empty != (transfer.receive == nullptr) && !(empty && lacks) && !elsewhere) ||
      header.payload != (empty ? 0 : bytes)) {
    return nonsense("of the wrong length");
  }
  Pace& pace = pace_of(key.group);
  const Way::Elsewhere* const old =
      elsewhere ? elsewhere_of(transfer, r, flow.server, header.epoch) : nullptr;
  const uint32_t on_the_way =
      elsewhere ? (old == nullptr ? 0 : old->segments) : transfer.on_the_way[r];
  if (count > on_the_way || count > path_of(flow).outstanding ||
      count > pace.links[flow.server].outstanding[flow.index]) {
    return nonsense("beyond what is outstanding");
  }
  flow.transfer = &transfer;
  flow.pace = &pace;
  flow.run = r;
  flow.range = {shard.offset + begin, bytes};
  if (empty) return {};
  if (unused) {
    flow.control.resize(bytes);
    out.add(flow.control.data(), bytes);
  } else if (way != nullptr && keeps_results(transfer)) {
    place_results(transfer, r, header.first_segment, header.segments, out);
  } else {
    out.add(transfer.receive + flow.range.offset, bytes);
  }
  return {};
}

Status Links::on_frame(transport::Flow& flow, const wire::FrameHeader& header) {
  auto& link_flow = *static_cast<LinkFlow*>(flow.user);
  if (header.type == wire::FrameType::kResult) {
    on_result(link_flow, header);
  } else {
    on_control_(link_flow.server, header, link_flow.control);
  }
  return {};
}

// The segments are answered, so their credit is back.
void Links::account_answer(LinkFlow& flow, const wire::FrameHeader& header, const StreamId& id,
                           Pace& pace, Nanos now) {
  Link& link = links_[flow.server];
  Path& path = path_of(flow);
  path.outstanding -= header.segments;
  path.carried = true;
  if (header.flags & wire::kFlagLent) flow.taken += header.segments;
  const auto stream = link.streams.find(id);
  stream->second.outstanding -= header.segments;
  if (stream->second.outstanding == 0 && stream->second.queue.empty()) erase_stream(link, stream);
  link.count(now);
  link.outstanding -= header.segments;
  link.answered += header.segments;
  pace.answered(header, flow.server, flow.index, now);
  if (pace.steers && !stopped_) tell_credit(id.group, pace);
}

void Links::on_result(LinkFlow& flow, const wire::FrameHeader& header) {
  // The run may have moved since the header came.
  if (is_elsewhere(*flow.transfer, flow.run, flow.server, header)) {
    return on_result_elsewhere(flow, header);
  }
  Transfer& transfer = *flow.transfer;
  Pace& pace = *flow.pace;
  const uint32_t run = flow.run, server = flow.server;
  const uint32_t first = header.first_segment - transfer.runs[run].first;
  const bool moved = header.flags & wire::kFlagMoved;
  uint32_t fresh = 0;  // results that were not here before
  for (uint32_t i = first; i < first + header.segments && !moved; ++i) {
    fresh += !transfer.answered[run][i];
    transfer.answered[run][i] = true;
  }
  const Nanos now = answered_at_ = loop_.now();
  account_answer(flow, header, stream_id(transfer, run), pace, now);
  transfer.on_the_way[run] -= header.segments;
  if (fresh > 0) {
    transfer.workers = header.workers;
    transfer.fewest_workers = std::min(transfer.fewest_workers, header.workers);
  }
  if (!wire::outlives_members(header.stream)) pace.whole_answered_at = now;
  // call_off() has let the transfer wait only for what is on its way.
  const bool ends = pace.called_off && !wire::outlives_members(header.stream);
  transfer.segments_left -= ends ? header.segments : fresh;
  if ((header.flags & wire::kFlagCalledOff) && !std::exchange(pace.called_off_there, true)) {
    on_called_off_(transfer.key.group);
  }
  if (transfer.owner == nullptr) {
    forget_kept(Key(transfer.key));
  } else {
    take_result(transfer, run, header, flow.range, fresh);
  }
  if (server < links_.size()) pump(server);
  give_back(flow);
}

// `fresh`: number of results that were not here before.
void Links::take_result(Transfer& transfer, uint32_t run, const wire::FrameHeader& header,
                        plan::Range range, uint32_t fresh) {
  transfer.called_off |= (header.flags & wire::kFlagCalledOff) != 0;
  const bool kept = !transfer.ways.empty() && keeps_results(transfer);
  const bool here = fresh > 0 && transfer.receive != nullptr && !transfer.called_off;
  if (here && kept) {
    copy_results(transfer, run, header.first_segment, header.segments);
    settle(transfer, run, header.first_segment + header.segments - 1);
  }
  const bool done = is_over(transfer);
  if (done) keep(transfer);
  const Key key = transfer.key;
  const auto let_go = done ? take(transfer) : Transfers::node_type();
  if (here) transfer.owner->on_result(transfer, range);
  if (done) transfer.owner->on_transfer_done(transfer);  // may push more
  if (done && kept) forget_kept(key);
}

Links::Transfers::node_type Links::take(const Transfer& transfer) {
  --pace_of(transfer.key.group).transfers;
  end_in_reign(transfer.key);
  return transfers_.extract(transfer.key);
}

// The memory of the transfers stays alive until all owners have been told, whatever the owners do.
void Links::end(const std::vector<Transfer*>& transfers) {
  std::vector<Transfers::node_type> let_go;
  for (const Transfer* transfer : transfers) let_go.push_back(take(*transfer));
  for (Transfer* transfer : transfers) transfer->owner->on_transfer_done(*transfer);
}

// Empties the queues of the group's streams. `goes_on`: but not those of partial all-reduces.
void Links::empty_queues(uint32_t group, bool goes_on) {
  for (uint32_t server = 0; server < links_.size(); ++server) {
    Streams& streams = links_[server].streams;
    for (auto one = streams.lower_bound({group, 0, 0, 0});
         one != streams.end() && one->first.group == group &&
         !(goes_on && wire::outlives_members(one->first.stream));) {
      const bool had_more = !one->second.queue.empty();
      while (!one->second.queue.empty()) one->second.queue.pop();
      if (balances_ && had_more) note_position(server, one->first, one->second);
      one = one->second.outstanding == 0 ? erase_stream(links_[server], one) : std::next(one);
    }
  }
}

void Links::call_off(uint32_t group) {
  Pace& pace = pace_of(group);
  if (std::exchange(pace.called_off, true)) return;
  empty_queues(group, true);
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    if (key.group != group || wire::outlives_members(key.stream)) continue;
    Transfer& transfer = *pushed.transfer;
    transfer.called_off = true;
    transfer.segments_left =
        std::accumulate(transfer.on_the_way.begin(), transfer.on_the_way.end(), 0u);
    if (is_over(transfer)) ended.push_back(&transfer);
  }
  for (Transfer* transfer : ended) keep(*transfer);
  end(ended);
  pump_released();
}

void Links::abandon(uint32_t group) {
  pace_of(group).abandoned = true;
  empty_queues(group, false);
  for (auto& [key, pushed] : transfers_) {
    if (key.group != group) continue;
    Transfer& transfer = *pushed.transfer;
    transfer.called_off = true;
    transfer.segments_left =
        std::accumulate(transfer.on_the_way.begin(), transfer.on_the_way.end(), 0u);
  }
  for (Link& link : links_) {
    std::erase_if(link.settling, [&](const auto& one) { return one.first.group == group; });
  }
  for (const Key& key : kept()) {
    if (key.group != group) continue;
    Transfer& transfer = *kept_[key];
    transfer.on_the_way.assign(transfer.on_the_way.size(), 0);
    for (Way& way : transfer.ways) way.elsewhere.clear();
    release(transfer);
    forget_kept(key);
  }
  pump_released();
}

// Gives up what the transfer lacks of a run, because its server is gone.
void Links::lose(Transfer& transfer, uint32_t run) {
  auto& answered = transfer.answered[run];
  // A transfer that is called off waits only for what is on its way.
  const auto lost = transfer.called_off ? transfer.on_the_way[run]
                                        : std::ranges::count(answered, false);
  if (lost == 0) return;
  answered.assign(answered.size(), true);
  transfer.on_the_way[run] = 0;
  transfer.fewest_workers = 0;
  transfer.segments_left -= static_cast<uint32_t>(lost);
}

void Links::server_lost(uint32_t server) {
  Link& link = links_[server];
  for (auto& flow : link.flows) flow->flow->abandon();
  for (Path& path : link.paths) path.outstanding = 0;
  link.count(loop_.now());
  link.outstanding = 0;
  link.streams.clear();
  link.groups = 0;
  world_.forget(server);
  for (auto& [group, pace] : groups_) pace.forget(server);
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    Transfer& transfer = *pushed.transfer;
    for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
      if (transfer.shards[transfer.runs[r].shard].server != server) continue;
      const uint32_t left = transfer.segments_left;
      lose(transfer, r);
      if (left > 0 && transfer.segments_left == 0) ended.push_back(&transfer);
    }
  }
  end(ended);
}

const Transfer* Links::overdue(Nanos now, Nanos margin) const {
  for (const auto& [key, pushed] : transfers_) {
    const Transfer& transfer = *pushed.transfer;
    if (transfer.called_off) continue;
    if (transfer.open.deadline.passed(now - margin, transfer.pushed_at, answered_at_)) {
      return &transfer;
    }
  }
  return nullptr;
}

std::vector<uint32_t> Links::awaited(const Transfer& transfer) const {
  std::vector<uint32_t> servers;
  for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
    const auto& answered = transfer.answered[run];
    if (std::ranges::find(answered, false) != answered.end()) {
      servers.push_back(server_of(transfer, run));
    }
  }
  return servers;
}

void Links::on_closed(transport::Flow& flow, const Status& why) {
  on_closed_(static_cast<LinkFlow*>(flow.user)->server, why);
}

void Links::poll_paths() {
  const Nanos now = loop_.now();
  Nanos queueing = 0;
  int flows = 0;
  for (Link& link : links_) {
    for (auto& flow : link.flows) {
      const transport::PathInfo info = flow->flow->path_info();
      flow->signals += static_cast<uint32_t>(flow->losses.poll(info));
      Path& path = path_of(*flow);
      if (path.carried) {
        queueing += info.rtt - info.min_rtt;
        ++flows;
        link.shortest = info.min_rtt;
        link.round_trip = info.rtt;
      }
      path.report(info.rtt);
    }
    retry_slow_paths(link.paths, now);
  }
  measure_paths();
  if (flows == 0) return;
  Nanos longest = 0;
  for (const Link& link : links_) longest = std::max(longest, link.shortest);
  const auto steer = [&](Pace& pace) {
    pace.controller.on_queueing(queueing / flows);
    pace.controller.allow(static_cast<size_t>(kFastestLink * static_cast<double>(longest)));
  };
  steer(world_);
  for (auto& [group, pace] : groups_) steer(pace);
}

}  // namespace herring::links
