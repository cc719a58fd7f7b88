#include "worker/node_stage.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "reduce/reduce.h"

namespace herring::worker {
namespace {

// Summed, then copied to the other ranks while it is still in the first-level cache.
constexpr size_t kBlockBytes = 16 << 10;

uint32_t interest(bool wants_write) {
  return transport::kForReading | (wants_write ? transport::kForWriting : 0u);
}

}  // namespace

NodeStage::NodeStage(transport::EventLoop& loop, LocalBus& bus, SharedHeap& heap, Links& links,
                     Options options, OnFailure on_failure)
    : loop_(loop),
      bus_(bus),
      heap_(heap),
      links_(links),
      options_(std::move(options)),
      on_failure_(std::move(on_failure)),
      local_size_(std::max(1u, bus.local_size())),
      gone_(local_size_, false) {}

// Before the loop runs, or on its thread.
void NodeStage::attach() {
  if (bus_.fds().empty()) return;
  transport::DescriptorLoop& loop = transport::DescriptorLoop::of(loop_);
  for (int fd : bus_.fds()) {
    BusSocket& socket = sockets_[fd];
    socket.bus = &bus_;
    socket.fd = fd;
    loop.add(fd, interest(bus_.wants_write(fd)), &socket);
  }
  bus_.set_interest_handler([&loop](int fd, bool wants_write) {
    loop.modify(fd, interest(wants_write));
  });
  // A death is the rendezvous' to tell; here the socket only leaves the loop. What goes wrong
  // between two that live, nobody else can tell: who made this waits for the news of a death.
  bus_.set_handler([this](const LocalMessage& message) { on_message(message); },
                   [this, &loop](uint32_t local_rank, const Status& why) {
                     log(LogLevel::kDebug, "connection to ", options_.names[local_rank],
                         " ended: ", why.message());
                     loop.remove(bus_.fd_of(local_rank));
                     gone_[local_rank] = true;
                     std::vector<uint32_t> waiting;
                     for (const auto& [group, one] : called_off_) waiting.push_back(group);
                     for (const uint32_t group : waiting) settle(group);
                     for (auto one = forgotten_.begin(); one != forgotten_.end();) {
                       one->second.erase(local_rank);
                       one = one->second.empty() ? forgotten_.erase(one) : std::next(one);
                     }
                     if (why.is_fault()) on_failure_(why);
                     if (why.code() == Code::kPeerLost && options_.on_lost) {
                       options_.on_lost(local_rank, why);
                     }
                   });
}

NodeStage::~NodeStage() {
  for (int fd : bus_.fds()) transport::DescriptorLoop::of(loop_).remove(fd);
}

void NodeStage::BusSocket::on_ready(uint32_t readiness) {
  if (readiness & transport::kForWriting) bus->on_writable(fd);
  if (readiness & transport::kForReading) bus->on_readable(fd);
}

NodeStage::Entry& NodeStage::entry(const Key& key) {
  std::shared_ptr<Entry>& place = tasks_[key];
  if (!place) {
    place = std::make_shared<Entry>();
    place->task.key = key;
    place->ranks.resize(local_size_);
    place->since = place->moved = loop_.now();
  }
  return *place;
}

NodeStage::Entry* NodeStage::find(const Key& key) {
  const auto found = tasks_.find(key);
  return found == tasks_.end() ? nullptr : found->second.get();
}

// To the other members of its group on this node.
void NodeStage::send(const Entry& e, LocalMessage message) {
  message.group = e.task.key.group;
  message.stream = e.task.key.stream;
  message.round = e.task.key.round;
  message.buffer = e.task.key.buffer;
  for (const uint32_t local : e.group().locals()) {
    // One that is gone is the rendezvous' to tell.
    if (local != options_.local_rank) static_cast<void>(bus_.send(local, message));
  }
}

void NodeStage::post(NodeTask task) {
  if (cleared_) return;
  if (called_off_.contains(task.key.group)) return task.on_done(0);
  Entry& e = entry(task.key);
  if (std::exchange(e.mine, true)) {
    return on_failure_(defect("'", task.name, "' is in flight already"));
  }
  e.task = std::move(task);
  LocalMessage message;
  message.kind = kPost;
  message.flags = e.task.active ? 0 : kInactive;
  message.bytes = e.task.bytes;
  if (e.locals() > 1 && e.task.bytes > 0) {
    const auto location = heap_.locate(e.task.data, e.task.bytes);
    const auto region = location ? heap_.region(location->region) : nullptr;
    if (region == nullptr) {
      return on_failure_(defect("'", e.task.name, "' is not in shared memory"));
    }
    message.region = bus_.export_region(region);
    message.offset = location->offset;
  }
  if (e.locals() > 1) send(e, message);
  Posted& mine = e.ranks[options_.local_rank];
  mine.here = true;
  mine.active = e.task.active;
  mine.data = {e.task.keeps, e.task.data};
  mine.bytes = e.task.bytes;
  if (++e.posted == e.locals()) all_posted(e);
}

void NodeStage::on_message(const LocalMessage& message) {
  if (cleared_) return;
  moved_ = loop_.now();
  if (message.kind == kCalledOff) {
    if (const auto found = forgotten_.find(message.group); found != forgotten_.end()) {
      found->second.erase(message.from);
      if (found->second.empty()) forgotten_.erase(found);
      return;
    }
    let_go_[message.group].insert(message.from);
    return settle(message.group);
  }
  if (called_off_.contains(message.group)) return;  // said before it knew
  const Key key{message.stream, message.round, message.buffer, message.group};
  if (message.kind != kPost && message.kind != kDone) {
    return on_failure_(breach("unexpected message ", int{message.kind}, " from ",
                              options_.names[message.from]));
  }
  Entry& e = entry(key);
  e.moved = moved_;
  Posted& peer = e.ranks[message.from];
  if (message.kind == kDone) {
    if (!peer.here || peer.done) {
      return on_failure_(breach(options_.names[message.from],
                                " is done with a buffer out of turn"));
    }
    peer.done = true;
    if (message.workers > 0) e.result_workers = message.workers;
    ++e.done;
    return maybe_finish(e);
  }
  if (peer.here) {
    return on_failure_(breach(options_.names[message.from], " has posted a buffer twice"));
  }
  Result<std::shared_ptr<char>> memory = std::shared_ptr<char>();
  if (message.bytes > 0) {
    memory = bus_.peer_memory(message.from, message.region, message.offset, message.bytes);
  }
  if (!memory.ok()) {
    return on_failure_({memory.status().code(), concat("cannot use the memory of ",
                                                       options_.names[message.from], ": ",
                                                       memory.status().message())});
  }
  peer.here = true;
  peer.active = !(message.flags & kInactive);
  peer.data = std::move(*memory);
  peer.bytes = message.bytes;
  ++e.posted;
  // A neighbour may know a group before this rank does.
  if (e.mine && e.posted == e.locals()) all_posted(e);
}

Status NodeStage::check_posted(const Entry& e) const {
  for (const uint32_t r : e.group().locals()) {
    if (!e.ranks[r].here) {
      return breach("'", e.task.name, "'", e.group().members().suffix(),
                    " was posted by a rank that is no member");
    }
    if (e.ranks[r].bytes != e.task.bytes && !e.task.exchanges) {
      return {Code::kMismatch,
              concat("ranks disagree about '", e.task.name, "': ", options_.names[r], " has ",
                     e.ranks[r].bytes, " bytes, ", options_.names[options_.local_rank], " ",
                     e.task.bytes)};
    }
  }
  return {};
}

// Where pieces begin; each must lie in what its rank has posted.
Status NodeStage::find_pieces(Entry& e) const {
  const std::vector<uint32_t>& locals = e.group().locals();
  const auto lies_in = [](const Posted& rank, size_t offset, size_t bytes) {
    return offset <= rank.bytes && bytes <= rank.bytes - offset;
  };
  for (NodePiece& piece : e.task.pieces) {
    const bool all = piece.from == NodePiece::kAll;
    for (uint32_t place = all ? 0 : piece.from; place <= (all ? e.locals() - 1 : piece.from);
         ++place) {
      const Posted& rank = e.ranks[locals[place]];
      bool fits = true;
      if (std::exchange(piece.told, false)) {
        uint64_t offset = 0;
        fits = lies_in(rank, piece.offset, sizeof(offset));
        if (fits) std::memcpy(&offset, rank.data.get() + piece.offset, sizeof(offset));
        piece.offset = offset;
      }
      if (fits && lies_in(rank, piece.offset, piece.bytes)) continue;
      return breach("'", e.task.name, "'", e.group().members().suffix(), ": ",
                    options_.names[locals[place]], " has posted ", rank.bytes, " bytes; of them ",
                    piece.bytes, " from ", piece.offset, " on are wanted");
    }
    e.slice.bytes += piece.bytes;
  }
  return {};
}

void NodeStage::all_posted(Entry& e) {
  if (Status fits = check_posted(e); !fits.ok()) return on_failure_(fits);
  for (const uint32_t r : e.group().locals()) e.workers += e.ranks[r].active;
  if (e.task.exchanges) {
    if (Status found = find_pieces(e); !found.ok()) return on_failure_(found);
    ready_.push(e.task.key);
    return schedule_work();
  }
  Transfer& transfer = e.transfer;
  transfer.key = e.task.key;
  transfer.owner = this;
  transfer.shards = e.task.shards;
  transfer.runs = plan::local_slice(transfer.shards, options_.segment_bytes,
                                    e.group().local_index(), e.locals());
  for (const plan::SegmentRun& run : transfer.runs) {
    const plan::Range range = plan::run_range(transfer.shards, options_.segment_bytes, run);
    if (e.slice.bytes == 0) e.slice.offset = range.offset;
    e.slice.bytes += range.bytes;
  }
  ready_.push(e.task.key);
  schedule_work();
}

void NodeStage::schedule_work() {
  if (std::exchange(work_scheduled_, true)) return;
  loop_.post([this] {
    work_scheduled_ = false;
    work();
  });
}

void NodeStage::work() {
  size_t budget = kWorkBytes;
  while (!ready_.empty() && budget >= plan::kAlignment) {
    const auto found = tasks_.find(ready_.front());
    if (found == tasks_.end() || called_off_.contains(found->first.group)) {
      ready_.pop();
      continue;
    }
    Entry& e = *found->second;
    // Whole elements only: what an earlier buffer has left of the budget may be odd.
    const size_t bytes = std::min(budget / plan::kAlignment * plan::kAlignment,
                                  e.slice.bytes - e.reduced);
    if (bytes > 0 && e.task.exchanges) {
      take(e, e.reduced, bytes);
    } else if (bytes > 0) {
      reduce(e, e.slice.offset + e.reduced, bytes);
    }
    e.reduced += bytes;
    e.moved = loop_.now();
    budget -= bytes;
    if (e.reduced == e.slice.bytes) {
      const std::shared_ptr<Entry> reduced = found->second;
      ready_.pop();
      e.last_stage() ? slice_done(e) : push_slice(reduced);
    }
  }
  moved_ = loop_.now();
  if (!ready_.empty()) schedule_work();
}

// A sum of 16-bit floats must not overflow before the servers divide it: it travels scaled by a
// power of two that the server takes back (exact, but for the smallest subnormals).
double NodeStage::wire_scale(const NodeTask& task) const {
  const control::Group& members = task.group->members();
  if (members.nodes() == 1 || task.wire != DType::kFloat16 ||
      (task.reduction.op != ReduceOp::kSum && task.reduction.op != ReduceOp::kAverage)) {
    return 1.0;
  }
  return 1.0 / static_cast<double>(std::bit_ceil(members.most_on_a_node()));
}

void NodeStage::reduce(Entry& e, size_t begin, size_t bytes) {
  const NodeTask& task = e.task;
  const size_t item = size_of(task.dtype), wire_item = size_of(task.wire);
  const bool last_stage = e.last_stage();
  const DType out_type = last_stage ? task.dtype : task.wire;
  const double divisor = task.reduction.op == ReduceOp::kAverage ? std::max(1u, e.workers) : 1.0;
  const reduce::Stage stage{task.dtype,
                            out_type,
                            task.reduction.op,
                            task.reduction.prescale,
                            last_stage ? divisor : 1.0,
                            last_stage ? task.reduction.postscale : wire_scale(task)};
  size_t element = begin / wire_item;
  const size_t end = element + bytes / wire_item;
  std::vector<const void*> sources;
  // A node of one worker has nothing to add up, often not even to change.
  if (e.locals() == 1 && task.active && out_type == task.dtype && stage.prescale == 1.0 &&
      stage.divisor == 1.0 && stage.postscale == 1.0) {
    return;
  }
  while (element < end) {
    const size_t count = std::min(kBlockBytes / item, end - element);
    sources.clear();
    for (const uint32_t local : e.group().locals()) {
      const Posted& rank = e.ranks[local];
      if (rank.active) sources.push_back(rank.data.get() + element * item);
    }
    char* out = last_stage || !converts(task) ? task.data + element * item
                                              : task.staging + element * wire_item;
    if (sources.empty()) {
      std::memset(out, 0, count * size_of(out_type));
    } else {
      reduce::combine(sources.data(), sources.size(), out, count, stage);
    }
    if (last_stage) share(e, element, count);
    element += count;
  }
}

// Copies finished elements from this rank's buffer to the others'.
void NodeStage::share(Entry& e, size_t element, size_t elements) {
  const size_t item = size_of(e.task.dtype);
  const size_t offset = element * item, bytes = elements * item;
  for (const uint32_t r : e.group().locals()) {
    if (r == options_.local_rank) continue;
    std::memcpy(e.ranks[r].data.get() + offset, e.task.data + offset, bytes);
  }
}

void NodeStage::take(Entry& e, size_t begin, size_t bytes) {
  const NodeTask& task = e.task;
  const double divisor = task.reduction.op == ReduceOp::kAverage ? std::max(1u, e.workers) : 1.0;
  const reduce::Stage stage = reduce::whole(task.dtype, task.reduction, divisor);
  const size_t item = size_of(task.dtype), end = begin + bytes;
  size_t first = 0;  // of the piece
  for (const NodePiece& piece : task.pieces) {
    size_t at = std::max(begin, first);
    const size_t to = std::min(end, first + piece.bytes);
    while (at < to) {
      const size_t offset = piece.offset + at - first;
      char* const out = task.out + piece.receive + at - first;
      if (piece.from != NodePiece::kAll) {
        std::memcpy(out, e.ranks[e.group().locals()[piece.from]].data.get() + offset, to - at);
        break;
      }
      const size_t some = std::min(kBlockBytes, to - at);
      std::vector<const void*> sources;
      for (const uint32_t r : e.group().locals()) {
        sources.push_back(e.ranks[r].data.get() + offset);
      }
      reduce::combine(sources.data(), sources.size(), out, some / item, stage);
      at += some;
    }
    first += piece.bytes;
  }
}

wire::Open NodeStage::open_of(const Entry& e) const {
  wire::Open open;
  open.dtype = e.task.wire;
  open.reduction.op = e.task.reduction.op;
  open.participants = wire::Participants::kNodes;
  open.workers = e.workers;
  open.reduction.postscale = e.task.reduction.postscale / wire_scale(e.task);
  open.deadline = e.task.deadline;
  open.name = e.task.name;
  return open;
}

void NodeStage::push_slice(const std::shared_ptr<Entry>& entry) {
  Entry& e = *entry;
  Transfer& transfer = e.transfer;
  char* base = converts(e.task) ? e.task.staging : e.task.data;
  transfer.open = open_of(e);
  transfer.send = e.workers > 0 ? base : nullptr;
  transfer.receive = base;
  e.pushed = true;
  if (Status pushed = links_.push(transfer, entry); !pushed.ok()) on_failure_(pushed);
}

void NodeStage::on_result(Transfer& transfer, plan::Range range) {
  Entry& e = *find(transfer.key);
  const size_t wire_item = size_of(e.task.wire), item = size_of(e.task.dtype);
  const size_t element = range.offset / wire_item, count = range.bytes / wire_item;
  if (converts(e.task)) {
    reduce::convert(e.task.staging + range.offset, e.task.wire, e.task.data + element * item,
                    e.task.dtype, count, 1.0);
  }
  share(e, element, count);
}

void NodeStage::on_transfer_done(Transfer& transfer) {
  Entry* const e = find(transfer.key);
  if (e == nullptr) return;  // cleared
  e->pushed = false;
  if (transfer.called_off) return settle(transfer.key.group);
  if (transfer.workers > 0) e->result_workers = transfer.workers;
  slice_done(*e);
}

void NodeStage::slice_done(Entry& e) {
  LocalMessage message;
  message.kind = kDone;
  message.workers = e.result_workers;  // not every local rank has a part of a small buffer
  if (e.locals() > 1) send(e, message);
  e.ranks[options_.local_rank].done = true;
  ++e.done;
  maybe_finish(e);
}

void NodeStage::maybe_finish(Entry& e) {
  if (e.done < e.locals()) return;
  auto node = tasks_.extract(e.task.key);
  const Entry& finished = *node.mapped();
  finished.task.on_done(finished.result_workers > 0 ? finished.result_workers : finished.workers);
}

bool NodeStage::busy(uint32_t group) const {
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [group](const auto& one) { return one.first.group == group; });
}

