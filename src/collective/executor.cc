#include "collective/executor.h"

#include <algorithm>

#include "base/log.h"

namespace herring::collective {
namespace {

// Bytes that may wait in a flow before the next frame is added. This is enough to keep the system
// busy, but little enough for grants behind them to be in time.
constexpr size_t kBacklog = 64 << 10;
// Limit of early grants. A run has a few grants on its way at a time, and nobody has this many
// runs.
constexpr size_t kMaxEarly = 1 << 16;
// Limit of a card's bytes.
constexpr size_t kMostCard = 1024;
static_assert(kMostCard <= kFrameBytes);
// How long the rendezvous may take to report who has died.
constexpr Nanos kGrace = kSecond;

// Returns whether a frame says something of a message, and has none of its bytes.
bool is_small(wire::FrameType type) {
  return type == wire::FrameType::kGrant || type == wire::FrameType::kCard ||
         type == wire::FrameType::kShown || type == wire::FrameType::kRead ||
         type == wire::FrameType::kSignal;
}

}  // namespace

class Executor::Active : public Run::Wire {
 public:
  Active(Executor& owner, Task task, Deadline deadline, OnDone on_done)
      : Active(owner, index_of(task.ranks, owner.rank_), static_cast<uint32_t>(task.ranks.size()),
               std::move(task), deadline, std::move(on_done)) {}

