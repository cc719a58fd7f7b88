#include "links/links.h"

#include <algorithm>

#include "base/streams.h"
#include "links/window.h"
#include "transport/delivery.h"
#include "wire/credit.h"

namespace herring::links {
namespace {

// If servers differ, no link gets further ahead of another than this: one frame that is being
// answered and one that is on its way.
constexpr double kFramesAhead = 2;

// Returns `segments` as a share of the item's transfer.
double share(const Item& item, double segments, size_t segment_bytes) {
  const plan::Shard& shard = item.transfer->shards[item.transfer->runs[item.run].shard];
  return segments / static_cast<double>(plan::segment_count(shard.bytes, segment_bytes));
}

}  // namespace

Links::Links(transport::EventLoop& loop, LinksOptions options, OnControl on_control,
             OnClosed on_closed, OnCalledOff on_called_off)
    : loop_(loop),
      options_(std::move(options)),
      on_control_(std::move(on_control)),
      on_closed_(std::move(on_closed)),
      on_called_off_(std::move(on_called_off)),
      route_(options_),
      credits_(options_, route_, links_),
      kept_(options_, route_, *this) {}

Links::~Links() = default;

void Links::add_flow(uint32_t server, transport::Connection& connection) {
  if (server >= links_.size()) {
    links_.resize(server + 1);
    route_.add_server(server);
    kept_.add_server(server);
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
  credits_.add_flow();
}

void Links::add_group(uint32_t group, const std::vector<uint32_t>& servers, bool steers,
                      bool even) {
  credits_.add_group(group, servers, steers);
  route_.add_group(group, servers, even);
}

void Links::remove_group(uint32_t group) {
  empty_queues(group, false);
  pump_released();
  credits_.of(group).removed = true;
  kept_.remove_group(group);
  forgotten(group);
}

// Results that were given to a server have yet to be answered. Forgetting the last one may have
// removed the group already.
void Links::forgotten(uint32_t group) {
  const bool removed = credits_.has(group) && credits_.of(group).removed;
  if (!removed || kept_.any(group)) return;
  route_.remove_group(group);
  credits_.remove_group(group);
}

bool Links::busy(uint32_t group) const {
  return std::any_of(transfers_.begin(), transfers_.end(), [group](const auto& one) {
    return one.first.group == group && !wire::outlives_members(one.first.stream);
  });
}

bool Links::needs(uint32_t group, uint32_t server) const {
  return std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& one) {
    if (one.first.group != group || wire::outlives_members(one.first.stream)) return false;
    const Transfer& transfer = *one.second.transfer;
    for (size_t r = 0; r < transfer.runs.size(); ++r) {
      if (server_of(transfer, static_cast<uint32_t>(r)) != server) continue;
      const auto& answered = transfer.answered[r];
      if (std::find(answered.begin(), answered.end(), false) != answered.end()) return true;
    }
    return false;
  });
}

size_t Links::open_flows(uint32_t server) const {
  const auto& flows = links_[server].flows;
  return static_cast<size_t>(std::count_if(flows.begin(), flows.end(), [](const auto& one) {
    return !one->flow->closed();
  }));
}

uint64_t Links::bytes_received(uint32_t server) const {
  uint64_t bytes = 0;
  for (const auto& one : links_[server].flows) bytes += one->flow->counters().bytes_received;
  return bytes;
}

size_t Links::undelivered() const {
  size_t left = 0;
  for (const Link& link : links_) {
    for (const auto& one : link.flows) left += transport::undelivered(*one->flow);
  }
  return left;
}

