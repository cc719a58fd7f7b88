#include "worker/links.h"

#include <algorithm>

#include "base/log.h"
#include "wire/credit.h"
#include "worker/window.h"

namespace herring::worker {
namespace {

// Where servers differ, no link gets further ahead of another than this: one frame that is being
// answered and one that is on its way.
constexpr double kFramesAhead = 2;
// Results from the nearest server between two measurements of how long a result takes.
constexpr double kLeastAnswered = 8;
// By so many losses a result may be older than one that came before it, on another flow. One that
// seems older still has wrapped around.
constexpr int kMostOvertaken = 1024;

}  // namespace

Links::Links(transport::EventLoop& loop, LinksOptions options, OnControl on_control,
             OnClosed on_closed)
    : loop_(loop),
      options_(options),
      on_control_(std::move(on_control)),
      on_closed_(std::move(on_closed)),
      controller_(options.credit_initial, options.credit_max, options.credit_fixed,
                  options.segment_bytes),
      credit_(options.credit_initial) {}

Links::~Links() = default;

void Links::add_flow(uint32_t server, transport::Connection& connection) {
  if (server >= links_.size()) {
    links_.resize(server + 1);
    server_signals_.resize(server + 1, 0);
  }
  auto flow = std::make_unique<LinkFlow>();
  flow->server = server;
  flow->index = static_cast<uint32_t>(links_[server].flows.size());
  transport::FlowHandler& self = *this;
  flow->flow = connection.open(loop_, self, transport::Traffic::kCredit);
  flow->flow->user = flow.get();
  links_[server].flows.push_back(std::move(flow));
  links_[server].paths.emplace_back();
  links_[server].share = share_of(options_.weights, server);
  balances_ |= links_[server].share > 1;
  size_t flows = 0;
  for (const Link& link : links_) flows += link.flows.size();
  controller_.set_flows(flows);
}

Status Links::push(Transfer& transfer, std::shared_ptr<void> keeps) {
  const Key& key = transfer.key;
  if (transfers_.count(key) != 0) {
    return {Code::kInternal, concat("stream ", key.stream, ", round ", key.round, ", buffer ",
                                    key.buffer, " of '", transfer.open.name,
                                    "' is in flight already")};
  }
  transfer.segments_left = 0;
  transfer.fewest_workers = UINT32_MAX;
  transfer.pushed_at = loop_.now();
  transfer.opened.assign(transfer.runs.size(), 0);
  transfer.answered.resize(transfer.runs.size());
  for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
    const plan::SegmentRun& run = transfer.runs[r];
    transfer.segments_left += run.count;
    transfer.answered[r].assign(run.count, false);
  }
  if (transfer.segments_left == 0) {
    transfer.owner->on_transfer_done(transfer);
    return {};
  }
  if (transfers_.empty()) {
    controller_.on_start(loop_.now());
    for (Link& link : links_) link.returned = 0;
  }
  transfers_.emplace(key, Pushed{&transfer, std::move(keeps)});
  std::vector<uint32_t> touched;
  const uint64_t number = balances_ ? orders_[key.stream].transfers++ : 0;
  for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
    const plan::SegmentRun& run = transfer.runs[r];
    const uint32_t server = transfer.shards[run.shard].server;
    Stream& stream = links_[server].streams[key.stream];
    stream.queue.push({&transfer, r, run.first, number});
    if (balances_ && stream.queue.size() == 1) note_position(server, key.stream, stream);
    touched.push_back(server);
  }
  // Nodes start at different servers, so that their first frames do not all meet at one.
  const auto n = static_cast<uint32_t>(links_.size());
  std::sort(touched.begin(), touched.end(), [&](uint32_t a, uint32_t b) {
    return (a + n - options_.first_server % n) % n < (b + n - options_.first_server % n) % n;
  });
  for (uint32_t server : touched) pump(server);
  return {};
}

size_t Links::window(const Link& link) const {
  return opening_of(window_of(credit(), link.share, link.length, options_.credit_max),
                    link.returned);
}

