#include "worker/engine_core.h"

#include <algorithm>
#include <cstring>

#include "base/continuations.h"
#include "base/log.h"
#include "base/reminders.h"
#include "device/images.h"
#include "device/watcher.h"

namespace herring::worker {
namespace {

constexpr Nanos kTick = 50 * kMillisecond;
// Servers watch deadlines. If one is missed by this much, this process ends the job itself.
constexpr Nanos kDeadlineMargin = 2 * kSecond;
// A timeout of milliseconds is meant for ranks that do not call. Data in motion may pause longer.
constexpr uint32_t kLeastStallMs = 2000;
constexpr Nanos kWhereaboutsInterval = 250 * kMillisecond;
// At most this many of the calls in which threads of this rank wait are named.
constexpr size_t kMostPlaces = 3;
// For so long servers and neighbours may read what is theirs to read, before the callers have their
// memory back. Those that are alive need a few milliseconds.
constexpr Nanos kLongestReading = 500 * kMillisecond, kReadingPoll = kMillisecond;

}  // namespace

EngineCore::EngineCore(const control::Cluster& cluster, EngineOptions options,
                       transport::Transport& transport, std::unique_ptr<LocalBus> bus,
                       std::vector<ServerFlow> flows)
    : cluster_(cluster),
      options_(std::move(options)),
      me_(cluster_.workers[options_.rank]),
      heap_(std::make_shared<SharedHeap>(
          SharedHeap::kDefaultCacheBytes,
          cluster_.local_size(me_.node) > 1 ? Sharing::kNode : Sharing::kProcess)),
      loop_(transport.make_loop(true)),
      program_(std::make_shared<Program>(options_.observe ? observe::Recorder::kEntries : 0,
                                         loop_->now())),
      bus_(std::move(bus)),
      membership_(*this, cluster_, options_.rank),
      named_(*this),
      keeping_(*this) {
  program_->on_failure([failed = options_.failed](const Status& why) { failed(why); });
  links_ = std::make_unique<links::Links>(
      *loop_, options_.links,
      [this](uint32_t server, const wire::FrameHeader& header, std::string_view payload) {
        on_control(server, header, payload);
      },
      [this](uint32_t server, const Status& why) { membership_.link_closed(server, why); },
      [this](uint32_t group) { membership_.called_off_by_server(group); });
  for (ServerFlow& flow : flows) links_->add_flow(flow.server, *flow.connection);

  NodeStage::Options node;
  node.local_rank = me_.local_rank;
  node.threads = options_.node_threads;
  node.segment_bytes = options_.links.segment_bytes;
  for (uint32_t rank : cluster_.ranks_of(me_.node)) {
    node.names.push_back(cluster_.describe_rank(rank));
  }
  node.on_lost = [this](uint32_t local_rank, const Status& why) {
    membership_.neighbour_closed(cluster_.ranks_of(me_.node)[local_rank], why);
  };
  node.on_left = [this](uint32_t local_rank) {
    membership_.neighbour_left(cluster_.ranks_of(me_.node)[local_rank]);
  };
  node.ranks = cluster_.ranks_of(me_.node);
  node.states = &states_;
  node_stage_ = std::make_unique<NodeStage>(*loop_, *bus_, *heap_, *links_, std::move(node),
                                            [this](const Status& status) { fail_now(status); });
  node_stage_->attach();
  executor_ = std::make_unique<collective::Executor>(
      transport, *loop_, cluster_, states_, options_.mesh,
      [this](const Status& status) { fail_now(status); },
      [this](uint32_t group, const Status& status) { membership_.fail_group(group, status); },
      [this](uint32_t number) {
        const auto group = membership_.find(number);
        return group && group->called_off().ok();
      },
      [this](uint32_t rank) { return membership_.has_left(rank); });
  loop_->on_exhausted([this](const Status& why) {
    failing_ ? end_all() : ends() ? end() : fail_now(why);
  });
  loop_->call_after(kTick, [this] { tick(); });
  loop_->start("herring-engine");
}

Status EngineCore::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

uint32_t EngineCore::timeout_ms(double seconds) const {
  // At most 46 days, to fit the wire format. At least 1, because 0 would have passed before anybody
  // can answer.
  return static_cast<uint32_t>(
      std::clamp((seconds > 0 ? seconds : options_.timeout) * 1000, 1.0, 4e9));
}

Deadline EngineCore::deadline(double seconds) const {
  const uint32_t own = timeout_ms(seconds), setting = timeout_ms(0);
  return {std::max(own, setting), std::max(own, std::min(setting, kLeastStallMs)), warn_ms()};
}

Status EngineCore::incomplete(const Group& group) const {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      return {Code::kShutdown, "shutdown() has ended the job that this belongs to; after another "
                               "init(), make it anew (wrap the model again)"};
    }
    if (!failure_.ok()) return failure_;
  }
  return group.failure();
}

