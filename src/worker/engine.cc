#include "worker/engine.h"

#include <algorithm>
#include <cstring>
#include <future>

#include "base/hash.h"
#include "base/log.h"

namespace herring::worker {
namespace {

constexpr Nanos kTick = 50 * kMillisecond;
// What is in flight when a rank leaves may still be on its way here.
constexpr Nanos kLeftGrace = 1500 * kMillisecond;
// A server's other connections may still bring results when one of them has ended.
constexpr Nanos kClosedGrace = 100 * kMillisecond;
// Who died, or left, is told by the rendezvous, maybe a little later than connections end.
constexpr Nanos kNews = kSecond;
// Servers keep deadlines; after so long this process does without them.
constexpr Nanos kDeadlineMargin = 2 * kSecond;
// A time-out of milliseconds is meant for ranks that do not call: bytes may rest longer.
constexpr uint32_t kLeastStallMs = 2000;

}  // namespace

Engine::Engine(const control::Cluster& cluster, EngineOptions options,
               transport::Transport& transport, std::unique_ptr<LocalBus> bus,
               std::vector<ServerFlow> flows)
    : cluster_(cluster),
      options_(std::move(options)),
      me_(cluster_.workers[options_.rank]),
      heap_(SharedHeap::kDefaultCacheBytes,
            cluster_.local_size(me_.node) > 1 ? Sharing::kNode : Sharing::kProcess),
      loop_(transport.make_loop(true)),
      bus_(std::move(bus)),
      next_stream_(2 * static_cast<uint32_t>(cluster_.servers.size())) {
  links_ = std::make_unique<Links>(
      *loop_, options_.links,
      [this](uint32_t server, const wire::FrameHeader& header, std::string_view payload) {
        on_control(server, header, payload);
      },
      [this](uint32_t server, const Status& why) { on_link_closed(server, why); });
  for (ServerFlow& flow : flows) links_->add_flow(flow.server, *flow.connection);

  NodeStage::Options node;
  node.nodes = cluster_.nodes;
  node.local_rank = me_.local_rank;
  node.segment_bytes = options_.links.segment_bytes;
  for (uint32_t n = 0; n < cluster_.nodes; ++n) {
    node.most_local_ranks = std::max(node.most_local_ranks, cluster_.local_size(n));
  }
  for (uint32_t rank : cluster_.ranks_of(me_.node)) {
    node.names.push_back(cluster_.describe_rank(rank));
  }
  uses_node_stage_ = cluster_.nodes == 1 || node.most_local_ranks > 1;
  node_stage_ = std::make_unique<NodeStage>(*loop_, *bus_, heap_, *links_, std::move(node),
                                            [this](const Status& status) { fail_now(status); });
  node_stage_->attach();
  executor_ = std::make_unique<collective::Executor>(
      transport, *loop_, cluster_, options_.mesh,
      [this](const Status& status) { fail_now(status); });
  loop_->call_after(kTick, [this] { tick(); });
  loop_->start("herring-engine");
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  loop_->post([this] {
    fail_now({Code::kShutdown, "herring was shut down while the operation was in flight"}, true);
  });
  loop_->join();
  bus_->close();
}

Status Engine::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

uint32_t Engine::timeout_ms(double seconds) const {
  return static_cast<uint32_t>(std::min((seconds > 0 ? seconds : options_.timeout) * 1000, 4e9));
}

Deadline Engine::deadline(double seconds) const {
  const uint32_t own = timeout_ms(seconds), setting = timeout_ms(0);
  return {std::max(own, setting), std::max(own, std::min(setting, kLeastStallMs)), warn_ms()};
}

Status Engine::incomplete() const {
  std::lock_guard lock(mutex_);
  if (stopped_) {
    return {Code::kShutdown, "herring.shutdown() has ended the job that this belongs to; after "
                             "another herring.init() make it anew (wrap the model again)"};
  }
  return failure_.ok() ? incomplete_ : failure_;
}

// Of those who have left, if any.
Status Engine::departure() const {
  if (left_.empty()) return {};
  return {Code::kPeerLost, concat(cluster_.describe_rank(left_.front()), " has left the job")};
}

std::vector<double> Engine::weights() const {
  std::vector<double> weights;
  for (const control::ServerInfo& server : cluster_.servers) weights.push_back(server.weight);
  return weights;
}

Status Engine::run(std::function<void()> task, bool caller_waits) {
  const bool runs = caller_waits ? loop_->post_before_drive(std::move(task))
                                 : loop_->post(std::move(task));
  return runs ? Status() : Status(Code::kShutdown, "herring was shut down");
}

Result<std::shared_ptr<Operation>> Engine::submit(Request request, bool waits) {
  auto operation = std::make_shared<Operation>(loop_);
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (!incomplete_.ok()) {
      return Status(incomplete_.code(), concat("'", request.name, "' cannot complete: ",
                                               incomplete_.message()));
    }
    if (!names_.insert(request.name).second) {
      return Status(Code::kInvalidArgument,
                    concat("an operation named '", request.name,
                           "' is in flight already; wait for it, or give this one another name"));
    }
  }
  operation->request = std::move(request);
  operation->engine_ = this;
  HERRING_RETURN_IF_ERROR(run([this, operation] { start(operation); }, waits));
  return operation;
}

