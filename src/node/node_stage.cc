#include "node/node_stage.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/lists.h"
#include "base/log.h"

namespace herring {
namespace {

constexpr uint32_t kMostDoublings = 16;
constexpr auto kAdderPatience = std::chrono::milliseconds(500);

uint32_t interest(bool wants_write) {
  return transport::kForReading | (wants_write ? transport::kForWriting : 0u);
}

}  // namespace

NodeStage::NodeStage(transport::EventLoop& loop, LocalBus& bus, SharedHeap& heap,
                     links::Pusher& pusher, Options options, OnFailure on_failure)
    : loop_(loop),
      bus_(bus),
      heap_(heap),
      pusher_(pusher),
      options_(std::move(options)),
      on_failure_(std::move(on_failure)),
      local_size_(std::max(1u, bus.local_size())),
      adders_(options_.threads),
      called_off_(options_.local_rank, local_size_) {}

// Must run before the loop does, or on its thread.
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
  bus_.set_handler(
      [this](const LocalMessage& message) { on_message(message); },
      [this](uint32_t local_rank, const Status& why) { on_closed(local_rank, why); });
}

// The rendezvous reports deaths; here the socket only leaves the loop. But if a connection between
// two living ranks fails, nobody else reports it. Therefore on_lost is called, and its receiver
// waits for news of a death.
void NodeStage::on_closed(uint32_t local_rank, const Status& why) {
  log(LogLevel::kDebug, "connection to ", options_.names[local_rank], " ended: ", why.message());
  transport::DescriptorLoop::of(loop_).remove(bus_.fd_of(local_rank));
  called_off_.lose(local_rank);
  for (const uint32_t group : called_off_.numbers()) settle(group);
  if (why.is_fault()) on_failure_(why);
  if (why.code() == Code::kPeerLost && options_.on_lost) options_.on_lost(local_rank, why);
  if (why.code() == Code::kShutdown && options_.on_left) options_.on_left(local_rank);
}

NodeStage::~NodeStage() {
  for (int fd : bus_.fds()) transport::DescriptorLoop::of(loop_).remove(fd);
}

void NodeStage::BusSocket::on_ready(uint32_t readiness) {
  if (readiness & transport::kForWriting) bus->on_writable(fd);
  if (readiness & transport::kForReading) bus->on_readable(fd);
}

NodeWork& NodeStage::work_of(const wire::Key& key) {
  std::shared_ptr<NodeWork>& place = works_[key];
  if (!place) {
    place = std::make_shared<NodeWork>(options_, key, local_size_, loop_.now());
    place->transfer.owner = this;
  }
  return *place;
}

NodeWork* NodeStage::find(const wire::Key& key) {
  const auto found = works_.find(key);
  return found == works_.end() ? nullptr : found->second.get();
}

// Sends a message to the other members of the group on this node.
void NodeStage::send(const NodeWork& work, LocalMessage message) {
  message.group = work.task.key.group;
  message.stream = work.task.key.stream;
  message.round = work.task.key.round;
  message.buffer = work.task.key.buffer;
  for (const uint32_t local : work.group().locals()) {
    // The rendezvous reports dead neighbours; ignore the send error.
    if (local != options_.local_rank) static_cast<void>(bus_.send(local, message));
  }
}

void NodeStage::post(NodeTask task) {
  if (cleared_ || stopped_) return;
  if (called_off_.contains(task.key.group)) return task.on_done(0);
  NodeWork& work = work_of(task.key);
  if (std::exchange(work.mine, true)) {
    return on_failure_(defect("'", task.name, "' is already in flight"));
  }
  work.task = std::move(task);
  LocalMessage message;
  message.kind = kPost;
  message.flags = work.task.active ? 0 : kInactive;
  message.bytes = work.task.bytes;
  if (work.locals() > 1 && work.task.bytes > 0) {
    const auto location = heap_.locate(work.task.data, work.task.bytes);
    const auto region = location ? heap_.region(location->region) : nullptr;
    if (region == nullptr) {
      return on_failure_(defect("'", work.task.name, "' is not in shared memory"));
    }
    message.region = bus_.export_region(region);
    message.offset = location->offset;
  }
  if (work.locals() > 1) send(work, message);
  NodeWork::Posted& mine = work.own();
  mine.here = true;
  mine.active = work.task.active;
  mine.data = {work.task.keeps, work.task.data};
  mine.bytes = work.task.bytes;
  if (++work.posted == work.locals()) all_posted(work);
}