Status EngineCore::run(std::function<void()> task, bool caller_waits) {
  const bool runs = caller_waits ? loop_->post_before_drive(std::move(task))
                                 : loop_->post(std::move(task));
  return runs ? Status() : Status(Code::kShutdown, "herring was shut down");
}

void EngineCore::on_control(uint32_t server, const wire::FrameHeader& header,
                        std::string_view payload) {
  if (ends()) return;
  if (header.type == wire::FrameType::kWarning) {
    notice_bytes_ += wire::kHeaderBytes + payload.size();
    return log(LogLevel::kWarning, payload);
  }
  if (header.type == wire::FrameType::kRound || header.type == wire::FrameType::kCommit) {
    if (Status status = on_series(server, header, payload); !status.ok()) {
      fail_now({status.code(), concat(cluster_.describe_server(server), ": ", status.message())});
    }
    return;
  }
  if (header.type == wire::FrameType::kOpError && wire::outlives_members(header.stream)) {
    if (Status status = on_series_error(payload); !status.ok()) {
      fail_now({status.code(), concat(cluster_.describe_server(server), ": ", status.message())});
    }
    return;
  }
  if (header.type == wire::FrameType::kSettled) {
    if (Status status = keeping_.receive(header.group, payload); !status.ok()) {
      fail_now({status.code(), concat(cluster_.describe_server(server), ": ", status.message())});
    }
    return;
  }
  if (membership_.on_defined(server, header, payload)) return;
  if (header.type == wire::FrameType::kLeaveGroup) {
    membership_.fail_group(header.group, {Code::kPeerLost, std::string(payload)});
    return;
  }
  named_.on_control(server, header, payload);
}

// If a series cannot begin, only that series fails.
Status EngineCore::on_series_error(std::string_view payload) {
  auto error = wire::decode_op_error(payload);
  if (!error.ok()) return error.status();
  if (const auto found = partials_.extract(error->id); !found.empty()) {
    found.mapped()->fail({error->code, error->text});
  }
  return {};
}

void EngineCore::fail(const Status& status) {
  loop_->post([this, status] { fail_now(status); });
}

void EngineCore::abort(const Status& status) {
  fail(status);
  options_.abort(status.message());
}

void EngineCore::fail_now(const Status& status, bool leaves) {
  if (ends()) return;
  ending_ = status;
  leaves_ = leaves;
  links_->stop();
  node_stage_->stop();
  end_when_read(loop_->now() + kLongestReading);
}

// If a caller changed memory that a server or a neighbour has yet to read, the other ranks might
// take what these make of it for a result, before they hear that the job has failed.
void EngineCore::end_when_read(Nanos until) {
  const bool read = !links_->lends() && !node_stage_->is_seen();
  if (read || loop_->now() >= until) return end();
  loop_->call_after(kReadingPoll, [this, until] { end_when_read(until); });
}

void EngineCore::end() {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = ending_;
  }
  if (ending_.code() != Code::kShutdown) options_.failed(ending_);
  failing_ = true;
  end_all();
}

// If a step lacks memory, this function is called again and continues where it stopped.
void EngineCore::end_all() {
  const Status status = failure();
  // First, nothing here may access callers' memory any more; then the callers are told. Neighbours
  // may still access it for a moment, so memory that they know is not reused.
  leaves_ ? links_->finish() : links_->clear();
  heap_->retire_all();
  leaves_ ? executor_->finish() : executor_->clear();
  node_stage_->clear();
  named_.fail_all(status);
  device::Neighbours::instance().forget(cluster_.incarnation);
  while (!waiting_.empty()) {
    Status told = status;
    waiting_.extract(waiting_.begin()).key()->set(std::move(told));
  }
  while (!partials_.empty()) {
    partials_.begin()->second->fail(status);
    partials_.erase(partials_.begin());
  }
  // Only this process knows of the fault; without abort() the other ranks would wait for it.
  if (status.is_fault()) options_.abort(status.message());
  failing_ = false;
}

void EngineCore::fail_waiting(const Group& group, const Status& status) {
  std::vector<std::shared_ptr<Future>> ended;
  for (auto& [waiting, one] : waiting_) {
    if (one.group != group.id()) continue;
    one.failed = status;
    if (one.parts == 0) ended.push_back(waiting);
  }
  for (const auto& waiting : ended) {
    waiting_.erase(waiting);
    waiting->set(status);
  }
}

