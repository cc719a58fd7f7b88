#include "links/credits.h"

#include <algorithm>

#include "links/window.h"

namespace herring::links {
namespace {

// Results needed from the nearest server between two measurements of the time to a result.
constexpr double kLeastAnswered = 8;
// Speed of today's fastest links, in bytes per nanosecond (100 Gbit/s).
constexpr double kFastestLink = 12.5;

}  // namespace

// Makes the counters cover all links and flows.
void Credits::fit(Pace& pace) const {
  pace.links.resize(links_.size());
  for (size_t i = 0; i < links_.size(); ++i) {
    pace.links[i].outstanding.resize(links_[i].flows.size(), 0);
  }
}

void Credits::add_flow() {
  size_t flows = 0;
  for (const Link& link : links_) flows += link.flows.size();
  world_.controller.set_flows(flows);
  fit(world_);
}

void Credits::add_group(uint32_t group, const std::vector<uint32_t>& servers, bool steers) {
  Pace& pace = groups_.try_emplace(group, options_, world_.credit(), steers).first->second;
  size_t flows = 0;
  for (const uint32_t server : servers) flows += links_[server].flows.size();
  pace.controller.set_flows(flows);
  fit(pace);
  // Losses counted before the group existed are not its own.
  for (size_t i = 0; i < links_.size(); ++i) pace.links[i].signals = world_.links[i].signals;
}

void Credits::forget(uint32_t server) {
  for_all([server](Pace& pace) { pace.forget(server); });
}

void Credits::begin_anew(uint32_t server) {
  for_all([&](Pace& pace) {
    fit(pace);
    pace.links[server].signals = 0;
    pace.links[server].said = 0;
    pace.links[server].returned = 0;
  });
}

size_t Credits::window(uint32_t server, const Pace& pace) const {
  const Link& link = links_[server];
  const size_t most = std::max<size_t>(options_.credit_max / std::max(link.groups, 1u), 1);
  return opening_of(window_of(pace.credit(), link.share, link.length, most),
                    pace.links[server].returned);
}

void Credits::sent(Link& link, Pace& pace, size_t segments, Nanos now) {
  pace.sent(segments, now);
  link.count(now);
  link.outstanding += segments;
}

void Credits::answered(LinkFlow& flow, const wire::FrameHeader& header, const StreamId& id,
                       Pace& pace, Nanos now, bool tells) {
  Link& link = links_[flow.server];
  Path& path = link.paths[flow.index];
  path.outstanding -= header.segments;
  path.carried = true;
  if (header.flags & wire::kFlagLent) flow.taken += header.segments;
  const auto stream = link.streams.find(id);
  stream->second.outstanding -= header.segments;
  if (stream->second.outstanding == 0 && stream->second.queue.empty()) link.erase(stream);
  link.count(now);
  link.outstanding -= header.segments;
  link.answered += header.segments;
  pace.answered(header, flow.server, flow.index, now);
  if (pace.steers && tells) tell(id.group, pace);
}

void Credits::give_back(LinkFlow& flow) {
  if (flow.taken == flow.taken_told) return;
  if (links_[flow.server].paths[flow.index].outstanding > 0) return;
  wire::FrameHeader header{.type = wire::FrameType::kTaken, .taken = flow.taken_told = flow.taken};
  flow.flow->send_owned(header, {});
}

// Tells the credit to servers to which this rank pushes nothing of the group now. Others of its
// node may do so: each has a part of a buffer, and with it some of the servers.
void Credits::tell(uint32_t group, Pace& pace) {
  const uint16_t credit = pace.credit();
  for (const uint32_t server : route_.servers_of(group)) {
    Link& link = links_[server];
    if (pace.links[server].said == credit) continue;
    if (!route_.serving().has(server) || link.flows.empty() || link.has(group)) continue;
    LinkFlow& flow = *link.flows.front();
    wire::FrameHeader header{.type = wire::FrameType::kTaken, .flags = wire::kFlagSteers,
                             .group = group, .credit = pace.links[server].said = credit,
                             .taken = flow.taken_told = flow.taken};
    flow.flow->send_owned(header, {});
  }
}

void Credits::measure_paths() {
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

void Credits::poll_paths(Nanos now) {
  Nanos queueing = 0;
  int flows = 0;
  for (Link& link : links_) {
    for (auto& flow : link.flows) {
      const transport::PathInfo info = flow->flow->path_info();
      flow->signals += static_cast<uint32_t>(flow->losses.poll(info));
      Path& path = link.paths[flow->index];
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
  for_all([&](Pace& pace) {
    pace.controller.on_queueing(queueing / flows);
    pace.controller.allow(static_cast<size_t>(kFastestLink * static_cast<double>(longest)));
  });
}

}  // namespace herring::links
