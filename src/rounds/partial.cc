#include "rounds/partial.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "rounds/series_list.h"

namespace herring::rounds {

Partial::Partial(SeriesList& list, PartialOptions options)
    : list_(list),
      core_(list.core()),
      program_(core_.program),
      options_(std::move(options)),
      bytes_(options_.elements * size_of(options_.dtype)),
      pushes_(bytes_ > core_.options.small_bytes),
      ledger_(options_.group->index(), options_.dtype, options_.elements, pushes_) {}

Result<std::shared_ptr<Partial>> Partial::create(SeriesList& list, PartialOptions options) {
  if (!options.group) options.group = list.core().groups.world();
  HERRING_RETURN_IF_ERROR(check_reducible(options.dtype, {options.op}));
  if (options.op != ReduceOp::kSum && options.op != ReduceOp::kAverage) {
    return Status(Code::kInvalidArgument,
                  concat("op '", name_of(options.op), "' of the partial all-reduce '",
                         options.name, "': late contributions are added up, so op must be "
                         "'average' or 'sum'"));
  }
  const bool sane = options.grace >= 0 && options.grace <= to_seconds(partial::kMaxGrace);
  const Nanos grace = sane ? from_seconds(options.grace) : -1;
  HERRING_RETURN_IF_ERROR(
      partial::check({options.group->size(), options.quorum, grace, options.staleness}));
  std::shared_ptr<Partial> partial(new Partial(list, std::move(options)));
  HERRING_RETURN_IF_ERROR(list.enlist(partial));
  return partial;
}

// Tells all servers of the group: each must know that the job outlives a worker's death.
void Partial::begin() {
  id_ = wire::series_id(options_.name, group().id(), options_.number);
  owner_ = core_.owner_of(group(), options_.name);
  if (core_.options.failover) {
    memory_ = std::make_shared<SeriesMemory>(group(), enlist_for(owner_.server), pushes_);
  }
  for (const uint32_t server : group().servers()) {
    if (core_.owners.has(server)) announce_to(server);
  }
}

wire::Enlist Partial::enlist_for(uint32_t server) const {
  wire::Enlist enlist;
  enlist.dtype = options_.dtype;
  enlist.op = options_.op;
  enlist.by_contributors = options_.by_contributors;
  enlist.inline_payload = !pushes_;
  enlist.elements = options_.elements;
  enlist.quorum = options_.quorum;
  enlist.grace = from_seconds(options_.grace);
  enlist.staleness = options_.staleness;
  enlist.replays = options_.replays;
  enlist.timeout_ms = core_.timeout_ms(0);
  enlist.warn_ms = core_.warn_ms();
  enlist.number = options_.number;
  enlist.name = options_.name;
  enlist.owner = server == owner_.server;
  return enlist;
}

void Partial::announce_to(uint32_t server) {
  wire::FrameHeader header{.type = wire::FrameType::kEnlist, .group = group().id(),
                           .stream = owner_.reign.home, .round = owner_.reign.epoch};
  core_.links->send_control(server, header, encode(enlist_for(server)));
}

void Partial::move_to(const Owner& owner) {
  owner_ = owner;
  memory_->tell(*core_.links, owner);
}

void Partial::begin_next(Nanos now, bool called) {
  observe::Entry entry;
  entry.kind = observe::Kind::kRound;
  entry.group = group().id();
  entry.round = next_round_;
  entry.bytes = bytes_;
  entry.set_name(options_.name);
  if (called) entry.at[static_cast<size_t>(observe::Moment::kCalled)] = now;
  next_ = OpenEntry(program_, entry);
}

Status Partial::contribute(const char* data, bool waits, bool last,
                           const partial::Place& place, bool caller_waits) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if ((place.contributors != 0) != options_.replays) {
    return {Code::kInvalidArgument,
            concat("'", options_.name, "' ", options_.replays ? "is a replay" : "is not a replay",
                   ", but a contribution to it came with ", place.contributors,
                   " recorded contributors")};
  }
  auto join = ledger_.produce(data, waits, last, place);
  if (!join.ok()) {
    return {join.status().code(), concat("'", options_.name, "': ", join.status().message())};
  }
  const Nanos now = core_.loop->now();
  next_.begun() ? program_->called(now) : begin_next(now, true);
  if (!*join) return {};
  const char* sent = options_.replays ? ledger_.announced() : data;
  // The task is posted under the lock, so that joins leave in the order of their contributions.
  auto announces = [self = shared_from_this(), join = **join,
                    payload = pushes_ ? std::string() : std::string(sent, bytes_)]() mutable {
    self->announce(join, std::move(payload));
  };
  return core_.run(std::move(announces), caller_waits);
}

void Partial::digest(uint32_t rounds, uint64_t value) {
  std::lock_guard lock(mutex_);
  digest_rounds_ = rounds;
  digest_ = value;
}