void Links::pump(uint32_t server) {
  pump_link(links_[server]);
  // What one link sends may release those that are ahead of it.
  while (!released_.empty()) {
    const uint32_t next = released_.back();
    released_.pop_back();
    pump_link(links_[next]);
  }
}

// Streams take turns in the order of their ids; each may have one segment on its way whatever the
// others use, so that none can wait for another. (Where servers differ Balance may hold even that
// one, but never on the link that is behind.)
void Links::pump_link(Link& link) {
  for (auto& [id, stream] : link.streams) {
    while (!stream.queue.empty() && send_next(link, id, stream)) {}
  }
}

// So many segments as a share of their transfer.
double Links::share(const Item& item, double segments) const {
  const plan::Shard& shard = item.transfer->shards[item.transfer->runs[item.run].shard];
  return segments / static_cast<double>(plan::segment_count(shard.bytes, options_.segment_bytes));
}

// Of the first item of the stream on this link, which is another one or has moved.
void Links::note_position(uint32_t server, uint32_t stream_id, Stream& stream) {
  const auto order = orders_.find(stream_id);
  Balance& balance = order->second.balance;
  if (stream.queue.empty()) {
    balance.remove(server);
  } else {
    const Item& item = stream.queue.front();
    balance.set(server, static_cast<double>(item.number) + share(item, item.next));
  }
  while (const auto link = balance.release()) released_.push_back(*link);
  if (balance.empty()) orders_.erase(order);
}

bool Links::send_next(Link& link, uint32_t stream_id, Stream& stream) {
  const size_t chosen = soonest(link.paths);
  LinkFlow& flow = *link.flows[chosen];
  Path& path = link.paths[chosen];
  Item& item = stream.queue.front();
  Transfer& transfer = *item.transfer;
  const plan::SegmentRun& run = transfer.runs[item.run];
  const size_t window = this->window(link);
  const size_t frame_limit =
      frame_of(window, link.frames, options_.frame_max, options_.segment_bytes);
  const size_t left = run.first + run.count - item.next;
  size_t count = std::min(left, frame_limit);
  // Waits until a whole frame fits: a growing window becomes larger frames, not more small ones.
  if (!wire::within_credit(path.outstanding, stream.outstanding, count, window)) {
    if (stream.outstanding > 0) return false;
    count = 1;
  }
  if (balances_) {
    const double allowed = share(item, kFramesAhead * static_cast<double>(count));
    if (orders_.find(stream_id)->second.balance.hold(flow.server, allowed)) return false;
  }

  const plan::Shard& shard = transfer.shards[run.shard];
  wire::FrameHeader header;
  header.stream = stream_id;
  header.round = transfer.key.round;
  header.buffer = transfer.key.buffer;
  if (!(transfer.opened[item.run] >> flow.index & 1)) {
    transfer.opened[item.run] |= uint64_t{1} << flow.index;
    header.type = wire::FrameType::kOpen;
    wire::Open open = transfer.open;
    open.shard_bytes = shard.bytes;
    flow.flow->send_owned(header, encode(open));
  }
  const size_t begin = item.next * options_.segment_bytes;
  const size_t bytes = std::min(count * options_.segment_bytes, shard.bytes - begin);
  header.type = wire::FrameType::kData;
  header.segments = static_cast<uint16_t>(count);
  header.first_segment = item.next;
  header.credit = credit();
  header.flags = (transfer.receive != nullptr ? wire::kFlagWant : 0) |
                 (transfer.send == nullptr ? wire::kFlagEmpty : 0) |
                 (options_.steers ? wire::kFlagSteers : 0);
  header.signals = flow.signals;
  header.taken = flow.taken_told = flow.taken;
  account(link, count);
  path.outstanding += count;
  stream.outstanding += count;
  if (transfer.send == nullptr) {
    flow.flow->send(header, nullptr, 0, 0);
  } else {
    // A result is the sum with what was pushed: until it is here, nothing is changed there.
    header.payload = static_cast<uint32_t>(bytes);
    const iovec piece{const_cast<char*>(transfer.send) + shard.offset + begin, bytes};
    flow.flow->lend(header, &piece, 1);
  }
  item.next += static_cast<uint32_t>(count);
  if (item.next == run.first + run.count) stream.queue.pop();
  if (balances_) note_position(flow.server, stream_id, stream);
  return true;
}