uint32_t Engine::owner_of(const std::string& name) const {
  return static_cast<uint32_t>(fnv1a(name) % cluster_.servers.size());
}

void Engine::refuse(wire::Collective kind, const std::string& name, const std::string& why) {
  wire::Announce announce;
  announce.kind = kind;
  announce.name = name;
  announce.refusal = why.empty() ? "no reason given" : why;
  loop_->post([this, server = owner_of(name), payload = encode(announce)] {
    if (!failure().ok()) return;
    wire::FrameHeader header;
    header.type = wire::FrameType::kAnnounce;
    links_->send_control(server, header, payload);
  });
}

void Engine::start(const std::shared_ptr<Operation>& operation) {
  operation->id_ = next_id_++;
  operation->started_ = loop_->now();
  operations_.emplace(operation->id_, operation);
  if (Status status = failure(); !status.ok()) return finish(*operation, status);
  const Request& request = operation->request;
  operation->server_ = owner_of(request.name);
  const size_t bytes = request.bytes();

  wire::Announce announce;
  announce.id = operation->id_;
  announce.kind = request.kind;
  announce.dtype = request.dtype;
  announce.op = request.op;
  announce.algorithm = request.algorithm;
  announce.root = request.root;
  announce.prescale = request.prescale;
  announce.postscale = request.postscale;
  announce.timeout_ms = timeout_ms(request.timeout);
  announce.warn_ms = warn_ms();
  announce.name = request.name;
  announce.shape = request.shape;
  announce.splits = request.splits;
  // A gathered result must fit a reply. The choice depends on nothing but the call itself: it
  // decides in which tree a sum is taken.
  const bool gathers = request.kind == wire::Collective::kAllgather;
  announce.inline_payload =
      bytes <= options_.small_bytes && request.algorithm == wire::Algorithm::kHerring &&
      (!gathers || bytes * cluster_.size <= wire::kMaxControlPayload / 2);
  std::string payload = encode(announce);
  const bool has_payload = request.kind != wire::Collective::kBarrier &&
                           (request.kind != wire::Collective::kBroadcast ||
                            request.root == options_.rank);
  if (announce.inline_payload && has_payload) {
    payload.append(request.send, bytes);
  }
  wire::FrameHeader header;
  header.type = wire::FrameType::kAnnounce;
  links_->send_control(operation->server_, header, std::move(payload));
}

std::shared_ptr<Operation> Engine::find(uint64_t id) {
  const auto found = operations_.find(id);
  return found == operations_.end() ? nullptr : found->second;
}

void Engine::on_control(uint32_t server, const wire::FrameHeader& header,
                        std::string_view payload) {
  if (header.type == wire::FrameType::kWarning) {
    return log(LogLevel::kWarning, payload);
  }
  const auto malformed = [&](const Status& why) {
    fail_now({Code::kInternal, concat(cluster_.describe_server(server), ": ", why.message())});
  };
  if (header.type == wire::FrameType::kRound || header.type == wire::FrameType::kCommit) {
    if (Status status = on_series(header, payload); !status.ok()) malformed(status);
    return;
  }
  if (header.type == wire::FrameType::kOpError) {
    auto error = wire::decode_op_error(payload);
    if (!error.ok()) return malformed(error.status());
    const Status why(error->code, error->text);
    if (error->id == 0) return fail_now(why);
    auto operation = find(error->id);
    if (!operation) return;
    // What moves cannot be called back from one rank alone.
    return operation->launched_ ? fail_now(why) : finish(*operation, why);
  }
  std::string_view rest;
  auto go = wire::decode_go(payload, &rest);
  if (!go.ok()) return malformed(go.status());
  auto operation = find(go->id);
  if (!operation) return;  // failed meanwhile
  if (operation->launched_) {
    return malformed({Code::kInternal, concat("answered '", operation->request.name, "' twice")});
  }
  if (header.type == wire::FrameType::kReply) {
    on_reply(*operation, std::move(*go), rest);
  } else {
    launch(*operation, header, std::move(*go));
  }
}

