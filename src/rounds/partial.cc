#include "rounds/partial.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "rounds/activated_partial.h"
#include "rounds/owned_partial.h"
#include "rounds/series_list.h"
#include "wire/partial.h"

namespace herring::rounds {

Partial::Partial(SeriesList& list, PartialOptions options, bool pushes)
    : list_(list),
      core_(list.core()),
      program_(core_.program),
      options_(std::move(options)),
      id_(wire::series_id(options_.name, options_.group->id(), options_.number)),
      bytes_(options_.elements * size_of(options_.dtype)),
      pushes_(pushes),
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
  if (options.algorithm != Algorithm::kHerring) {
    return ActivatedPartial::create(list, std::move(options));
  }
  return OwnedPartial::create(list, std::move(options));
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

void Partial::close(uint32_t round) {
  if (closed_.begun()) return;  // this is another attempt
  next_round_ = round;
  if (!next_.begun()) begin_next(core_.loop->now(), false);
  closed_ = std::move(next_);
  ++next_round_;
}

void Partial::complete(RoundInfo info) {
  std::optional<partial::Join> join;
  std::string payload;
  // The series ends before anybody can see the last result. Its reader may reuse the name, or
  // destroy the group, at once.
  if (info.last) list_.delist(*this);
  {
    std::lock_guard lock(mutex_);
    join = ledger_.completed();
    if (join && !pushes_) payload.assign(ledger_.announced(), bytes_);
    info.completed_at = core_.loop->now();
    closed_.end(info.completed_at, Code::kOk);
    infos_.push_back(std::move(info));
  }
  changed_.notify_all();
  if (join) announce(*join, std::move(payload));
}

void Partial::mark_ready() {
  const Nanos now = core_.loop->now();
  core_.recorder().mark(next_.id(), observe::Moment::kReady, now);
  if (!pushes_) core_.recorder().mark(next_.id(), observe::Moment::kPushed, now);
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