void EngineCore::part_begins(const std::shared_ptr<Future>& waiting) {
  if (const auto found = waiting_.find(waiting); found != waiting_.end()) ++found->second.parts;
}

void EngineCore::part_ended(const std::shared_ptr<Future>& waiting) {
  const auto found = waiting_.find(waiting);
  if (found == waiting_.end() || --found->second.parts > 0 || found->second.failed.ok()) return;
  const auto ended = waiting_.extract(found);
  ended.key()->set(ended.mapped().failed);
}

void EngineCore::fail_partial(const Group& group, const Status& status) {
  std::vector<std::shared_ptr<Partial>> ended;
  for (const auto& [id, partial] : partials_) {
    if (partial->group().id() == group.id()) ended.push_back(partial);
  }
  for (const auto& partial : ended) {
    partials_.erase(partial->id());
    partial->fail(status);
  }
}

bool EngineCore::can_move_partial(const control::ServerSet& set) const {
  Owners next = named_.handovers().owners();
  next.serve(set);
  return std::ranges::all_of(partials_, [&](const auto& one) {
    const Partial& partial = *one.second;
    return set.has(next.of(partial.group().shards().owners, partial.owner().reign.home).server);
  });
}

void EngineCore::move_partial(const Group& group, const Owner& owner) {
  for (const auto& [id, partial] : partials_) {
    const bool moves =
        &partial->group() == &group && partial->owner().reign.home == owner.reign.home;
    if (moves) partial->move_to(owner);
  }
  for (const auto& ended : ended_series_) {
    const bool moves = ended->group() == group.id() && ended->home() == owner.reign.home;
    if (moves) ended->tell(*links_, owner);
  }
  end_telling(*links_, group.id(), owner);
}

void EngineCore::forget_partial(uint32_t group) {
  std::erase_if(ended_series_, [group](const auto& one) { return one->group() == group; });
  keeping_.forget(group);
}

void EngineCore::forget_series(uint64_t id) {
  std::erase_if(ended_series_, [id](const auto& one) { return one->id() == id; });
}

size_t EngineCore::bytes_of_series() const {
  size_t bytes = 0;
  for (const auto& ended : ended_series_) bytes += ended->known.bytes();
  for (const auto& [id, partial] : partials_) {
    if (partial->memory()) bytes += partial->memory()->known.bytes();
  }
  return bytes;
}

void EngineCore::tell_partial_to(uint32_t server) {
  for (const auto& [id, partial] : partials_) {
    if (partial->group().is_known_to(server)) partial->announce_to(server);
  }
}

bool EngineCore::any_partial(const Group& group) const {
  return std::ranges::any_of(partials_, [&group](const auto& one) {
    return &one.second->group() == &group;
  });
}

bool EngineCore::moves(const Group& group) const {
  const auto here = [&group](const auto& one) { return one.second.group == group.id(); };
  // Within a node, a round from which a rank has departed needs no server.
  return links_->busy(group.id()) || named_.moves(group) ||
         any_partial(group) ||
         (group.members().nodes() > 1 && std::any_of(waiting_.begin(), waiting_.end(), here));
}

// Buffers that wait for parts from neighbours or from this rank have not been pushed yet, so they
// need every server. Buffers pushed by other ranks on this node use those ranks' own connections.
bool EngineCore::needs(const Group& group, uint32_t server) const {
  return links_->needs(group.id(), server) ||
         (group.members().nodes() > 1 && node_stage_->has_unpushed(group.id()));
}

bool EngineCore::may_need(const Group& group, uint32_t server) const {
  return needs(group, server) || named_.awaits_members(group) ||
         named_.awaits_message(group, server);
}

// Rounds that wait for data of this rank or of others may be open: nothing moves of them. A partial
// all-reduce, however, may end without anybody's doing, when its grace is over.
bool EngineCore::stands_still() const {
  return ending_.ok() && partials_.empty() && named_.all_wait_for_calls() && executor_->idle() &&
         node_stage_->stands_still() && !membership_.any_comes() && links_->undelivered() == 0 &&
         executor_->undelivered() == 0 && device::Watcher::idle() && Continuations::idle();
}