Status Links::push(Transfer& transfer, std::shared_ptr<void> keeps) {
  const Key& key = transfer.key;
  if (!credits_.has(key.group)) {
    return defect("'", transfer.open.name, "' was pushed in group ", key.group,
                  ", which does not exist here");
  }
  if (transfers_.count(key) != 0) {
    return defect("stream ", key.stream, ", round ", key.round, ", buffer ", key.buffer, " of '",
                  transfer.open.name, "' is already in flight");
  }
  transfer.segments_left = 0;
  transfer.runs_left = static_cast<uint32_t>(transfer.runs.size());
  transfer.workers = 0;
  transfer.fewest_workers = UINT32_MAX;
  transfer.pushed_at = loop_.now();
  transfer.called_off = false;
  transfer.opened.assign(transfer.runs.size(), 0);
  transfer.on_the_way.assign(transfer.runs.size(), 0);
  transfer.answered.resize(transfer.runs.size());
  for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
    const plan::SegmentRun& run = transfer.runs[r];
    transfer.segments_left += run.count;
    transfer.answered[r].assign(run.count, false);
  }
  Pace& pace = credits_.of(key.group);
  transfer.called_off =
      pace.abandoned || (pace.called_off && !wire::outlives_members(key.stream));
  transfer.ways.assign(options_.failover ? transfer.runs.size() : 0, {});
  const bool attempts = transfer.attempt && !pace.abandoned;
  for (uint32_t r = 0; r < transfer.ways.size() && attempts; ++r) {
    choose_way(transfer, r);
    if (route_.is_gone(transfer, r)) lose(transfer, r);
  }
  if (transfer.segments_left == 0 || transfer.called_off) {
    if (!transfer.called_off) transfer.mark.at(observe::Moment::kPushed, transfer.pushed_at);
    const bool keeps = options_.failover && !transfer.called_off;
    if (keeps && route_.keeps_results(transfer)) kept_.note_over(transfer);
    transfer.owner->on_transfer_done(transfer);
    return {};
  }
  pace.begin(loop_.now());
  transfers_.emplace(key, Pushed{&transfer, std::move(keeps)});
  kept_.begin_in_reign(key);
  std::vector<uint32_t> touched;
  const StreamId id{key.group, key.stream, 0, 0};
  const uint64_t number = balances_ ? orders_[id].transfers++ : 0;
  for (uint32_t r = 0; r < transfer.runs.size(); ++r) {
    if (options_.failover && !transfer.attempt) choose_way(transfer, r);
    if (options_.failover && route_.is_gone(transfer, r)) continue;
    enqueue(transfer, r, number);
    touched.push_back(server_of(transfer, r));
  }
  // Nodes start at different servers, so that their first frames do not all meet at one server.
  const auto n = static_cast<uint32_t>(links_.size());
  std::sort(touched.begin(), touched.end(), [&](uint32_t a, uint32_t b) {
    return (a + n - options_.first_server % n) % n < (b + n - options_.first_server % n) % n;
  });
  for (uint32_t server : touched) pump(server);
  return {};
}

// Queues the run at the end of its stream.
void Links::enqueue(Transfer& transfer, uint32_t run, uint64_t number) {
  const uint32_t server = server_of(transfer, run);
  const StreamId id = stream_id(transfer, run);
  Stream& stream = links_[server].stream_of(id, credits_.of(id.group));
  stream.queue.push({&transfer, run, transfer.runs[run].first, number});
  if (balances_ && stream.queue.size() == 1) note_position(server, id, stream);
}

void Links::pump(uint32_t server) {
  pump_link(links_[server]);
  pump_released();
}

// Pumps the links that no longer have to wait for progress on another link, or for transfers of
// earlier reigns.
void Links::pump_released() {
  while (!released_.empty()) {
    const uint32_t next = released_.back();
    released_.pop_back();
    pump_link(links_[next]);
  }
}

// Streams take turns in the order of their IDs. Each stream may have one segment on its way
// regardless of the others. So no stream waits for another, and no group uses another group's
// window. (If servers differ, Balance may hold even that segment, but never on the link that is
// furthest behind. And in a job that goes on when a server dies, a stream of calls waits for those
// of earlier reigns, which wait for no later one.)
void Links::pump_link(Link& link) {
  if (stopped_) return;
  for (auto one = link.streams.begin(); one != link.streams.end();) {
    auto& [id, stream] = *one;
    while (!stream.queue.empty() && send_next(link, id, stream)) {}
    // Nothing was left to push of runs that had moved here.
    const bool idle = stream.queue.empty() && stream.outstanding == 0;
    one = idle ? link.erase(one) : std::next(one);
  }
}

// Records the position of the stream's first item on this link, which is a new one or has advanced.
// What is pushed again has none: no link waits for it.
void Links::note_position(uint32_t server, const StreamId& id, Stream& stream) {
  const auto order = orders_.find(id);
  if (order == orders_.end()) return;
  Balance& balance = order->second.balance;
  if (stream.queue.empty() || goes_again(*stream.queue.front().transfer,
                                         stream.queue.front().run)) {
    balance.remove(server);
  } else {
    const Item& item = stream.queue.front();
    balance.set(server, static_cast<double>(item.number) +
                            share(item, item.next, options_.segment_bytes));
  }
  while (const auto link = balance.release()) released_.push_back(*link);
  if (balance.empty() && !is_queued(id)) orders_.erase(order);
}