void Engine::on_reply(Operation& operation, wire::Go head, std::string_view result) {
  const Request& request = operation.request;
  operation.counts = std::move(head.counts);
  operation.dims = std::move(head.dims);
  switch (request.kind) {
    case wire::Collective::kBarrier: break;
    case wire::Collective::kAllreduce:
    case wire::Collective::kBroadcast:
      if (result.size() != request.bytes()) {
        return fail_now({Code::kInternal, concat("the result of '", request.name, "' has ",
                                                 result.size(), " bytes, not ", request.bytes())});
      }
      if (!result.empty()) std::memcpy(request.receive, result.data(), result.size());
      break;
    default:
      if (operation.make_result(result.size()) == nullptr) {
        return fail_now({Code::kInternal, concat("no memory for the result of '", request.name,
                                                 "', which has ", result.size(), " bytes")});
      }
      std::memcpy(operation.result.get(), result.data(), result.size());
  }
  finish(operation, {});
}

void Engine::part_done(Operation& operation) {
  if (--operation.parts_left_ > 0) return;
  if (operation.staging_ != nullptr) {
    std::memcpy(operation.request.receive, operation.staging_, operation.request.bytes());
  }
  finish(operation, {});
}

void Engine::finish(Operation& operation, const Status& status) {
  const auto found = operations_.find(operation.id_);
  if (found == operations_.end()) return;
  const std::shared_ptr<Operation> keep = found->second;
  operations_.erase(found);
  if (keep->staging_ != nullptr) {
    heap_.free(keep->staging_);
    node_stage_->release_regions();
  }
  {
    std::lock_guard lock(mutex_);
    names_.erase(keep->request.name);
  }
  keep->completion.set(status);
  if (keep->then_) keep->then_(status);
}

void Engine::fail(const Status& status) {
  loop_->post([this, status] { fail_now(status); });
}

void Engine::abort(const Status& status) {
  fail(status);
  options_.abort(status.message());
}

// `leaves`: what was said to the servers still goes out.
void Engine::fail_now(const Status& status, bool leaves) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  // First nothing here may touch callers' memory any more, then they are told. Neighbours may for a
  // moment: what they know as ours is not used again.
  leaves ? links_->finish() : links_->clear();
  heap_.retire_all();
  executor_->clear();
  node_stage_->clear();
  while (!operations_.empty()) finish(*operations_.begin()->second, status);
  for (const auto& waiting : std::exchange(waiting_, {})) waiting->set(status);
  for (const auto& [id, partial] : std::exchange(partials_, {})) partial->fail(status);
}

Status Engine::enlist(const std::shared_ptr<Partial>& partial, std::string message) {
  HERRING_RETURN_IF_ERROR(incomplete());
  return run([this, partial, message = std::move(message)] {
    if (Status status = failure(); !status.ok()) return partial->fail(status);
    if (!partials_.emplace(partial->id(), partial).second) {
      return partial->fail({Code::kInvalidArgument,
                            concat("a partial all-reduce named '", partial->options().name,
                                   "' is in progress already; give this one another name")});
    }
    wire::FrameHeader header;
    header.type = wire::FrameType::kEnlist;
    // To all: any of them must know that the job outlives a worker's death.
    for (uint32_t server = 0; server < links_->servers(); ++server) {
      links_->send_control(server, header, message);
    }
  });
}

void Engine::delist(uint64_t id) {
  loop_->post([this, id] { partials_.erase(id); });
}

