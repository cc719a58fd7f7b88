#include "rounds/activated_partial.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "rounds/series_list.h"

namespace herring::rounds {
namespace {

using collective::Operation, collective::Schedule;

constexpr size_t kDigestsKept = 16, kTimesKept = 64;

}  // namespace

ActivatedPartial::ActivatedPartial(SeriesList& list, PartialOptions options)
    : Partial(list, std::move(options), true), stream_(stream_of(id())), rank_(group().index()) {}

Result<std::shared_ptr<Partial>> ActivatedPartial::create(SeriesList& list,
                                                          PartialOptions options) {
  if (options.replays || options.by_contributors || options.grace != 0) {
    return Status(Code::kInvalidArgument,
                  concat("the partial all-reduce '", options.name, "' has algorithm '",
                         wire::name_of(options.algorithm), "': between workers there is no grace, "
                         "no replay, and averages divide by all workers; use algorithm 'herring'"));
  }
  std::shared_ptr<ActivatedPartial> partial(new ActivatedPartial(list, std::move(options)));
  HERRING_RETURN_IF_ERROR(list.enlist(partial));
  return std::shared_ptr<Partial>(partial);
}

void ActivatedPartial::begin() {
  const uint32_t size = group().size();
  Schedule both;
  both.add({.kind = Operation::Kind::kCompute});
  schedule_ = collective::activate(rank_, size, both);
  run_ = schedule_.schedule.size() - 1;
  for (uint32_t i = 0; i < run_; ++i) {
    const Operation& one = schedule_.schedule[i];
    if (one.kind == Operation::Kind::kReceive) signals_from_[one.peer] = i;
  }
  for (uint32_t rank = 0; rank < size; ++rank) going_on_.push_back(rank);
  const std::vector<uint32_t>& ranks = group().members().ranks();
  for (uint32_t i = 1; i < size; ++i) {
    if (rank_ == 0 || rank_ == i) core_.executor->connect(ranks[rank_ == 0 ? i : 0]);
  }
  activation_.emplace(schedule_, options_.staleness,
                      [this](uint64_t round) { return initiates(round); });
  go();
}

uint32_t ActivatedPartial::initiator(uint64_t round) const {
  const auto size = static_cast<uint32_t>(going_on_.size());
  return going_on_[collective::initiator_of(id(), round, size)];
}

bool ActivatedPartial::is_drawn(uint64_t round) const {
  return initiator(round) == rank_ || passed_to_here_ == round;
}

// A rank that has nothing to give waits for the others' rounds.
bool ActivatedPartial::initiates(uint64_t round) const {
  if (over_) return false;
  if (flushing_ == group().size()) return true;
  if (flushes_ || announced_ == counted_) return false;
  return options_.quorum == 1 || is_drawn(round);
}

void ActivatedPartial::say(uint32_t to, Says what, uint64_t round, uint32_t about) {
  wire::FrameHeader signal{.type = wire::FrameType::kSignal, .group = group().id(),
                           .stream = stream_};
  signal.round = static_cast<uint32_t>(round);
  signal.buffer = static_cast<uint32_t>(what);
  signal.first_segment = about;
  core_.executor->signal(group().members().ranks()[to], signal);
}

void ActivatedPartial::hear_flush() {
  if (++flushing_ == group().size()) activation_->go_on();
}

void ActivatedPartial::pass_on() {
  const uint64_t round = activation_->number();
  const bool passes = options_.quorum > 1 && flushes_ && !over_ && !activation_->is_active() &&
                      passed_on_ != round && is_drawn(round);
  if (!passes) return;
  passed_on_ = round;
  const auto mine = std::ranges::find(going_on_, rank_);
  const auto next = mine == going_on_.end() ? mine : std::next(mine);
  const uint32_t to = next == going_on_.end() ? going_on_.front() : *next;
  if (to != rank_) say(rank_ == 0 ? to : 0, Says::kPasses, round, to);
}

void ActivatedPartial::announce(const partial::Join& join, std::string) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    mark_ready();
  }
  if (announced_ == counted_) contributed_at_ = core_.loop->now();
  announced_ = join.upto;
  base_ = join.base;
  if (join.last && !std::exchange(flushes_, true)) {
    rank_ == 0 ? hear_flush() : say(0, Says::kFlushes, 0);
  }
  while (activation_->calls() < join.base) activation_->call();
  activation_->go_on();
  go();
}