// Returns whether the stream has something to push that has no position, because something that is
// pushed again comes first.
bool Links::is_queued(const StreamId& id) const {
  return options_.failover && std::ranges::any_of(links_, [&id](const Link& link) {
    const auto stream = link.streams.find(id);
    return stream != link.streams.end() && !stream->second.queue.empty();
  });
}

// Tells the server of the item's transfer before its first data there, and returns the header of
// frames about it.
wire::FrameHeader Links::header_of(LinkFlow& flow, const Item& item, const StreamId& id,
                                   bool again) {
  Transfer& transfer = *item.transfer;
  const plan::Shard& shard = transfer.shards[transfer.runs[item.run].shard];
  wire::FrameHeader header{.group = id.group, .stream = id.stream, .round = transfer.key.round,
                           .buffer = transfer.key.buffer, .home = static_cast<uint16_t>(id.home),
                           .epoch = id.epoch};
  if (!(transfer.opened[item.run] >> flow.index & 1)) {
    transfer.opened[item.run] |= uint64_t{1} << flow.index;
    header.type = wire::FrameType::kOpen;
    wire::Open open = transfer.open;
    open.shard_bytes = shard.bytes;
    open.again = again;
    open.stays = options_.failover && !route_.keeps_results(transfer);
    open.result_workers = again ? transfer.workers : 0;
    flow.flow->send_owned(header, encode(open));
  }
  return header;
}

bool Links::send_next(Link& link, const StreamId& id, Stream& stream) {
  if (id.stream >= kReignStreams && kept_.waits_for_earlier_reign(id)) return false;
  const size_t chosen = soonest(link.paths);
  LinkFlow& flow = *link.flows[chosen];
  Path& path = link.paths[chosen];
  Item& item = stream.queue.front();
  Transfer& transfer = *item.transfer;
  const plan::SegmentRun& run = transfer.runs[item.run];
  Pace& pace = *stream.pace;
  size_t& of_group = pace.links[flow.server].outstanding[flow.index];
  const size_t window = credits_.window(flow.server, pace);
  const size_t frame_limit =
      frame_of(window, link.frames, options_.frame_max, options_.segment_bytes);
  const bool again = goes_again(transfer, item.run);
  Piece piece{std::min<size_t>(run.first + run.count - item.next, frame_limit), false};
  if (again) piece = Kept::next_piece(item, piece.count);
  size_t count = piece.gives ? kept_.in_frame(transfer, piece.count) : piece.count;
  if (count == 0) {  // nothing is left that another worker may lack
    stream.queue.pop();
    if (balances_) note_position(flow.server, id, stream);
    return true;
  }
  // Waits until a whole frame fits, so that a growing window means larger frames, not more small
  // ones.
  if (!wire::within_credit(of_group, stream.outstanding, count, window) ||
      !wire::within_credit(path.outstanding, stream.outstanding, count, options_.credit_max)) {
    if (stream.outstanding > 0) return false;
    count = 1;
  }
  const bool balanced = balances_ && id.home == 0 && !again;
  if (balanced) {
    const double allowed =
        share(item, kFramesAhead * static_cast<double>(count), options_.segment_bytes);
    if (orders_.find(id)->second.balance.hold(flow.server, allowed)) return false;
  }

  wire::FrameHeader header = header_of(flow, item, id, again);
  const plan::Shard& shard = transfer.shards[run.shard];
  const size_t begin = item.next * options_.segment_bytes;
  const size_t bytes = std::min(count * options_.segment_bytes, shard.bytes - begin);
  header.type = wire::FrameType::kData;
  header.segments = static_cast<uint16_t>(count);
  header.first_segment = item.next;
  header.credit = pace.credit();
  header.flags = piece.gives ? wire::kFlagGives
                             : (transfer.receive != nullptr ? wire::kFlagWant : 0) |
                                   (transfer.send == nullptr ? wire::kFlagEmpty : 0);
  if (pace.steers) {
    header.flags |= wire::kFlagSteers;
    pace.links[flow.server].said = header.credit;
  }
  header.signals = flow.signals;
  header.taken = flow.taken_told = flow.taken;
  credits_.sent(link, pace, count, loop_.now());
  path.outstanding += count;
  of_group += count;
  stream.outstanding += count;
  transfer.on_the_way[item.run] += static_cast<uint32_t>(count);
  if (piece.gives) {
    flow.flow->send_owned(header, kept_.results(transfer, item.run, item.next, count));
  } else if (transfer.send == nullptr) {
    flow.flow->send(header, nullptr, 0, 0);
  } else {
    // The pushed memory does not change until the result arrives, because the result includes this
    // data.
    header.payload = static_cast<uint32_t>(bytes);
    const iovec part{const_cast<char*>(transfer.send) + shard.offset + begin, bytes};
    flow.flow->lend(header, &part, 1);
  }
  item.next += static_cast<uint32_t>(count);
  if (item.next == run.first + run.count) {
    stream.queue.pop();
    if (!again && --transfer.runs_left == 0 && transfer.mark) {
      transfer.mark.at(observe::Moment::kPushed, loop_.now());
    }
  }
  if (balances_) note_position(flow.server, id, stream);
  return true;
}