Nanos NodeStage::moved_at(uint32_t group) const {
  Nanos latest = 0;
  for (const auto& [key, entry] : tasks_) {
    if (key.group == group) latest = std::max(latest, entry->moved);
  }
  return latest;
}

bool NodeStage::has_unpushed(uint32_t group) const {
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& one) {
    const Entry& e = *one.second;
    return one.first.group == group && e.mine && !e.pushed && !e.ranks[options_.local_rank].done;
  });
}

bool NodeStage::waits_for_gone(uint32_t group) const {
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& one) {
    const Entry& e = *one.second;
    if (one.first.group != group || !e.mine) return false;
    const std::vector<uint32_t>& locals = e.group().locals();
    return std::any_of(locals.begin(), locals.end(), [&](uint32_t local) {
      return gone_[local] && !(e.ranks[local].here && e.ranks[local].done);
    });
  });
}

void NodeStage::let_go(const Group& group) {
  LocalMessage message;
  message.kind = kCalledOff;
  message.group = group.id();
  for (const uint32_t local : group.locals()) {
    if (local != options_.local_rank) static_cast<void>(bus_.send(local, message));
  }
}

// Neighbours that still have the group will say that they let go of it, too: until then it is
// known that nobody here waits for that.
void NodeStage::forget(const Group& group) {
  if (cleared_) return;
  if (!called_off_.contains(group.id())) let_go(group);
  called_off_.erase(group.id());
  const auto said = let_go_.extract(group.id());
  std::set<uint32_t> silent;
  for (const uint32_t local : group.locals()) {
    const bool has_said = !said.empty() && said.mapped().contains(local);
    if (local != options_.local_rank && !gone_[local] && !has_said) silent.insert(local);
  }
  if (!silent.empty()) forgotten_.emplace(group.id(), std::move(silent));
}