Status ActivatedPartial::on_signal(uint32_t from, const wire::FrameHeader& signal) {
  const auto nonsense = [&](const char* what) {
    return breach("rank ", group().members().ranks()[from], " sent signal ", signal.buffer,
                  " of round ", signal.round, " of '", options_.name, "': ", what);
  };
  switch (static_cast<Says>(signal.buffer)) {
    case Says::kActive: {
      const auto found = signals_from_.find(from);
      if (found == signals_from_.end()) return nonsense("no tree of the activation has it");
      HERRING_RETURN_IF_ERROR(activation_->on_signal(signal.round, found->second));
      break;
    }
    case Says::kFlushes:
      if (rank_ != 0 || flushing_ == group().size()) return nonsense("it is not for this rank");
      hear_flush();
      break;
    case Says::kPasses:
      if (options_.quorum == 1 || signal.first_segment >= group().size()) {
        return nonsense("it is not for this series");
      }
      if (signal.first_segment != rank_) {
        if (rank_ != 0) return nonsense("it is not for this rank");
        say(signal.first_segment, Says::kPasses, signal.round, signal.first_segment);
        break;
      }
      if (signal.round < activation_->number()) break;  // somebody else has initiated it
      passed_to_here_ = signal.round;
      activation_->go_on();
      break;
    default: return nonsense("there is no such signal");
  }
  go();
  return {};
}

// Does what the activation allows. When an instance is over, the next one may allow more.
void ActivatedPartial::go() {
  if (std::exchange(going_, true)) return;  // the call below goes on
  while (!over_) {
    const collective::Instance* const instance = activation_->instance();
    if (instance == nullptr) break;
    const std::vector<uint32_t>& open = instance->open();
    const auto next = std::ranges::find_if(open, [this](uint32_t one) {
      const Operation::Kind kind = schedule_.schedule[one].kind;
      return kind == Operation::Kind::kSend || (one == run_ && parts_ == 0);
    });
    if (next == open.end()) break;
    const uint32_t operation = *next;
    if (operation == run_) {
      begin_round();
      continue;
    }
    say(schedule_.schedule[operation].peer, Says::kActive, activation_->number());
    activation_->complete(operation);
  }
  going_ = false;
  if (!over_) pass_on();
}

// This rank is active: what it has contributed by now is in the round.
void ActivatedPartial::begin_round() {
  const auto round = static_cast<uint32_t>(activation_->number());
  const Nanos now = core_.loop->now();
  activated_at_.push_back(now);
  if (activated_at_.size() > kTimesKept) activated_at_.pop_front();
  const bool contributes = announced_ > counted_;
  slots_.assign(group().size(), {});
  Slot& slot = slots_[rank_];
  slot.flushes = flushes_;
  char* array = nullptr;
  Status closed;
  {
    std::lock_guard lock(mutex_);
    if (contributes) {
      const uint32_t missed = round - std::min(oldest_, round);
      const size_t back = std::min<size_t>(missed, activated_at_.size() - 1);
      slot.upto = static_cast<int64_t>(announced_);
      slot.oldest = oldest_;
      slot.active = flushes_ || base_ == round + 1;
      slot.waited = activated_at_[activated_at_.size() - 1 - back] - contributed_at_;
    }
    slot.digest_rounds = std::exchange(digest_rounds_, 0);
    slot.digest = static_cast<int64_t>(digest_);
    close(round);
    core_.recorder().place(closed_.id(), stream_, round);
    const char* mine = nullptr;
    closed = ledger_.closed(round, contributes ? announced_ : 0, false, &mine);
    array = ledger_.result();
    mine == nullptr ? std::memset(array, 0, bytes()) : std::memcpy(array, mine, bytes());
  }
  if (!closed.ok()) {
    over_ = true;
    return core_.ending.fail_now(closed);
  }
  counted_ = announced_;
  if (contributes) oldest_ = base_;
  collective::Task sum, contributors;
  sum.ticket = 2 * round;
  sum.name = options_.name;
  sum.algorithm = options_.algorithm;
  sum.data = array;
  sum.count = options_.elements;
  sum.dtype = options_.dtype;
  sum.reduction.op = options_.op;
  contributors.ticket = 2 * round + 1;
  contributors.name = concat(options_.name, " (contributors)");
  contributors.algorithm = Algorithm::kDoubling;
  contributors.data = reinterpret_cast<char*>(slots_.data());
  contributors.count = slots_.size() * sizeof(Slot) / sizeof(int64_t);
  contributors.dtype = DType::kInt64;
  contributors.reduction.op = ReduceOp::kSum;
  parts_ = 2;
  start(std::move(contributors));
  start(std::move(sum));
}