void Links::account(Link& link, size_t sent) {
  const Nanos now = loop_.now();
  if (total_outstanding_ == 0) busy_since_ = now;
  total_outstanding_ += sent;
  link.count(now);
  link.outstanding += sent;
}

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

// What is pushed says what was taken; when nothing is left to push, a frame of its own does.
void Links::give_back(LinkFlow& flow) {
  if (flow.taken == flow.taken_told || path_of(flow).outstanding > 0) return;
  wire::FrameHeader header;
  header.type = wire::FrameType::kTaken;
  header.taken = flow.taken_told = flow.taken;
  flow.flow->send_owned(header, {});
}

void Links::send_control(uint32_t server, const wire::FrameHeader& header, std::string payload) {
  links_[server].flows.front()->flow->send_owned(header, std::move(payload));
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
      link_flow.control.resize(header.payload);
      out.add(link_flow.control.data(), link_flow.control.size());
      return {};
    default: break;
  }
  return {Code::kInternal, concat("unexpected ", wire::name_of(header.type), " frame from server ",
                                  link_flow.server)};
}

Status Links::on_result_header(LinkFlow& flow, const wire::FrameHeader& header,
                               transport::Destinations& out) {
  const Key key{header.stream, header.round, header.buffer};
  const auto found = transfers_.find(key);
  const auto nonsense = [&](const char* what) {
    return Status(Code::kInternal, concat("server ", flow.server, " sent a result ", what,
                                          " (stream ", key.stream, ", round ", key.round,
                                          ", buffer ", key.buffer, ", segments ",
                                          header.first_segment, "+", header.segments, ")"));
  };
  if (found == transfers_.end()) return nonsense("that nobody waits for");
  Transfer& transfer = *found->second.transfer;
  uint32_t r = 0;
  for (; r < transfer.runs.size(); ++r) {
    if (transfer.shards[transfer.runs[r].shard].server == flow.server) break;
  }
  if (r == transfer.runs.size()) return nonsense("of a shard that is not its own");
  const plan::SegmentRun& run = transfer.runs[r];
  const uint64_t first = header.first_segment, count = header.segments;
  if (first < run.first || first + count > uint64_t{run.first} + run.count) {
    return nonsense("of segments that were not pushed");
  }
  for (uint64_t s = first; s < first + count; ++s) {
    if (transfer.answered[r][s - run.first]) return nonsense("twice");
  }
  const plan::Shard& shard = transfer.shards[run.shard];
  const size_t begin = first * options_.segment_bytes;
  const size_t bytes = std::min(count * options_.segment_bytes, shard.bytes - begin);
  const bool empty = header.flags & wire::kFlagEmpty;
  if (empty != (transfer.receive == nullptr) || header.payload != (empty ? 0 : bytes)) {
    return nonsense("of the wrong length");
  }
  if (count > path_of(flow).outstanding) return nonsense("beyond what is outstanding");
  flow.transfer = &transfer;
  flow.run = r;
  flow.range = {shard.offset + begin, bytes};
  if (!empty) out.add(transfer.receive + flow.range.offset, bytes);
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
  Transfer& transfer = *flow.transfer;
  const plan::SegmentRun& run = transfer.runs[flow.run];
  const uint32_t server = flow.server;
  for (uint32_t i = 0; i < header.segments; ++i) {
    transfer.answered[flow.run][header.first_segment - run.first + i] = true;
  }
  Path& path = path_of(flow);
  path.outstanding -= header.segments;
  path.carried = true;
  if (header.flags & wire::kFlagLent) flow.taken += header.segments;
  const auto stream = links_[server].streams.find(transfer.key.stream);
  stream->second.outstanding -= header.segments;
  // Every pump goes through the streams of a link: those that are done are not kept.
  if (stream->second.outstanding == 0 && stream->second.queue.empty()) {
    links_[server].streams.erase(stream);
  }
  transfer.workers = header.workers;
  transfer.fewest_workers = std::min(transfer.fewest_workers, header.workers);
  const Nanos now = answered_at_ = loop_.now();
  links_[server].count(now);
  links_[server].outstanding -= header.segments;
  links_[server].answered += header.segments;
  links_[server].returned += header.segments;
  const size_t outstanding = total_outstanding_;
  total_outstanding_ -= header.segments;
  if (options_.steers) {
    const uint32_t trials = controller_.trials();
    controller_.on_progress(header.segments * options_.segment_bytes, now - busy_since_,
                            outstanding * options_.segment_bytes, now);
    busy_since_ = now;
    if (controller_.trials() != trials) {
      log(LogLevel::kDebug, "credit: a trial gained ", controller_.last_gain(), ", now ",
          controller_.base(), " segments, queueing ", controller_.queueing() / kMicrosecond, " of ",
          controller_.response() / kMicrosecond, " us");
    }
    // Flows overtake each other: what comes late says less than is known.
    const auto fresh = static_cast<int16_t>(header.signals - server_signals_[server]);
    if (fresh > 0 || fresh < -kMostOvertaken) server_signals_[server] = header.signals;
    if (fresh > 0) lost(static_cast<uint32_t>(fresh), now);
  } else {
    credit_ = options_.credit_fixed ? options_.credit_initial
                                    : std::clamp<uint16_t>(header.credit, 1, options_.credit_max);
  }
  transfer.segments_left -= header.segments;
  const bool done = transfer.segments_left == 0;
  const auto let_go = done ? transfers_.extract(transfer.key) : decltype(transfers_)::node_type();
  if (transfer.receive != nullptr) transfer.owner->on_result(transfer, flow.range);
  if (done) transfer.owner->on_transfer_done(transfer);  // may push more
  if (server < links_.size()) pump(server);
  give_back(flow);
}

