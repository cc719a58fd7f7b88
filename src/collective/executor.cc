#include "collective/executor.h"

#include <algorithm>

#include "base/log.h"

namespace herring::collective {
namespace {

// What may wait in a flow before the next frame: enough for the system to have bytes meanwhile,
// little enough for a grant behind it not to be late.
constexpr size_t kBacklog = 64 << 10;
// A run has a few grants on its way at a time; nobody has this many runs.
constexpr size_t kMaxEarly = 1 << 16;
// How long the rendezvous may take to say who has died.
constexpr Nanos kGrace = kSecond;

}  // namespace

class Executor::Active : public Run::Wire {
 public:
  Active(Executor& owner, Task task, Deadline deadline, std::function<void()> on_done)
      : run(std::move(task), owner.rank_, owner.cluster_.size, *this),
        done(std::move(on_done)),
        since(monotonic_now()),
        deadline(deadline),
        owner_(owner),
        key_{run.task().stream, run.task().ticket} {}

  bool ready_for_grant(uint32_t to) override { return owner_.mesh_.flow(to) != nullptr; }
  bool ready_for_block(uint32_t to) override {
    const transport::Flow* flow = owner_.mesh_.flow(to);
    return flow != nullptr && flow->backlog() < kBacklog;
  }

  void grant(uint32_t to, uint32_t message, uint32_t frames) override {
    owner_.mesh_.flow(to)->send(header(wire::FrameType::kGrant, message, frames), nullptr, 0, 0);
  }

  void block(uint32_t to, uint32_t message, uint32_t frame, const char* data, size_t bytes,
             uint32_t step) override {
    wire::FrameHeader head = header(wire::FrameType::kBlock, message, frame);
    head.payload = static_cast<uint32_t>(bytes);
    const iovec piece{const_cast<char*>(data), bytes};
    owner_.peers_[to].on_the_way.push_back({key_, step, bytes});
    owner_.mesh_.flow(to)->send(head, &piece, 1, 1);
  }

  std::string describe() const {
    const Task& task = run.task();
    return concat("allreduce '", task.name, "' (", wire::name_of(task.algorithm), ", ", task.count,
                  " ", name_of(task.dtype), ")");
  }

  Run run;
  std::function<void()> done;
  const Nanos since;
  const Deadline deadline;
  bool begun = false, warned = false;

 private:
  wire::FrameHeader header(wire::FrameType type, uint32_t message, uint32_t frame) const {
    wire::FrameHeader header;
    header.type = type;
    header.stream = key_.first;
    header.round = key_.second;
    header.buffer = message;
    header.first_segment = frame;
    return header;
  }