Status EngineCore::enlist(const std::shared_ptr<Partial>& partial) {
  HERRING_RETURN_IF_ERROR(incomplete(partial->group()));
  return run([this, partial] {
    if (Status status = failure(); !status.ok()) return partial->fail(status);
    const auto fail = [&partial](const Status& why) { partial->fail(why); };
    const bool known = std::ranges::any_of(partials_, [&](const auto& one) {
      return &one.second->group() == &partial->group() &&
             one.second->options().name == partial->options().name;
    });
    if (known) {
      return partial->fail({Code::kInvalidArgument,
                            concat("a partial all-reduce named '", partial->options().name,
                                   "' is already in progress; use another name for this one")});
    }
    or_tell(fail, [&] {
      partial->begin();
      return partials_.emplace(partial->id(), partial).second;
    });
  });
}

void EngineCore::delist(uint64_t id) {
  loop_->post([this, id] {
    const auto ended = partials_.extract(id);
    if (ended.empty() || !ended.mapped()->memory()) return;
    ended_series_.push_back(ended.mapped()->memory());
    if (ended_series_.size() > wire::kMostEndedSeries) ended_series_.pop_front();
  });
}

Status EngineCore::on_series(uint32_t server, const wire::FrameHeader& header,
                             std::string_view payload) {
  // Returns null if the series has ended here, or another server is the owner by now.
  const auto of = [this, server](uint64_t id) {
    const auto found = partials_.find(id);
    const bool here = found != partials_.end() && found->second->owner().server == server;
    return here ? found->second : nullptr;
  };
  std::shared_ptr<Partial> partial;
  if (header.type == wire::FrameType::kRound) {
    auto round = wire::decode_round(payload);
    if (!round.ok()) return round.status();
    if (!(partial = of(round->id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_round(header, std::move(*round), payload));
  } else {
    auto mark = wire::decode_mark(payload);
    if (!mark.ok()) return mark.status();
    if (!(partial = of(mark->id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_commit(*mark));
  }
  return {};
}

// If a server dies, it no longer watches deadlines. Therefore this process watches them as well.
void EngineCore::check_deadlines(Nanos now) {
  named_.arrivals().check_deadlines(now);
  node_stage_->check_deadlines(now, kDeadlineMargin);
  executor_->check_deadlines(now);
  Nanos waited = 0;
  std::vector<uint32_t> servers(1);
  std::string name = named_.overdue(now, kDeadlineMargin, &waited, &servers[0]);
  if (const links::Transfer* late = links_->overdue(now, kDeadlineMargin)) {
    name = concat("'", late->open.name, "'");
    waited = now - late->pushed_at;
    servers = links_->awaited(*late);
  }
  if (name.empty()) return;
  std::string who;
  for (const uint32_t server : servers) {
    who += concat(who.empty() ? "" : " and ", cluster_.describe_server(server));
  }
  fail_now({Code::kTimeout, concat(name, " has waited ", in_seconds(waited), " for ", who,
                                   ", and nobody has answered or reported the timeout; look at "
                                   "the output of the other ranks and servers")});
}

// Tells the servers in which calls threads of this rank have been held up for a while. The servers
// tell the ranks that wait for this one (server/whereabouts.h).
void EngineCore::tell_whereabouts(Nanos now) {
  if (now < whereabouts_due_) return;
  whereabouts_due_ = now + kWhereaboutsInterval;
  std::vector<std::string> all;
  // Before servers warn.
  const Nanos since = now - first_reminder(from_seconds(options_.warn_after)) / 2;
  program_->held_up(now, since, all);
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMostPlaces); ++i) {
    text += concat(i == 0 ? "" : " and in ", all[i]);
  }
  text.resize(std::min(text.size(), wire::kMaxWhereabouts));
  if (text == whereabouts_) return;
  whereabouts_ = text;
  wire::FrameHeader header;
  header.type = wire::FrameType::kWhereabouts;
  for (uint32_t server = 0; server < cluster_.servers.size(); ++server) {
    if (membership_.has_ended(server)) continue;
    notice_bytes_ += wire::kHeaderBytes + text.size();
    links_->send_control(server, header, text);
  }
}

void EngineCore::tell_whereabouts_to(uint32_t server) {
  if (whereabouts_.empty()) return;
  wire::FrameHeader header;
  header.type = wire::FrameType::kWhereabouts;
  links_->send_control(server, header, whereabouts_);
}

void EngineCore::tick() {
  const Nanos now = loop_->now();
  links_->poll_paths();
  node_stage_->release_regions();
  if (!ends()) {
    check_deadlines(now);
    membership_.check_departures(now);
    membership_.check_servers(now);
    membership_.release_servers();
    tell_whereabouts(now);
    keeping_.tick(now);
  }
  loop_->call_after(kTick, [this] { tick(); });
}

}  // namespace herring::worker