void NodeStage::call_off(const std::shared_ptr<const Group>& group) {
  if (cleared_ || !called_off_.try_emplace(group->id(), CalledOff{group}).second) return;
  settle(group->id());
}

// From here on nothing of this group touches neighbours' memory: what is on its way from servers
// lands in memory here and is not copied to them any more.
void NodeStage::settle(uint32_t group) {
  const auto found = called_off_.find(group);
  if (found == called_off_.end()) return;
  CalledOff& one = found->second;
  if (!std::exchange(one.told, true)) let_go(*one.group);
  if (!untouched(one)) return;
  std::vector<std::shared_ptr<Entry>> ended;
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    const bool ends = it->first.group == group && !it->second->pushed;
    if (ends) ended.push_back(std::move(it->second));
    it = ends ? tasks_.erase(it) : std::next(it);
  }
  for (const auto& entry : ended) {
    if (entry->mine) entry->task.on_done(0);
  }
}

bool NodeStage::untouched(const CalledOff& one) const {
  const auto said = let_go_.find(one.group->id());
  for (const uint32_t local : one.group->locals()) {
    const bool let_go = local == options_.local_rank || gone_[local] ||
                        (said != let_go_.end() && said->second.contains(local));
    if (!let_go) return false;
  }
  return true;
}