void Partial::announce(const partial::Join& join, std::string payload) {
  wire::JoinMessage message;
  message.id = id_;
  message.upto = join.upto;
  message.base = join.base;
  message.last = join.last;
  message.round = join.round;
  message.contributors = join.contributors;
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    message.digest_round = std::exchange(digest_rounds_, 0);
    message.digest = digest_;
    const Nanos now = core_.loop->now();
    core_.recorder().mark(next_.id(), observe::Moment::kReady, now);
    if (!pushes_) core_.recorder().mark(next_.id(), observe::Moment::kPushed, now);
  }
  wire::FrameHeader header{.type = wire::FrameType::kJoin};
  const std::string text = encode(message) + payload;
  if (memory_) {
    memory_->known.announced({join, message.digest_round, message.digest, std::move(payload)});
  }
  core_.links->send_control(owner_.server, header, text);
}

Status Partial::on_round(const wire::FrameHeader& header, wire::RoundMessage message,
                         std::string_view text) {
  const auto nonsense = [&](const std::string& what) {
    return breach("round ", message.round, " of '", options_.name, "' ", what);
  };
  if (transferring_) return nonsense("closed again before its previous attempt was over");
  if (message.payload.size() != (pushes_ ? 0 : bytes_)) {
    return nonsense(concat("came with ", message.payload.size(), " bytes"));
  }
  if (message.contributors.empty() && !message.last) {
    return nonsense("closed without a contribution");
  }
  const uint32_t rank = group().index();
  uint64_t upto = 0;
  for (const partial::Contributor& one : message.contributors) {
    if (one.rank >= group().size()) return nonsense("names a rank that does not exist");
    if (one.rank == rank) upto = one.upto;
  }
  for (const partial::Lost& one : message.lost) {
    if (one.rank >= group().size()) return nonsense("has lost a rank that does not exist");
  }
  partial::HeardRound heard;
  if (memory_) {
    heard = {message.round, message.attempt, message.last,  message.contributors,
             message.lost,  header.stream,   header.round, std::string(text)};
  }
  info_.round = message.round;
  info_.divisor = message.divisor;
  info_.attempts = message.attempt + 1;
  info_.last = message.last;
  info_.contributors = std::move(message.contributors);
  info_.lost = std::move(message.lost);
  attempt_ = message.attempt;
  transferred_ = committed_ = false;
  const bool nothing = info_.contributors.empty();
  const char* send = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!closed_.begun()) {  // else this is another attempt
      next_round_ = message.round;
      if (!next_.begun()) begin_next(core_.loop->now(), false);
      closed_ = std::move(next_);
      ++next_round_;
    }
    if (ledger_.ready() > options_.staleness + 1) {
      return nonsense(concat("closed while ", ledger_.ready(),
                             " results wait to be taken here; staleness is ", options_.staleness));
    }
    HERRING_RETURN_IF_ERROR(ledger_.closed(message.round, upto, message.last, &send));
    if (!pushes_) {
      std::memcpy(ledger_.result(), message.payload.data(), bytes_);
    } else if (nothing) {
      std::memset(ledger_.result(), 0, bytes_);
    }
  }
  if (memory_) memory_->known.heard(std::move(heard));
  if (!pushes_ || nothing) {
    complete();
    return {};
  }
  if (header.group != group().id()) return nonsense(concat("closed for group ", header.group));
  transfer_.key = {header.stream, header.round, 0, header.group};
  core_.recorder().place(closed_.id(), header.stream, header.round);
  return launch(upto, send);
}

// Pushes this worker's part, even if it is empty: servers send the result to every rank that
// pushes.
Status Partial::launch(uint64_t upto, const char* send) {
  const auto contributors = static_cast<uint32_t>(info_.contributors.size());
  transferring_ = true;
  transfer_.open.dtype = options_.dtype;
  transfer_.open.reduction.op = options_.op;
  transfer_.open.participants = wire::Participants::kRanks;
  // Servers divide by the sum of these counts. The first contributor also counts for the part of
  // the divisor that contributors do not cover.
  transfer_.open.workers = upto == 0 ? 0
                           : info_.contributors.front().rank == group().index()
                               ? std::max(info_.divisor, contributors) - contributors + 1
                               : 1;
  transfer_.open.deadline = core_.deadline(0);
  transfer_.open.name = options_.name;
  transfer_.send = send;
  {
    std::lock_guard lock(mutex_);
    transfer_.receive = ledger_.result();
  }
  transfer_.shards = plan::shard_layout(bytes_, group().shards().weights);
  transfer_.runs =
      plan::local_slice(transfer_.shards, core_.options.links.segment_bytes, 0, 1);
  transfer_.lockstep = true;  // a round closes when all have the result of the one before
  transfer_.owner = this;
  transfer_.mark = {&core_.recorder(), closed_.id()};
  return core_.links->push(transfer_, shared_from_this());
}