void NodeStage::on_message(const LocalMessage& message) {
  const bool stopped = stopped_ || cleared_;
  if (stopped && message.kind == kPost && !called_off_.contains(message.group)) {
    return let_go(message.group, message.from);
  }
  if (cleared_) return;
  moved_ = loop_.now();
  if (message.kind == kCalledOff) {
    called_off_.heard(message.group, message.from);
    return settle(message.group);
  }
  // What comes now was sent before the neighbour knew.
  if (stopped || called_off_.contains(message.group)) return;
  const wire::Key key{message.stream, message.round, message.buffer, message.group};
  if (message.kind != kPost && message.kind != kDone) {
    return on_failure_(breach("unexpected message ", int{message.kind}, " from ",
                              options_.names[message.from]));
  }
  NodeWork& work = work_of(key);
  work.moved = moved_;
  NodeWork::Posted& peer = work.ranks[message.from];
  if (message.kind == kDone) {
    if (!peer.here || peer.done) {
      return on_failure_(breach(options_.names[message.from],
                                " reported a buffer as done out of turn"));
    }
    peer.done = true;
    if (message.workers > 0) work.result_workers = message.workers;
    ++work.done;
    return maybe_finish(work);
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
  peer.region = message.region;
  peer.offset = message.offset;
  ++work.posted;
  // A neighbour may use a group before this rank knows it.
  if (work.mine && work.posted == work.locals()) all_posted(work);
}

void NodeStage::all_posted(NodeWork& work) {
  if (Status begun = work.begin(); !begun.ok()) return on_failure_(begun);
  if (Status told = tell_posted(work); !told.ok()) return on_failure_(told);
  if (work.task.adder && work.slice.bytes > 0) {
    const uint32_t workers = std::max(1u, work.workers);
    work.adding = true;
    return work.task.adder->start(
        work.active(), work.last_stage() ? divisor_of(work.task.reduction, workers) : 1.0);
  }
  ready_.push(work.task.key);
  schedule_work();
}

Status NodeStage::tell_posted(const NodeWork& work) {
  if (!work.task.on_posted) return {};
  std::vector<PostedMemory> all;
  for (const uint32_t local : work.group().locals()) {
    PostedMemory& one = all.emplace_back();
    const NodeWork::Posted& posted = work.ranks[local];
    if (local == options_.local_rank || posted.bytes == 0) continue;
    HERRING_ASSIGN_OR_RETURN(auto& region, bus_.peer_region(local, posted.region));
    one = {std::move(region), posted.offset};
  }
  work.task.on_posted(std::move(all));
  return {};
}

void NodeStage::added(const wire::Key& key) {
  const auto found = works_.find(key);
  if (found == works_.end()) return;  // cleared
  const std::shared_ptr<NodeWork> work = found->second;
  if (!std::exchange(work->adding, false)) return;  // it was stopped before it was started
  work->worked = work->slice.bytes;
  work->moved = moved_ = loop_.now();
  called_off_.contains(key.group) ? settle(key.group) : combined(work);
}

void NodeStage::given(const wire::Key& key) {
  const auto found = works_.find(key);
  if (found == works_.end()) return;  // cleared
  const std::shared_ptr<NodeWork> work = found->second;
  if (!std::exchange(work->giving, false)) return;  // it was stopped before it was to give
  work->moved = moved_ = loop_.now();
  called_off_.contains(key.group) ? settle(key.group) : slice_done(*work);
}

void NodeStage::combined(const std::shared_ptr<NodeWork>& work) {
  if (work->task.mark) work->task.mark.at(observe::Moment::kReduced, loop_.now());
  if (work->last_stage()) return slice_done(*work);
  work->combined = true;
  // Every worker pushes the parts of a round in the same order. A later part may be combined before
  // an earlier one, if a device adds the earlier one and processors add the later one.
  for (auto next = work; next != nullptr && may_push(*next); next = after(*next)) push_slice(next);
}

bool NodeStage::may_push(const NodeWork& work) {
  if (!work.combined || work.was_pushed()) return false;
  wire::Key before = work.task.key;
  if (!work.task.lockstep || before.buffer == 0) return true;
  --before.buffer;
  const NodeWork* const earlier = find(before);
  return earlier == nullptr || earlier->was_pushed();
}

std::shared_ptr<NodeWork> NodeStage::after(const NodeWork& work) {
  wire::Key key = work.task.key;
  ++key.buffer;
  const auto found = works_.find(key);
  return work.task.lockstep && found != works_.end() ? found->second : nullptr;
}

bool NodeStage::adds(uint32_t group) const {
  return std::any_of(works_.begin(), works_.end(), [group](const auto& one) {
    return one.first.group == group && (one.second->adding || one.second->giving);
  });
}

void NodeStage::schedule_work() {
  if (std::exchange(work_scheduled_, true)) return;
  loop_.post([this] {
    work_scheduled_ = false;
    do_work();
  });
}

void NodeStage::do_work() {
  size_t budget = kWorkBytes;
  while (!ready_.empty() && budget >= kPackBytes) {
    const auto found = works_.find(ready_.front());
    if (found == works_.end() || called_off_.contains(found->first.group)) {
      ready_.pop();
      continue;
    }
    const std::shared_ptr<NodeWork> work = found->second;
    // Works on whole elements and packs only: an earlier buffer may have left an odd number of
    // bytes of the budget.
    const size_t step = work->step_bytes();
    size_t bytes = std::min(std::max<size_t>(budget / step, 1) * kPackBytes,
                            work->slice.bytes - work->worked);
    if (adders_.helps(*work)) {
      bytes = adders_.add(work, bytes);
    } else {
      work->work(bytes);
    }
    work->moved = loop_.now();
    budget -= std::min(work->bytes_in(bytes), budget);
    if (work->worked == work->slice.bytes) {
      ready_.pop();
      combined(work);
    }
  }
  moved_ = loop_.now();
  if (!ready_.empty()) schedule_work();
}

void NodeStage::push_slice(const std::shared_ptr<NodeWork>& work) {
  work->prepare_push();
  if (Status pushed = pusher_.push(work->transfer, work); !pushed.ok()) on_failure_(pushed);
}

void NodeStage::on_result(links::Transfer& transfer, plan::Range range) {
  find(transfer.key)->place(range);
}

void NodeStage::on_transfer_done(links::Transfer& transfer) {
  NodeWork* const work = find(transfer.key);
  if (work == nullptr) return;  // cleared
  work->pushed = false;
  if (transfer.called_off) return settle(transfer.key.group);
  if (transfer.workers > 0) work->result_workers = transfer.workers;
  result_here(*work);
}

void NodeStage::result_here(NodeWork& work) {
  const std::shared_ptr<SliceAdder>& adder = work.task.adder;
  if (adder == nullptr || work.slice.bytes == 0 || !adder->gives()) return slice_done(work);
  work.giving = true;
  adder->give();
}

void NodeStage::slice_done(NodeWork& work) {
  LocalMessage message;
  message.kind = kDone;
  message.workers = work.result_workers;  // not every local rank has a part of a small buffer
  if (work.locals() > 1) send(work, message);
  work.own().done = true;
  ++work.done;
  maybe_finish(work);
}

void NodeStage::maybe_finish(NodeWork& work) {
  if (work.done < work.locals()) return;
  auto node = works_.extract(work.task.key);
  const NodeWork& finished = *node.mapped();
  const bool lost = finished.transfer.attempt && finished.transfer.fewest_workers == 0;
  finished.task.on_done(lost                          ? 0
                        : finished.result_workers > 0 ? finished.result_workers
                                                      : finished.workers);
}

bool NodeStage::busy(uint32_t group) const {
  return std::any_of(works_.begin(), works_.end(),
                     [group](const auto& one) { return one.first.group == group; });
}

bool NodeStage::stands_still() const {
  return ready_.empty() && !work_scheduled_ && std::ranges::none_of(works_, [](const auto& one) {
    return one.second->adding || one.second->giving;
  });
}

Nanos NodeStage::moved_at(uint32_t group) const {
  Nanos latest = 0;
  for (const auto& [key, work] : works_) {
    if (key.group == group) latest = std::max(latest, work->moved);
  }
  return latest;
}

bool NodeStage::has_unpushed(uint32_t group) const {
  return std::any_of(works_.begin(), works_.end(), [&](const auto& one) {
    const NodeWork& work = *one.second;
    return one.first.group == group && work.mine && !work.was_pushed();
  });
}

bool NodeStage::waits_for_gone(uint32_t group) const {
  return std::any_of(works_.begin(), works_.end(), [&](const auto& one) {
    const NodeWork& work = *one.second;
    if (one.first.group != group || !work.mine) return false;
    const std::vector<uint32_t>& locals = work.group().locals();
    return std::any_of(locals.begin(), locals.end(), [&](uint32_t local) {
      return called_off_.is_gone(local) && !(work.ranks[local].here && work.ranks[local].done);
    });
  });
}

void NodeStage::let_go(const LocalGroup& group) {
  for (const uint32_t local : group.locals()) {
    if (local != options_.local_rank) let_go(group.id(), local);
  }
}

void NodeStage::let_go(uint32_t group, uint32_t local_rank) {
  LocalMessage message;
  message.kind = kCalledOff;
  message.group = group;
  static_cast<void>(bus_.send(local_rank, message));
}

void NodeStage::forget(const LocalGroup& group) {
  if (cleared_) return;
  if (!called_off_.contains(group.id())) let_go(group);
  called_off_.forget(group);
}

void NodeStage::stop() {
  if (cleared_ || std::exchange(stopped_, true)) return;
  std::map<uint32_t, std::shared_ptr<const LocalGroup>> groups;
  std::set<std::pair<uint32_t, uint32_t>> others;  // groups and neighbours that have posted there
  for (const auto& [key, work] : works_) {
    if (work->mine) groups.emplace(key.group, work->task.group);
    for (uint32_t local = 0; local < local_size_; ++local) {
      if (!work->mine && work->ranks[local].here) others.emplace(key.group, local);
    }
  }
  for (const auto& [number, group] : groups) end_work(group);
  for (const auto& [number, local] : others) {
    if (!groups.contains(number)) let_go(number, local);
  }
}

bool NodeStage::is_seen() const {
  return std::ranges::any_of(works_, [this](const auto& one) {
    return one.second->mine && !called_off_.untouched(one.first.group);
  });
}

void NodeStage::call_off(const std::shared_ptr<const LocalGroup>& group) {
  if (!cleared_ && !stopped_) end_work(group);
}

void NodeStage::end_work(const std::shared_ptr<const LocalGroup>& group) {
  if (!called_off_.add(group)) return;
  for (const auto& [key, work] : works_) {
    if (key.group == group->id() && work->task.adder) work->task.adder->stop();
  }
  settle(group->id());
}

// From here on, no task of this group accesses neighbours' memory. Results that still arrive from
// servers stay in this rank's memory and are not copied to neighbours.
void NodeStage::settle(uint32_t number) {
  const auto group = called_off_.find(number);
  if (!group) return;
  adders_.call_off(number);
  if (adds(number)) return;
  if (called_off_.tells(number)) let_go(*group);
  if (stopped_ || !called_off_.untouched(number)) return;
  std::vector<std::shared_ptr<NodeWork>> ended;
  std::erase_if(works_, [&](const auto& one) {
    const bool ends = one.first.group == number && !one.second->pushed;
    if (ends) ended.push_back(one.second);
    return ends;
  });
  for (const auto& work : ended) {
    if (work->mine) work->task.on_done(0);
  }
}

void NodeStage::release_regions() {
  for (uint32_t region : heap_.take_released()) bus_.release_region(region);
}

void NodeStage::check_deadlines(Nanos now, Nanos servers_margin) {
  for (auto& [key, shared] : works_) {
    NodeWork& work = *shared;
    if (!work.mine || called_off_.contains(key.group)) continue;
    const bool submitted = work.posted == work.locals();
    // Servers report who is missing on other nodes, and so do neighbours that wait for servers.
    if (submitted && !work.last_stage() && !work.own().done) continue;
    const Nanos margin = submitted && !work.last_stage() ? servers_margin : 0;
    const Nanos moved = std::max(moved_, submitted ? pusher_.answered_at() : 0);
    const Deadline& deadline = work.task.deadline;
    const bool overdue = deadline.passed(now - margin, work.since, moved);
    if (!overdue && (work.warned || !deadline.warns(now - margin, work.since))) continue;
    const std::vector<uint32_t> missing = work.missing();
    // One rank speaks for the node. As it may be stopped itself, the next one speaks after twice
    // the time, and so on.
    const uint32_t times = 1u << std::min(work.turn_to_warn(missing), kMostDoublings);
    if (!overdue && !deadline.warns(now - margin, work.since, times)) continue;
    const std::string names =
        list_of(missing, [this](uint32_t local) { return options_.names[local]; });
    std::vector<uint32_t> awaited;
    for (const uint32_t local : missing) {
      if (options_.states != nullptr) awaited.push_back(options_.ranks[local]);
    }
    // A neighbour that has submitted the buffer waits for other nodes.
    if (submitted) awaited = work.group().members().ranks();
    const std::string text = concat("'", work.task.name, "'", work.group().members().suffix(),
                                    " (round ", key.round, ", buffer ", key.buffer,
                                    ") has waited ", in_seconds(now - work.since), " for ", names,
                                    submitted ? ", which did not finish it"
                                              : ", which did not submit it",
                                    options_.states ? options_.states->describe(awaited) : "");
    if (overdue) return on_failure_({Code::kTimeout, text});
    work.warned = true;
    log(LogLevel::kWarning, text);
  }
}

void NodeStage::clear() {
  cleared_ = true;
  adders_.end();
  for (const auto& [key, work] : works_) {
    if (work->task.adder) work->task.adder->stop();
  }
  // Work on a device takes milliseconds, unless the device hangs.
  const auto until = std::chrono::steady_clock::now() + kAdderPatience;
  for (const auto& [key, work] : works_) {
    while ((work->adding || work->giving) && !work->task.adder->through() &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  works_.clear();
  called_off_.clear();
  ready_.clear();
}

}  // namespace herring