void NodeStage::release_regions() {
  for (uint32_t region : heap_.take_released()) bus_.release_region(region);
}

void NodeStage::check_deadlines(Nanos now, Nanos servers_margin) {
  for (auto& [key, e] : tasks_) {
    if (!e->mine || called_off_.contains(key.group)) continue;
    const bool submitted = e->posted == e->locals();
    // Servers say who is missing on other nodes, and so do neighbours that wait for servers.
    if (submitted && !e->last_stage() && !e->ranks[options_.local_rank].done) continue;
    const Nanos margin = submitted && !e->last_stage() ? servers_margin : 0;
    const Nanos moved = std::max(moved_, submitted ? links_.answered_at() : 0);
    const bool overdue = e->task.deadline.passed(now - margin, e->since, moved);
    if (!overdue && (e->warned || !e->task.deadline.warns(now - margin, e->since))) continue;
    std::string missing;
    for (const uint32_t r : e->group().locals()) {
      if (submitted ? e->ranks[r].done : e->ranks[r].here) continue;
      missing += (missing.empty() ? "" : ", ") + options_.names[r];
    }
    const std::string text = concat("'", e->task.name, "'", e->group().members().suffix(),
                                    " (round ", key.round, ", buffer ",
                                    key.buffer, ") has waited ", in_seconds(now - e->since),
                                    " for ", missing, submitted ? ", which did not finish it"
                                                                  : ", which did not submit it");
    if (overdue) return on_failure_({Code::kTimeout, text});
    if (!e->warned) {
      e->warned = true;
      log(LogLevel::kWarning, text);
    }
  }
}

void NodeStage::clear() {
  cleared_ = true;
  tasks_.clear();
  called_off_.clear();
  ready_.clear();
}

}  // namespace herring::worker