Status Engine::on_series(const wire::FrameHeader& header, std::string_view payload) {
  const auto of = [this](uint64_t id) {
    const auto found = partials_.find(id);
    return found == partials_.end() ? nullptr : found->second;  // it has ended here
  };
  std::shared_ptr<Partial> partial;
  if (header.type == wire::FrameType::kRound) {
    auto round = wire::decode_round(payload);
    if (!round.ok()) return round.status();
    if (!(partial = of(round->id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_round(header, std::move(*round)));
  } else {
    auto mark = wire::decode_mark(payload);
    if (!mark.ok()) return mark.status();
    if (!(partial = of(mark->id))) return {};
    HERRING_RETURN_IF_ERROR(partial->on_commit(*mark));
  }
  return {};
}

// A death cannot be survived when it leaves an operation half done that needs everybody: its
// bytes, here or elsewhere, wait for the dead. Rank 0 hosts the rendezvous.
bool Engine::survives(const control::Loss& loss) const {
  if (partials_.empty() || loss.is_server || loss.index == 0 || !waiting_.empty()) return false;
  return std::none_of(operations_.begin(), operations_.end(),
                      [](const auto& one) { return one.second->launched_; });
}

void Engine::peer_lost(const control::Loss& loss) {
  loop_->post([this, loss] {
    const Status status(Code::kPeerLost, loss.text);
    if (!survives(loss)) return fail_now(status);
    log(LogLevel::kWarning, loss.text, "; partial all-reduces go on without it");
    {
      std::lock_guard lock(mutex_);
      if (incomplete_.ok()) incomplete_ = status;
    }
    while (!operations_.empty()) finish(*operations_.begin()->second, status);
  });
}

void Engine::rank_left(uint32_t rank) {
  loop_->post([this, rank] {
    left_.push_back(rank);
    left_since_ = loop_->now();
    std::lock_guard lock(mutex_);
    // What it had called has been announced by now here too: it would not have left otherwise.
    if (incomplete_.ok()) {
      incomplete_ = {Code::kPeerLost, concat(cluster_.describe_rank(rank),
                                             " has left the job without calling it")};
    }
  });
}

// A server is gone. If its process died, the rendezvous will say who; if it ended because its
// worker has left, that only concerns what still needs it.
void Engine::on_link_closed(uint32_t server, const Status& why) {
  const std::string text = concat("lost ", cluster_.describe_server(server), ": ", why.message());
  if (why.code() == Code::kInternal) return fail_now({Code::kInternal, text});
  loop_->call_after(left_.empty() ? kNews : kClosedGrace, [this, server, text] {
    if (left_.empty()) return fail_now({Code::kPeerLost, text});
    fail_what_needs(server);
  });
}

void Engine::fail_what_needs(uint32_t server) {
  const Status gone(Code::kPeerLost, concat(departure().message(), ", and ",
                                            cluster_.describe_server(server), " has ended"));
  const bool moving =
      links_->busy() || !partials_.empty() || (cluster_.nodes > 1 && !waiting_.empty()) ||
      std::any_of(operations_.begin(), operations_.end(),
                  [](const auto& one) { return one.second->launched_; });
  if (moving) return fail_now(gone);
  std::vector<std::shared_ptr<Operation>> announced;
  for (const auto& [id, operation] : operations_) {
    if (operation->server_ == server) announced.push_back(operation);
  }
  for (const auto& operation : announced) {
    finish(*operation, {gone.code(), concat("'", operation->request.name, "' cannot complete: ",
                                            gone.message())});
  }
}

// What was in flight when a rank left may complete without it. Announced operations are failed by
// their owner, which knows; what is pushed without a word is failed here.
void Engine::check_departures(Nanos now) {
  if (left_.empty() || !partials_.empty()) return;
  if (now - std::max(left_since_, links_->answered_at()) <= kLeftGrace) return;
  if (!links_->busy() && !node_stage_->busy()) return;
  fail_now({Code::kPeerLost, concat(departure().message(), " while others still wait for it")});
}

// The deadline dies with its keeper, so who waits keeps it too.
void Engine::check_deadlines(Nanos now) {
  node_stage_->check_deadlines(now, kDeadlineMargin);
  executor_->check_deadlines(now);
  std::string name;
  Nanos waited = 0;
  if (const Transfer* late = links_->overdue(now, kDeadlineMargin)) {
    name = late->open.name;
    waited = now - late->pushed_at;
  }
  for (const auto& [id, operation] : operations_) {
    if (operation->launched_) continue;
    const Nanos age = now - operation->started_;
    if (age <= timeout_ms(operation->request.timeout) * kMillisecond + kDeadlineMargin) continue;
    name = operation->request.name;
    waited = age;
  }
  if (name.empty()) return;
  fail_now({Code::kTimeout, concat("'", name, "' has waited ", to_seconds(waited),
                                   " s, and no server has answered or kept its deadline; look at "
                                   "the output of the other ranks and servers")});
}

void Engine::tick() {
  const Nanos now = loop_->now();
  links_->poll_paths();
  node_stage_->release_regions();
  check_deadlines(now);
  check_departures(now);
  loop_->call_after(kTick, [this] { tick(); });
}

Engine::Counters Engine::counters() {
  std::promise<Counters> answer;
  auto result = answer.get_future();
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return {};
  }
  const bool asked = loop_->post([&] {
    const transport::FlowCounters workers = executor_->counters();
    answer.set_value({links_->counters(),
                      {workers.bytes_sent, workers.bytes_received},
                      links_->credit_bytes(),
                      loop_->wakeups()});
  });
  return asked ? result.get() : Counters{};
}

}  // namespace herring::worker
