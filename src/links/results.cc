// The part of Links that handles what comes back from servers, and what will never come. Sending is
// in links.cc.
#include <algorithm>

#include "links/links.h"

namespace herring::links {

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
  Transfer* const moving = in_flight(key);
  Transfer* const transfer = moving != nullptr ? moving : kept_.find(key);
  Pace* const pace = transfer == nullptr ? nullptr : &credits_.of(key.group);
  size_t outstanding = 0;
  if (pace != nullptr) {
    outstanding = std::min(links_[flow.server].paths[flow.index].outstanding,
                           pace->links[flow.server].outstanding[flow.index]);
  }
  const auto place =
      check_result(transfer, flow.server, header, options_.segment_bytes, outstanding);
  if (!place.ok()) return place.status();
  flow.transfer = transfer;
  flow.pace = pace;
  flow.run = place->run;
  flow.range = place->range;
  if (place->empty) return {};
  const auto [offset, bytes] = of_results(*transfer, flow.range);
  if (place->unused) {
    flow.control.resize(bytes);
    out.add(flow.control.data(), bytes);
  } else if (!transfer->ways.empty() && route_.keeps_results(*transfer)) {
    kept_.place_results(*transfer, flow.run, header.first_segment, header.segments, out);
  } else {
    out.add(transfer->receive + offset, bytes);
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
  credits_.answered(flow, header, stream_id(transfer, run), pace, now, !stopped_);
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
    kept_.forget(Key(transfer.key));
  } else {
    take_result(transfer, run, header, flow.range, fresh);
  }
  if (server < links_.size()) pump(server);
  credits_.give_back(flow);
}

// A server has answered segments that another server has now.
void Links::on_result_elsewhere(LinkFlow& flow, const wire::FrameHeader& header) {
  Transfer& transfer = *flow.transfer;
  const uint32_t run = flow.run, server = flow.server;
  RunRoute& way = transfer.ways[run];
  const auto left = std::ranges::find_if(way.elsewhere, [&](const RunRoute::Outstanding& one) {
    return one.server == server && one.since == header.epoch;
  });
  const uint32_t home = left->since == 0 ? 0 : home_of(transfer, run) + 1;
  credits_.answered(flow, header, {transfer.key.group, transfer.key.stream, home, left->since},
                    *flow.pace, loop_.now(), !stopped_);
  if ((left->segments -= header.segments) == 0) {
    std::erase_if(way.elsewhere, [](const auto& one) { return one.segments == 0; });
  }
  const auto found = transfers_.find(transfer.key);
  if (found == transfers_.end()) {
    kept_.forget(Key(transfer.key));
  } else if (is_over(transfer)) {
    kept_.keep(transfer);
    end({&transfer});
  }
  for (uint32_t one = 0; one < links_.size(); ++one) pump(one);
  credits_.give_back(flow);
}

// `fresh`: number of results that were not here before.
void Links::take_result(Transfer& transfer, uint32_t run, const wire::FrameHeader& header,
                        plan::Range range, uint32_t fresh) {
  transfer.called_off |= (header.flags & wire::kFlagCalledOff) != 0;
  const bool kept = !transfer.ways.empty() && route_.keeps_results(transfer);
  const bool here = fresh > 0 && transfer.receive != nullptr && !transfer.called_off;
  if (here && kept) {
    kept_.copy_results(transfer, run, header.first_segment, header.segments);
    kept_.settle(transfer, run, header.first_segment + header.segments - 1);
  }
  const bool done = is_over(transfer);
  if (done) kept_.keep(transfer);
  const Key key = transfer.key;
  const auto let_go = done ? take(transfer) : Transfers::node_type();
  if (here) transfer.owner->on_result(transfer, range);
  if (done) transfer.owner->on_transfer_done(transfer);  // may push more
  if (done && kept) kept_.forget(key);
}

// After the last transfer of a reign, those of the next one no longer have to wait.
Links::Transfers::node_type Links::take(const Transfer& transfer) {
  --credits_.of(transfer.key.group).transfers;
  if (kept_.end_in_reign(transfer.key)) {
    for (uint32_t server = 0; server < links_.size(); ++server) released_.push_back(server);
  }
  return transfers_.extract(transfer.key);
}

// The memory of the transfers stays alive until all owners have been told, whatever the owners do.
void Links::end(const std::vector<Transfer*>& transfers) {
  std::vector<Transfers::node_type> let_go;
  for (const Transfer* transfer : transfers) let_go.push_back(take(*transfer));
  for (Transfer* transfer : transfers) transfer->owner->on_transfer_done(*transfer);
}

void Links::call_off(uint32_t group) {
  Pace& pace = credits_.of(group);
  if (std::exchange(pace.called_off, true)) return;
  empty_queues(group, true);
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    if (key.group != group || wire::outlives_members(key.stream)) continue;
    links::call_off(*pushed.transfer);
    if (is_over(*pushed.transfer)) ended.push_back(pushed.transfer);
  }
  for (Transfer* transfer : ended) kept_.keep(*transfer);
  end(ended);
  pump_released();
}

void Links::abandon(uint32_t group) {
  credits_.of(group).abandoned = true;
  empty_queues(group, false);
  for (auto& [key, pushed] : transfers_) {
    if (key.group == group) links::call_off(*pushed.transfer);
  }
  kept_.abandon(group);
  pump_released();
}

void Links::server_lost(uint32_t server) {
  links_[server].drop(loop_.now());
  credits_.forget(server);
  std::vector<Transfer*> ended;
  for (auto& [key, pushed] : transfers_) {
    Transfer& transfer = *pushed.transfer;
    for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
      if (home_of(transfer, r) != server) continue;
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

}  // namespace herring::links