void Partial::on_transfer_done(links::Transfer& done) {
  transferring_ = false;
  transferred_ = done.fewest_workers == info_.contributors.size();
  wire::RoundMark mark{id_, info_.round, attempt_, transferred_};
  wire::FrameHeader header{.type = wire::FrameType::kReceived};
  if (memory_) memory_->known.received(transferred_);
  core_.links->send_control(owner_.server, header, encode(mark));
  if (committed_) settle();
}

// The transfer of a round that is committed is over. A worker that lacks a part of the result
// cannot complete the round, although others have.
void Partial::settle() {
  if (transferred_) return complete();
  core_.ending.abort({Code::kPeerLost,
                 concat("round ", info_.round, " of '", options_.name, "'",
                        group().members().suffix(),
                        " cannot be completed: a server is lost, and with it what a rank gave that "
                        "is gone")});
}

Status Partial::on_commit(const wire::RoundMark& mark) {
  if (mark.round != info_.round || mark.attempt != attempt_) {
    return breach("round ", mark.round, " of '", options_.name, "' was committed; expected round ",
                  info_.round);
  }
  committed_ = true;
  if (memory_) memory_->known.committed();
  if (!transferring_) settle();
  return {};
}

void Partial::complete() {
  std::optional<partial::Join> join;
  std::string payload;
  // The series ends before anybody can see the last result. Its reader may reuse the name, or
  // destroy the group, at once.
  if (info_.last) list_.delist(id_);
  {
    std::lock_guard lock(mutex_);
    join = ledger_.completed();
    if (join && !pushes_) payload.assign(ledger_.announced(), bytes_);
    info_.completed_at = core_.loop->now();
    closed_.end(info_.completed_at, Code::kOk);
    infos_.push_back(std::move(info_));
    info_ = {};
    info_.round = infos_.back().round + 1;
  }
  transferred_ = committed_ = false;
  if (memory_) memory_->known.completed();
  changed_.notify_all();
  if (join) announce(*join, std::move(payload));
}

void Partial::fail(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    const Nanos now = core_.loop->now();
    closed_.end(now, status.code());
    next_.end(now, status.code());
  }
  changed_.notify_all();
}

uint64_t Partial::awaited() {
  std::lock_guard lock(mutex_);
  return closed_.begun() ? closed_.id() : next_.id();
}

std::string Partial::where() const {
  return concat("'", options_.name, "'", group().members().suffix(), " (round ", taken(), ")");
}

bool Partial::wait_for(Nanos wait) {
  const auto ended = [this] { return ledger_.ready() > 0 || !failure_.ok(); };
  const auto has_ended = [&] {
    std::lock_guard lock(mutex_);
    return ended();
  };
  const auto loop = core_.loop;
  if (has_ended()) {
    loop->wake_for_tasks();  // sends the contribution if the result was there before it
    return true;
  }
  const Nanos now = loop->now();
  const uint64_t id = awaited();
  const bool noted = program_->enter(*this, id, now);
  const auto await = [&] {
    if (loop->drive(now + wait, has_ended)) return has_ended();
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(wait), ended);
  };
  const bool over = await();
  if (noted) program_->leave(*this, loop->now(), over);
  return over;
}

Result<RoundInfo> Partial::take(char* out) {
  const char* front;
  {
    std::lock_guard lock(mutex_);
    // Results that have arrived can be taken even if the job has failed since.
    if (ledger_.ready() == 0) {
      if (!failure_.ok()) return failure_;
      return Status(Code::kInvalidArgument, concat("'", options_.name, "': no result to take"));
    }
    front = ledger_.front();
  }
  std::memcpy(out, front, bytes_);
  std::lock_guard lock(mutex_);
  if (const auto join = ledger_.take()) {
    // If the engine has ended, there is nobody to tell.
    static_cast<void>(
        core_.run([self = shared_from_this(), join = *join] { self->announce(join, {}); }));
  }
  RoundInfo info = std::move(infos_.front());
  infos_.pop_front();
  return info;
}

template <typename T>
T Partial::locked(T (partial::Ledger::*value)() const) const {
  std::lock_guard lock(mutex_);
  return (ledger_.*value)();
}

uint32_t Partial::ready() { return locked(&partial::Ledger::ready); }
uint64_t Partial::produced() { return locked(&partial::Ledger::produced); }
uint64_t Partial::counted() { return locked(&partial::Ledger::counted); }
uint32_t Partial::taken() const { return locked(&partial::Ledger::taken); }
size_t Partial::blocks() { return locked(&partial::Ledger::blocks); }

Status Partial::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace herring::rounds