// Empties the queues of the group's streams. `goes_on`: but not those of partial all-reduces.
void Links::empty_queues(uint32_t group, bool goes_on) {
  for (uint32_t server = 0; server < links_.size(); ++server) {
    Link& link = links_[server];
    for (auto one = link.first_of(group);
         one != link.streams.end() && one->first.group == group &&
         !(goes_on && wire::outlives_members(one->first.stream));) {
      const bool had_more = !one->second.queue.empty();
      while (!one->second.queue.empty()) one->second.queue.pop();
      if (balances_ && had_more) note_position(server, one->first, one->second);
      one = one->second.outstanding == 0 ? link.erase(one) : std::next(one);
    }
  }
}

void Links::send_control(uint32_t server, const wire::FrameHeader& header, std::string payload) {
  links_[server].flows.front()->flow->send_owned(header, std::move(payload));
}

std::vector<transport::FlowCounters> Links::counters() const {
  std::vector<transport::FlowCounters> all;
  for (const Link& link : links_) {
    transport::FlowCounters sum;
    for (const auto& flow : link.flows) {
      sum.bytes_sent += flow->flow->counters().bytes_sent;
      sum.bytes_received += flow->flow->counters().bytes_received;
    }
    all.push_back(sum);
  }
  return all;
}

std::vector<transport::PathInfo> Links::paths() const {
  std::vector<transport::PathInfo> all;
  for (const Link& link : links_) {
    transport::PathInfo& sum = all.emplace_back();
    for (const auto& flow : link.flows) {
      const transport::PathInfo one = flow->flow->path_info();
      sum.retransmits += one.retransmits;
      sum.rtt = std::max(sum.rtt, one.rtt);
      const bool known = one.rtt > 0 && one.min_rtt <= one.rtt;
      if (known && (sum.min_rtt == 0 || one.min_rtt < sum.min_rtt)) sum.min_rtt = one.min_rtt;
    }
  }
  return all;
}

Nanos Links::unheard(uint32_t server) {
  Nanos longest = 0;
  for (const auto& flow : links_[server].flows) {
    if (flow->flow->closed()) continue;
    longest = std::max(longest, flow->silence.at(flow->flow->path_info(), loop_.now()));
  }
  return longest;
}

void Links::stop() {
  stopped_ = true;
  for (Link& link : links_) {
    for (auto& flow : link.flows) {
      if (link.paths[flow->index].outstanding > 0) flow->flow->finish(false);
    }
  }
}

bool Links::lends() const {
  return std::ranges::any_of(links_, [](const Link& link) {
    return std::ranges::any_of(link.flows, [&link](const auto& flow) {
      return link.paths[flow->index].outstanding > 0 && !flow->flow->closed();
    });
  });
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
      link.paths[flow->index].outstanding > 0 ? flow->flow->abandon() : flow->flow->finish();
    }
  }
  forget_transfers();
}

// To be called when no flow accesses the memory of transfers any more.
void Links::forget_transfers() {
  for (Link& link : links_) link.forget_streams();
  orders_.clear();
  released_.clear();
  kept_.clear();
  const auto let_go = std::exchange(transfers_, {});
}

}  // namespace herring::links