void ActivatedPartial::start(collective::Task task) {
  task.group = group().id();
  task.stream = stream_;
  task.ranks = group().members().ranks();
  core_.executor->start(std::move(task), core_.deadline(0),
                        [this, self = shared_from_this()](const Status&) { end_part(); });
}

void ActivatedPartial::end_part() {
  // A group that is called off gives up its all-reduces, and its series fail.
  if (group().called_off().ok() && --parts_ == 0) end_round();
}

void ActivatedPartial::end_round() {
  RoundInfo info;
  info.round = static_cast<uint32_t>(activation_->number());
  info.divisor = options_.op == ReduceOp::kAverage ? group().size() : 1;
  going_on_.clear();
  for (uint32_t rank = 0; rank < slots_.size(); ++rank) {
    const Slot& slot = slots_[rank];
    if (Status same = compare(rank, slot); !same.ok()) {
      over_ = true;
      list_.delist(*this);
      return fail(same);
    }
    if (slot.flushes == 0) going_on_.push_back(rank);
    if (slot.upto == 0) continue;
    const auto oldest = static_cast<uint32_t>(slot.oldest);
    info.contributors.push_back({rank, static_cast<uint64_t>(slot.upto),
                                 info.round - std::min(oldest, info.round), slot.active != 0,
                                 slot.waited, 0});
  }
  info.last = over_ = going_on_.empty();
  if (info.last) {
    std::lock_guard lock(mutex_);
    const char* mine = nullptr;
    const uint64_t upto = slots_[rank_].upto == 0 ? 0 : counted_;
    if (Status ended = ledger_.closed(info.round, upto, true, &mine); !ended.ok()) {
      return core_.ending.fail_now(ended);
    }
  }
  activation_->complete(run_);
  complete(std::move(info));
  go();
}

Status ActivatedPartial::compare(uint32_t rank, const Slot& slot) {
  if (slot.digest_rounds == 0) return {};
  const auto rounds = static_cast<uint32_t>(slot.digest_rounds);
  const auto digest = static_cast<uint64_t>(slot.digest);
  const auto [place, fresh] = digests_.try_emplace(rounds, digest, rank);
  const auto [first, whose] = place->second;
  if (!fresh && first != digest) {
    const auto describe = [this](uint32_t index) {
      return core_.cluster.describe_rank(group().members().ranks()[index]);
    };
    return {Code::kMismatch,
            concat("the replicas of '", options_.name, "' differ after ",
                   herring::counted(rounds, "round"), ": ", describe(rank), " has digest ", digest,
                   ", ", describe(whose), " has ", first)};
  }
  if (digests_.size() > kDigestsKept) digests_.erase(digests_.begin());
  return {};
}

// The ranks of which any would initiate the round for which this rank waits.
std::vector<uint32_t> ActivatedPartial::awaited_ranks() const {
  const std::vector<uint32_t>& ranks = group().members().ranks();
  if (options_.quorum > 1) return {ranks[initiator(activation_->number())]};
  std::vector<uint32_t> found;
  for (const uint32_t one : going_on_) {
    if (one != rank_) found.push_back(ranks[one]);
  }
  return found;
}

Status ActivatedPartial::check(Nanos now) {
  const bool waits = !over_ && activation_->calls() > activation_->number() &&
                     !activation_->is_active();
  if (!waits) {
    waits_since_ = 0;
    warned_ = false;
    return {};
  }
  if (waits_since_ == 0) waits_since_ = now;
  const Deadline deadline = core_.deadline(0);
  const bool overdue = deadline.passed(now, waits_since_, now);
  const std::string left = core_.groups.departed(group());
  if (left.empty() && !overdue && (warned_ || !deadline.warns(now, waits_since_))) return {};
  const std::vector<uint32_t> ranks = awaited_ranks();
  const std::string what =
      concat("round ", activation_->number(), " of '", options_.name, "'",
             group().members().suffix());
  if (!left.empty()) {
    return {Code::kPeerLost,
            concat(left, ", but all ranks take part in ", what, "; ", control::kAdviceOnLeaving)};
  }
  const std::string who =
      concat(in_seconds(now - waits_since_), " for ", core_.cluster.describe_ranks(ranks),
             ", which ", options_.quorum > 1 ? "was drawn to begin" : "may begin",
             " it, or for a rank that this one waits for");
  const std::string known = core_.states.describe(group().members().ranks());
  if (overdue) {
    return {Code::kTimeout,
            concat(what, " has waited ", who, "; if it is only slow, give it more time "
                   "(HERRING_TIMEOUT)", known)};
  }
  warned_ = true;
  log(LogLevel::kWarning, what, " has waited ", who, known);
  return {};
}

}  // namespace herring::rounds