  Executor& owner_;
  const Key key_;
};

Executor::Executor(transport::Transport& transport, transport::EventLoop& loop,
                   const control::Cluster& cluster, MeshOptions options, OnFailure on_failure)
    : loop_(loop),
      cluster_(cluster),
      rank_(options.rank),
      on_failure_(std::move(on_failure)),
      mesh_(transport, loop, std::move(options), *this,
            [this](uint32_t) {
              // A flow that is new may be what several runs have waited for.
              std::vector<Key> keys;
              for (const auto& [key, active] : active_) keys.push_back(key);
              for (const Key& key : keys) {
                const auto found = active_.find(key);
                if (found == active_.end() || !found->second->begun) continue;
                found->second->run.advance();
                settle(key);
              }
            },
            [this](uint32_t rank, const Status& why) { lost(rank, why); }) {}

Executor::~Executor() = default;

Status Executor::meet(const std::vector<std::string>& addresses) {
  HERRING_RETURN_IF_ERROR(mesh_.meet(addresses));
  std::vector<Key> waiting;
  for (const auto& [key, active] : active_) waiting.push_back(key);
  for (const Key& key : waiting) {
    if (const auto found = active_.find(key); found != active_.end()) begin(*found->second);
  }
  return {};
}

void Executor::start(Task task, Deadline deadline, std::function<void()> on_done) {
  const Key key{task.stream, task.ticket};
  const auto [place, fresh] = active_.emplace(
      key, std::make_unique<Active>(*this, std::move(task), deadline, std::move(on_done)));
  if (!fresh) return on_failure_({Code::kInternal, "a ticket was given twice"});
  if (mesh_.met()) begin(*place->second);
}

void Executor::begin(Active& active) {
  const Key key{active.run.task().stream, active.run.task().ticket};
  active.begun = true;
  for (const uint32_t peer : active.run.peers()) mesh_.want(peer);
  if (auto early = early_.extract(key); !early.empty()) {
    early_count_ -= early.mapped().size();
    for (const auto& [who, frames] : early.mapped()) {
      const Status status = active.run.on_grant(who.first, who.second, frames);
      if (!status.ok()) return on_failure_(status);
    }
  }
  active.run.start();
  settle(key);
}

// The run may have completed; nothing may be done with it afterwards.
void Executor::settle(Key key) {
  const auto found = active_.find(key);
  if (found == active_.end() || !found->second->run.done()) return;
  const auto active = std::move(found->second);
  active_.erase(found);
  active->done();
}

void Executor::clear() {
  // First nothing reads or writes any more.
  mesh_.clear();
  peers_.clear();
  active_.clear();
  early_.clear();
  early_count_ = 0;
}

void Executor::check_deadlines(Nanos now) {
  for (const auto& [key, active] : active_) {
    const Nanos age = now - active->since;
    const bool overdue = active->deadline.passed(now, active->since, moved_);
    if (!overdue && (active->warned || !active->deadline.warns(now, active->since))) continue;
    std::string missing;
    for (const uint32_t rank : active->run.missing()) {
      missing += (missing.empty() ? "" : ", ") + cluster_.describe_rank(rank);
    }
    if (missing.empty()) missing = "the addresses of the other ranks";
    if (overdue) {
      return on_failure_({Code::kTimeout,
                          concat(active->describe(), " waited ", to_seconds(age), " s for ",
                                 missing, ", or for whom that one waits; raise HERRING_TIMEOUT if "
                                          "it is only slow")});
    }
    active->warned = true;
    log(LogLevel::kWarning, active->describe(), " has waited ", age / kSecond, " s for ", missing);
  }
}

Status Executor::on_header(transport::Flow& flow, const wire::FrameHeader& header,
                           transport::Destinations& out) {
  const auto from = static_cast<uint32_t>(flow.user_index);
  if (header.type == wire::FrameType::kGrant && header.payload == 0) return {};
  if (header.type != wire::FrameType::kBlock || header.payload == 0) {
    return {Code::kInternal, concat("unexpected ", wire::name_of(header.type), " frame of ",
                                    header.payload, " bytes from rank ", from)};
  }
  const auto found = active_.find({header.stream, header.round});
  if (found == active_.end() || !found->second->begun) {
    return {Code::kInternal, concat("rank ", from, " sent a block that nobody waits for (stream ",
                                    header.stream, ", ticket ", header.round, ")")};
  }
  Peer& peer = peers_[from];
  if (!peer.scratch) peer.scratch = std::make_unique<char[]>(kFrameBytes);
  HERRING_RETURN_IF_ERROR(found->second->run.on_block(from, header.buffer, header.first_segment,
                                                      header.payload, peer.scratch.get(), out));
  peer.arriving = found->second.get();
  return {};
}

void Executor::on_payload(transport::Flow& flow, const wire::FrameHeader& header,
                          size_t received) {
  moved_ = loop_.now();
  if (received == header.payload) return;  // on_frame() follows
  const auto from = static_cast<uint32_t>(flow.user_index);
  Peer& peer = peers_[from];
  peer.arriving->run.on_bytes(from, peer.scratch.get(), received);
}

Status Executor::on_frame(transport::Flow& flow, const wire::FrameHeader& header) {
  const auto from = static_cast<uint32_t>(flow.user_index);
  if (header.type == wire::FrameType::kGrant) return on_grant(from, header);
  Peer& peer = peers_[from];
  std::exchange(peer.arriving, nullptr)->run.on_bytes(from, peer.scratch.get(), header.payload);
  settle({header.stream, header.round});
  return {};
}

Status Executor::on_grant(uint32_t from, const wire::FrameHeader& header) {
  const Key key{header.stream, header.round};
  const auto found = active_.find(key);
  if (found == active_.end() || !found->second->begun) {
    uint32_t& frames = early_[key][{from, header.buffer}];
    if (frames == 0 && ++early_count_ > kMaxEarly) {
      return {Code::kInternal, concat("rank ", from, " grants what nobody has asked for")};
    }
    frames = std::max(frames, header.first_segment);
    return {};
  }
  HERRING_RETURN_IF_ERROR(
      found->second->run.on_grant(from, header.buffer, header.first_segment));
  found->second->run.advance();
  settle(key);
  return {};
}

void Executor::on_sent(transport::Flow& flow, uint64_t) {
  moved_ = loop_.now();
  Peer& peer = peers_[static_cast<uint32_t>(flow.user_index)];
  const Peer::Sent sent = peer.on_the_way.front();
  peer.on_the_way.pop_front();
  active_.at(sent.key)->run.sent(sent.step, sent.bytes);
  settle(sent.key);
  if (flow.closed() || flow.backlog() >= kBacklog) return;
  // There is room again, perhaps for another run than this one.
  for (const auto& [key, active] : active_) {
    if (active->begun && key != sent.key) active->run.advance();
  }
}

void Executor::on_closed(transport::Flow& flow, const Status& why) {
  lost(static_cast<uint32_t>(flow.user_index), why);
}

void Executor::lost(uint32_t rank, const Status& why) {
  const std::string text = concat("lost ", cluster_.describe_rank(rank), ": ", why.message());
  if (why.code() == Code::kInternal) return on_failure_({Code::kInternal, text});
  // A rank that has done its part may leave; the rendezvous says who has died.
  loop_.call_after(kGrace, [this, rank, text] {
    for (const auto& [key, active] : active_) {
      if (active->begun && active->run.needs(rank)) return on_failure_({Code::kPeerLost, text});
    }
  });
}

}  // namespace herring::collective