const Transfer* Links::overdue(Nanos now, Nanos margin) const {
  for (const auto& [key, pushed] : transfers_) {
    const Transfer& transfer = *pushed.transfer;
    if (transfer.open.deadline.passed(now - margin, transfer.pushed_at, answered_at_)) {
      return &transfer;
    }
  }
  return nullptr;
}

void Links::lost(uint32_t count, Nanos now) {
  const uint16_t before = controller_.credit();
  controller_.on_losses(count, now);
  if (controller_.credit() != before) {
    log(LogLevel::kDebug, "credit: ", count, " lost at ", before, " segments, now ",
        controller_.base());
  }
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
      flow->signals += static_cast<uint16_t>(flow->losses.poll(info));
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
  if (flows > 0) controller_.on_queueing(queueing / flows);
}

std::vector<Links::ServerCounters> Links::counters() const {
  std::vector<ServerCounters> all;
  for (const Link& link : links_) {
    ServerCounters sum;
    for (const auto& flow : link.flows) {
      sum.bytes_sent += flow->flow->counters().bytes_sent;
      sum.bytes_received += flow->flow->counters().bytes_received;
    }
    all.push_back(sum);
  }
  return all;
}

void Links::clear() {
  for (Link& link : links_) {
    for (auto& flow : link.flows) flow->flow->abandon();
  }
  forget_transfers();
}

void Links::finish() {
  for (Link& link : links_) {
    for (auto& flow : link.flows) {
      path_of(*flow).outstanding > 0 ? flow->flow->abandon() : flow->flow->finish();
    }
  }
  forget_transfers();
}

// Once no flow reads or writes for them any more.
void Links::forget_transfers() {
  for (Link& link : links_) link.streams.clear();
  orders_.clear();
  released_.clear();
  const auto let_go = std::exchange(transfers_, {});
}

}  // namespace herring::worker