  static uint32_t index_of(const std::vector<uint32_t>& ranks, uint32_t rank) {
    return static_cast<uint32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  uint32_t rank_of(uint32_t index) const { return run.task().ranks[index]; }
  uint32_t index_of(uint32_t rank) const { return index_of(run.task().ranks, rank); }

  bool ready_for_grant(uint32_t to) override {
    return owner_.mesh_.flow(rank_of(to)) != nullptr;
  }
  bool ready_for_block(uint32_t to) override {
    const transport::Flow* flow = owner_.mesh_.flow(rank_of(to));
    return flow != nullptr && flow->backlog() < kBacklog;
  }

  void grant(uint32_t to, uint32_t message, uint32_t frames) override {
    owner_.mesh_.flow(rank_of(to))->send(header(wire::FrameType::kGrant, message, frames), nullptr,
                                         0, 0);
  }

  void block(uint32_t to, uint32_t message, uint32_t frame, const char* data, size_t bytes,
             uint32_t operation) override {
    wire::FrameHeader head = header(wire::FrameType::kBlock, message, frame);
    head.payload = static_cast<uint32_t>(bytes);
    const iovec piece{const_cast<char*>(data), bytes};
    owner_.peers_[rank_of(to)].on_the_way.push_back({key_, operation, bytes});
    ++on_the_way;
    owner_.mesh_.flow(rank_of(to))->send(head, &piece, 1, 1);
  }

  void card(uint32_t to, std::string text) override {
    owner_.mesh_.flow(rank_of(to))->send_owned(header(wire::FrameType::kCard, 0, 0),
                                               std::move(text));
  }
  void shown(uint32_t to, uint32_t message, uint32_t frames) override {
    owner_.mesh_.flow(rank_of(to))->send(header(wire::FrameType::kShown, message, frames), nullptr,
                                         0, 0);
  }
  void read(uint32_t to, uint32_t message) override {
    if (transport::Flow* const flow = owner_.mesh_.flow(rank_of(to))) {
      flow->send(header(wire::FrameType::kRead, message, 0), nullptr, 0, 0);
    }
  }

  ~Active() override {
    if (run.task().elsewhere) run.task().elsewhere->on_progress({});
  }

  // Returns whether nothing reads or writes the array.
  bool untouched() const { return on_the_way == 0 && arriving == 0; }
  // Returns whether this is a message between two ranks, which concerns nobody else.
  bool is_message() const { return !run.task().schedule.empty(); }

  std::string describe() const {
    const Task& task = run.task();
    if (is_message()) {
      return concat("'", task.name, "' (rank ", task.ranks[0], " to rank ", task.ranks[1], ", ",
                    task.count, " ", name_of(task.dtype), ")");
    }
    return concat("allreduce '", task.name, "' (", wire::name_of(task.algorithm), ", ", task.count,
                  " ", name_of(task.dtype), ")");
  }

  Run run;
  OnDone done;
  Status lost;  // why it cannot be completed
  const Nanos since;
  const Deadline deadline;
  bool begun = false, warned = false;
  uint32_t on_the_way = 0, arriving = 0;  // frames

 private:
  Active(Executor& owner, uint32_t index, uint32_t size, Task&& task, Deadline deadline,
         OnDone&& on_done)
      : run(std::move(task), index, size, *this),
        done(std::move(on_done)),
        since(monotonic_now()),
        deadline(deadline),
        owner_(owner),
        key_{run.task().group, run.task().stream, run.task().ticket} {}

  wire::FrameHeader header(wire::FrameType type, uint32_t message, uint32_t frame) const {
    wire::FrameHeader header{.type = type};
    std::tie(header.group, header.stream, header.round) = key_;
    header.buffer = message;
    header.first_segment = frame;
    return header;
  }

  Executor& owner_;
  const Key key_;
};

Executor::Executor(transport::Transport& transport, transport::EventLoop& loop,
                   const control::Cluster& cluster, const observe::RankStates& states,
                   MeshOptions options, OnFailure on_failure, OnLost on_lost, GoesOn goes_on,
                   HasLeft has_left)
    : loop_(loop),
      cluster_(cluster),
      states_(states),
      rank_(options.rank),
      on_failure_(std::move(on_failure)),
      on_lost_(std::move(on_lost)),
      goes_on_(std::move(goes_on)),
      has_left_(std::move(has_left)),
      mesh_(transport, loop, std::move(options), *this,
            [this](uint32_t rank) { on_flow(rank); },
            [this](uint32_t rank, const Status& why) { lost(rank, why); },
            [this](const Status& why) {
              if (!active_.empty()) on_failure_(why);
            }) {}

Executor::~Executor() = default;

void Executor::on_flow(uint32_t rank) {
  const auto [first, last] = signals_.equal_range(rank);
  for (auto one = first; one != last; ++one) mesh_.flow(rank)->send(one->second, nullptr, 0, 0);
  signals_.erase(first, last);
  // Several runs may have waited for a new flow.
  std::vector<Key> keys;
  for (const auto& [key, active] : active_) keys.push_back(key);
  for (const Key& key : keys) {
    const auto found = active_.find(key);
    if (found == active_.end() || !found->second->begun || !goes_on_(std::get<0>(key))) continue;
    found->second->run.advance();
    settle(key);
  }
}

void Executor::signal(uint32_t rank, const wire::FrameHeader& signal) {
  transport::Flow* const flow = mesh_.flow(rank);
  flow ? flow->send(signal, nullptr, 0, 0) : void(signals_.emplace(rank, signal));
}

Status Executor::meet(const std::vector<uint32_t>& ranks,
                      const std::vector<std::string>& addresses) {
  HERRING_RETURN_IF_ERROR(mesh_.meet(ranks, addresses));
  std::vector<Key> waiting;
  for (const auto& [key, active] : active_) {
    if (!active->begun) waiting.push_back(key);
  }
  for (const Key& key : waiting) {
    const auto found = active_.find(key);
    if (found != active_.end() && can_begin(found->second->run.task())) begin(*found->second);
  }
  return {};
}

bool Executor::can_begin(const Task& task) const {
  return std::all_of(task.ranks.begin(), task.ranks.end(),
                     [this](uint32_t rank) { return rank == rank_ || mesh_.knows(rank); });
}

void Executor::start(Task task, Deadline deadline, OnDone on_done) {
  const Key key{task.group, task.stream, task.ticket};
  if (!goes_on_(task.group)) return on_done({});
  const auto [place, fresh] = active_.emplace(
      key, std::make_unique<Active>(*this, std::move(task), deadline, std::move(on_done)));
  if (!fresh) return on_failure_(breach("a ticket was given twice"));
  if (can_begin(place->second->run.task())) begin(*place->second);
}

void Executor::begin(Active& active) {
  const Task& task = active.run.task();
  const Key key{task.group, task.stream, task.ticket};
  active.begun = true;
  for (const uint32_t peer : active.run.peers()) mesh_.want(active.rank_of(peer));
  if (auto early = early_.extract(key); !early.empty()) {
    early_count_ -= early.mapped().size();
    for (const auto& [rank, card] : early.mapped().cards) {
      const Status status = active.run.on_card(active.index_of(rank), card);
      if (!status.ok()) return on_failure_(status);
    }
    for (const auto& [who, frames] : early.mapped().grants) {
      const Status status =
          active.run.on_grant(active.index_of(who.first), who.second, frames);
      if (!status.ok()) return on_failure_(status);
    }
  }
  if (task.elsewhere) task.elsewhere->on_progress([this, key] { on_progress(key); });
  active.run.start();
  task.elsewhere ? on_progress(key) : settle(key);
}

// Reports progress of the DeviceSide of a task.
void Executor::on_progress(Key key) {
  const auto found = active_.find(key);
  if (found == active_.end()) return;
  Run& run = found->second->run;
  if (Status failed = run.task().elsewhere->failure(); !failed.ok()) return on_failure_(failed);
  moved_ = loop_.now();
  if (goes_on_(std::get<0>(key))) run.advance();
  settle(key);
}

// The run may be complete and deleted, so the caller must not use it afterwards.
void Executor::settle(Key key) {
  const auto found = active_.find(key);
  if (found == active_.end()) return;
  const bool given_up = !goes_on_(std::get<0>(key)) || !found->second->lost.ok();
  if (given_up ? !found->second->untouched() : !found->second->run.done()) return;
  const auto active = std::move(found->second);
  active_.erase(found);
  active->done(active->lost);
}

void Executor::call_off(uint32_t group) {
  std::erase_if(early_, [&](const auto& one) {
    const bool ends = std::get<0>(one.first) == group;
    if (ends) early_count_ -= one.second.size();
    return ends;
  });
  settle_called_off();
}

void Executor::settle_called_off() {
  std::vector<Key> keys;
  for (const auto& [key, active] : active_) {
    if (!goes_on_(std::get<0>(key))) keys.push_back(key);
  }
  for (const Key& key : keys) settle(key);
}

void Executor::clear() {
  // First, nothing may read or write memory any more.
  mesh_.clear();
  forget_all();
}

void Executor::finish() {
  // Sends no more data of tasks that this worker gives up.
  mesh_.finish([this](uint32_t rank) { return peers_[rank].on_the_way.empty(); });
  forget_all();
}

void Executor::forget_all() {
  peers_.clear();
  active_.clear();
  signals_.clear();
  early_.clear();
  early_count_ = 0;
}

void Executor::check_deadlines(Nanos now) {
  for (const auto& [key, active] : active_) {
    if (!goes_on_(std::get<0>(key))) continue;
    const Nanos age = now - active->since;
    const bool overdue = active->deadline.passed(now, active->since, moved_);
    if (!overdue && (active->warned || !active->deadline.warns(now, active->since))) continue;
    std::vector<uint32_t> ranks;
    for (const uint32_t index : active->run.missing()) ranks.push_back(active->rank_of(index));
    std::string missing = cluster_.describe_ranks(ranks);
    // Those who are missing here may wait for others, whose states explain more.
    const std::string known = states_.describe(active->run.task().ranks);
    if (!active->begun) missing = "the addresses of the other ranks";
    if (active->run.waits_for_elsewhere()) missing = "the GPU of this rank";
    if (overdue) {
      return on_failure_({Code::kTimeout,
                          concat(active->describe(), " waited ", in_seconds(age), " for ",
                                 missing, ", or for a rank that this one waits for; if it is only "
                                          "slow, give it more time (timeout=, HERRING_TIMEOUT)",
                                 known)});
    }
    active->warned = true;
    log(LogLevel::kWarning, active->describe(), " has waited ", in_seconds(age), " for ", missing,
        active->run.waits_for_elsewhere() ? "" : known);
  }
}

Status Executor::on_header(transport::Flow& flow, const wire::FrameHeader& header,
                           transport::Destinations& out) {
  const auto from = static_cast<uint32_t>(flow.user_index);
  const bool is_card = header.type == wire::FrameType::kCard;
  if (is_card ? header.payload <= kMostCard : is_small(header.type) && header.payload == 0) {
    if (header.payload == 0) return {};
    Peer& peer = peers_[from];
    if (!peer.scratch) peer.scratch = std::make_unique<char[]>(kFrameBytes);
    out.add(peer.scratch.get(), header.payload);
    return {};
  }
  if (header.type != wire::FrameType::kBlock || header.payload == 0) {
    return breach("unexpected ", wire::name_of(header.type), " frame of ", header.payload,
                  " bytes from rank ", from);
  }
  Peer& peer = peers_[from];
  if (!peer.scratch) peer.scratch = std::make_unique<char[]>(kFrameBytes);
  // Drops frames that others sent before they knew that the group is called off.
  if (!goes_on_(header.group)) {
    if (header.payload > kFrameBytes) {
      return breach("rank ", from, " sent a block of ", header.payload, " bytes");
    }
    out.add(peer.scratch.get(), header.payload);
    return {};
  }
  const auto found = active_.find({header.group, header.stream, header.round});
  if (found == active_.end() || !found->second->begun) {
    return breach("rank ", from, " sent a block that no task waits for (group ", header.group,
                  ", stream ", header.stream, ", ticket ", header.round, ")");
  }
  Active& active = *found->second;
  const uint32_t index = active.index_of(from);
  if (index == active.run.task().ranks.size()) {
    return breach("rank ", from, " sent a block of ", active.describe(), ", but has no part in it");
  }
  HERRING_RETURN_IF_ERROR(active.run.on_block(index, header.buffer, header.first_segment,
                                              header.payload, peer.scratch.get(), out));
  peer.arriving = &active;
  ++active.arriving;
  return {};
}

void Executor::on_payload(transport::Flow& flow, const wire::FrameHeader& header,
                          size_t received) {
  moved_ = loop_.now();
  if (received == header.payload) return;  // on_frame() follows
  const auto from = static_cast<uint32_t>(flow.user_index);
  Peer& peer = peers_[from];
  if (peer.arriving == nullptr || !goes_on_(header.group)) return;
  peer.arriving->run.on_bytes(peer.arriving->index_of(from), peer.scratch.get(), received);
}

Status Executor::on_frame(transport::Flow& flow, const wire::FrameHeader& header) {
  const auto from = static_cast<uint32_t>(flow.user_index);
  Peer& peer = peers_[from];
  if (is_small(header.type)) return on_small(from, header, {peer.scratch.get(), header.payload});
  if (Active* const active = std::exchange(peer.arriving, nullptr)) {
    --active->arriving;
    if (goes_on_(header.group)) {
      active->run.on_bytes(active->index_of(from), peer.scratch.get(), header.payload);
    }
  }
  settle({header.group, header.stream, header.round});
  return {};
}

Status Executor::on_small(uint32_t from, const wire::FrameHeader& header, std::string_view card) {
  using Type = wire::FrameType;
  const Key key{header.group, header.stream, header.round};
  if (!goes_on_(header.group)) return {};
  if (header.type == Type::kSignal) return on_signal_(from, header);
  const auto found = active_.find(key);
  if (found == active_.end() || !found->second->begun) return come_early(from, header, card);
  Active& active = *found->second;
  const uint32_t index = active.index_of(from);
  if (index == active.run.task().ranks.size()) {
    return breach("rank ", from, " sent a ", wire::name_of(header.type), " frame of ",
                  active.describe(), ", but has no part in it");
  }
  Run& run = active.run;
  const uint32_t message = header.buffer, frames = header.first_segment;
  HERRING_RETURN_IF_ERROR(header.type == Type::kGrant   ? run.on_grant(index, message, frames)
                          : header.type == Type::kCard  ? run.on_card(index, card)
                          : header.type == Type::kShown ? run.on_shown(index, message, frames)
                                                        : run.on_read(index, message));
  if (header.type != Type::kGrant) moved_ = loop_.now();
  run.advance();
  settle(key);
  return {};
}

Status Executor::come_early(uint32_t from, const wire::FrameHeader& header,
                            std::string_view card) {
  const bool is_card = header.type == wire::FrameType::kCard;
  if (!is_card && header.type != wire::FrameType::kGrant) {
    return breach("rank ", from, " sent a ", wire::name_of(header.type),
                  " frame that no task waits for");
  }
  Early& early = early_[{header.group, header.stream, header.round}];
  const size_t before = early.size();
  if (is_card) {
    early.cards[from] = card;
  } else {
    uint32_t& frames = early.grants[{from, header.buffer}];
    frames = std::max(frames, header.first_segment);
  }
  early_count_ += early.size() - before;
  if (early_count_ <= kMaxEarly) return {};
  return breach("rank ", from, " sent too many grants and cards for unknown tasks");
}

void Executor::on_sent(transport::Flow& flow, uint64_t) {
  moved_ = loop_.now();
  Peer& peer = peers_[static_cast<uint32_t>(flow.user_index)];
  const Peer::Sent sent = peer.on_the_way.front();
  peer.on_the_way.pop_front();
  Active& active = *active_.at(sent.key);
  --active.on_the_way;
  if (goes_on_(std::get<0>(sent.key))) active.run.sent(sent.operation, sent.bytes);
  settle(sent.key);
  if (flow.closed() || flow.backlog() >= kBacklog) return;
  // There is room again, perhaps for another run.
  for (const auto& [key, active] : active_) {
    const bool goes_on = active->begun && goes_on_(std::get<0>(key));
    if (goes_on && key != sent.key) active->run.advance();
  }
}

void Executor::on_closed(transport::Flow& flow, const Status& why) {
  lost(static_cast<uint32_t>(flow.user_index), why);
}

void Executor::rank_lost(uint32_t rank) {
  mesh_.close(rank);
  let_go(rank);
}

void Executor::rank_left(uint32_t rank) {
  // A connection from that rank may still have to be accepted.
  loop_.call_after(kGrace, [this, rank] {
    if (mesh_.flow(rank) == nullptr) lost(rank, {Code::kPeerLost, "it has left the job"});
  });
}

// Nothing is on its way to or from that rank any more.
void Executor::let_go(uint32_t rank) {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  if (Active* const active = std::exchange(peer.arriving, nullptr)) --active->arriving;
  for (const Peer::Sent& sent : std::exchange(peer.on_the_way, {})) {
    --active_.at(sent.key)->on_the_way;
  }
  settle_called_off();
}

void Executor::lost(uint32_t rank, const Status& why) {
  let_go(rank);
  const std::string text = concat("lost ", cluster_.describe_rank(rank), ": ", why.message());
  if (why.is_fault()) return on_failure_({why.code(), text});
  // A rank that has done its part may leave; the rendezvous reports who has died.
  loop_.call_after(kGrace, [this, rank, text] {
    std::set<uint32_t> groups;
    std::vector<Key> messages;
    for (const auto& [key, active] : active_) {
      if (!active->begun || !goes_on_(std::get<0>(key))) continue;
      const uint32_t index = active->index_of(rank);
      if (index == active->run.task().ranks.size() || !active->run.needs(index)) continue;
      // This is a message between two living ranks. The other rank may not know of the loss and
      // would wait.
      if (active->is_message() && has_left_(rank)) {
        active->lost = {Code::kPeerLost, concat(active->describe(), " cannot complete: ", text)};
        messages.push_back(key);
      } else {
        groups.insert(std::get<0>(key));
      }
    }
    for (const Key& key : messages) settle(key);
    for (const uint32_t group : groups) on_lost_(group, {Code::kPeerLost, text});
  });
}

}  // namespace herring::collective
