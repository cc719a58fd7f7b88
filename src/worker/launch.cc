// How a named operation moves its bytes once all ranks have announced it.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "base/log.h"
#include "reduce/reduce.h"
#include "worker/engine.h"
#include "worker/exchange.h"
#include "worker/named.h"

namespace herring::worker {
namespace {

using wire::kMaxAddress;

}  // namespace

void NamedOperations::launch(Operation& operation, const wire::FrameHeader& header, wire::Go go,
                             std::string_view rest) {
  operation.launched_ = true;
  operation.counts = std::move(go.counts);
  const Group& group = *operation.request.group;
  if (Status why = engine_.called_off(group); !why.ok()) return finish(operation, why);
  const Key key{header.stream, header.round, 0, group.id()};
  if (header.group != group.id()) {
    return engine_.fail_now(breach("'", operation.request.name, "'", group.members().suffix(),
                                   " was answered for group ", header.group));
  }
  const wire::Collective kind = operation.request.kind;
  if (kind == wire::Collective::kSend || kind == wire::Collective::kReceive) {
    launch_message(operation, key, std::string(rest));
  } else if (operation.request.algorithm != wire::Algorithm::kHerring) {
    launch_schedule(operation, key);
  } else if (kind == wire::Collective::kAllreduce) {
    launch_allreduce(operation, key);
  } else {
    launch_exchange(operation, key);
  }
}

// Straight to the servers and back, without the node stage.
Transfer& NamedOperations::add_transfer(Operation& operation, Key key, size_t bytes) {
  const Request& request = operation.request;
  Transfer& transfer = operation.transfers_.emplace_back();
  transfer.key = key;
  transfer.open.workers = 1;
  transfer.open.deadline = engine_.deadline(request.timeout);
  transfer.open.name = request.name;
  transfer.open.dtype = DType::kUInt8;  // unless it is to be summed, bytes move unchanged
  if (request.kind == wire::Collective::kAllreduce ||
      request.kind == wire::Collective::kReduceScatter) {
    transfer.open.dtype = request.dtype;
    transfer.open.op = request.op;
    transfer.open.prescale = request.prescale;
    transfer.open.postscale = request.postscale;
  }
  transfer.shards = plan::shard_layout(bytes, request.group->shards().weights);
  transfer.runs =
      plan::local_slice(transfer.shards, engine_.options().links.segment_bytes, 0, 1);
  transfer.owner = &operation;
  return transfer;
}

bool NamedOperations::push(Operation& operation, Transfer& transfer) {
  const Status pushed = engine_.links().push(transfer, operation.shared_from_this());
  if (!pushed.ok()) engine_.fail_now(pushed);
  return pushed.ok();
}

void NamedOperations::launch_allreduce(Operation& operation, Key key) {
  const Request& request = operation.request;
  const Group& group = *request.group;
  const size_t bytes = request.bytes();
  if (!group.uses_node_stage()) {
    operation.parts_left_ = 1;
    Transfer& transfer = add_transfer(operation, key, bytes);
    transfer.send = transfer.receive = request.receive;
    if (operation.absent_) {
      transfer.send = nullptr;
      transfer.open.workers = 0;
    }
    push(operation, transfer);
    return;
  }
  const bool apart = group.local_size() > 1 && !engine_.heap().locate(request.receive, bytes);
  if (apart && !stage(operation, true)) return;
  if (apart) operation.copy_ = {request.receive, operation.staging_, bytes};
  post_buffers(operation, key, apart ? operation.staging_ : request.receive, !operation.absent_);
}

// Has the array copied to memory that neighbours see, or (`filled` false) only room for it.
bool NamedOperations::stage(Operation& operation, bool filled) {
  const size_t bytes = operation.request.bytes();
  auto staging = engine_.heap().allocate(bytes);
  if (!staging.ok()) engine_.fail_now(staging.status());
  if (!staging.ok()) return false;
  operation.staging_ = static_cast<char*>(*staging);
  if (filled) std::memcpy(operation.staging_, operation.request.send, bytes);
  return true;
}

// Over all ranks' `data` by the node stage, in place; `active`: this rank has something to add.
void NamedOperations::post_buffers(Operation& operation, Key key, char* data, bool active) {
  const Request& request = operation.request;
  const Group& group = *request.group;
  const size_t bytes = request.bytes();
  const bool copies = request.kind == wire::Collective::kBroadcast;  // one rank has all there is
  // Several buffers, so that one is pushed while the next is still being reduced in the node.
  const uint32_t nodes = group.members().nodes();
  const auto servers = static_cast<uint32_t>(group.shards().owners.size());
  const size_t buffer_bytes =
      nodes == 1 ? bytes
                 : plan::choose_buffer_bytes(bytes, nodes, servers,
                                             engine_.options().links.segment_bytes);
  operation.parts_left_ = (bytes + buffer_bytes - 1) / buffer_bytes;
  const size_t parts = operation.parts_left_;
  const std::shared_ptr<Operation> keeps = operation.shared_from_this();
  for (size_t i = 0; i < parts; ++i) {
    NodeTask task;
    task.group = request.group;
    task.active = active;
    task.key = {key.stream, key.round, static_cast<uint32_t>(i), key.group};
    task.name = request.name;
    task.data = data + i * buffer_bytes;
    task.bytes = std::min(buffer_bytes, bytes - i * buffer_bytes);
    task.dtype = task.wire = copies ? DType::kUInt8 : request.dtype;
    task.op = copies ? ReduceOp::kSum : request.op;
    task.prescale = request.prescale;
    task.postscale = request.postscale;
    task.deadline = engine_.deadline(request.timeout);
    task.shards = nodes == 1 ? std::vector<plan::Shard>{{0, 0, task.bytes}}
                             : plan::shard_layout(task.bytes, group.shards().weights);
    task.on_done = [this, &operation](uint32_t) { part_done(operation); };
    task.keeps = keeps;
    engine_.node_stage().post(std::move(task));
    if (!engine_.failure().ok()) return;
  }
}

// Everything but all-reduce.
void NamedOperations::launch_exchange(Operation& operation, Key key) {
  const Request& request = operation.request;
  const control::Group& members = request.group->members();
  const uint32_t index = request.group->index(), size = request.group->size();
  const Status fits = check_counts(request, operation.counts, index, size);
  if (!fits.ok()) return engine_.fail_now(fits);
  const Exchange exchange = plan_exchange(request, operation.counts, index, size);
  char* out = request.kind == wire::Collective::kBroadcast
                  ? request.receive
                  : operation.place_result(exchange.result_bytes);
  if (out == nullptr) {
    return engine_.fail_now({Code::kInternal,
                             concat("no memory for the result of '", request.name,
                                    "', which has ", exchange.result_bytes, " bytes")});
  }
  const bool in_nodes = request.kind == wire::Collective::kBroadcast ||
                        request.kind == wire::Collective::kReduceScatter;
  if (in_nodes && members.nodes() > 1 && members.most_on_a_node() > 1) {
    return exchange_by_node_stage(operation, key, exchange, out);
  }
  // In a stream of its own: all-reduces of the same owner go through the node stage first, and the
  // order of a stream must be the same on every worker.
  key.stream += static_cast<uint32_t>(engine_.cluster().servers.size());
  if (exchange.own) {
    std::memcpy(out + *exchange.own->receive, request.send + *exchange.own->send,
                exchange.own->bytes);
  }
  request.group->members().nodes() == 1 ? exchange_on_node(operation, key, exchange, out)
                                        : exchange_by_servers(operation, key, exchange, out);
}

// Where nodes have several ranks: as an all-reduce, so that every byte crosses to a node once and
// not once for each of its ranks. A broadcast is the sum of what one rank has.
void NamedOperations::exchange_by_node_stage(Operation& operation, Key key,
                                             const Exchange& exchange, char* out) {
  const Request& request = operation.request;
  const bool broadcast = request.kind == wire::Collective::kBroadcast;
  const bool active = !broadcast || request.group->index() == request.root;
  if (broadcast && engine_.heap().locate(out, request.bytes())) {
    return post_buffers(operation, key, out, active);
  }
  if (!stage(operation, active)) return;
  for (const Block& block : exchange.blocks) {
    if (!block.receive) continue;
    const size_t first = broadcast ? 0 : *block.send;
    operation.copy_ = {out + *block.receive, operation.staging_ + first, block.bytes};
  }
  post_buffers(operation, key, operation.staging_, active);
}

// On one node every rank takes from its neighbours' memory what it gets.
void NamedOperations::exchange_on_node(Operation& operation, Key key, const Exchange& exchange,
                                       char* out) {
  const Request& request = operation.request;
  NodeExchange node = plan_node_exchange(request, exchange, request.group->index(),
                                         request.group->size());
  NodeTask task;
  const size_t table = node.table.size() * sizeof(uint64_t);
  const size_t bytes = node.posts ? request.bytes() : 0;
  if (bytes > 0) {
    task.bytes = table + bytes;
    task.data = const_cast<char*>(request.send);
  }
  const bool alone = request.group->size() == 1;
  if (bytes > 0 && !alone && (table > 0 || !engine_.heap().locate(request.send, bytes))) {
    auto staging = engine_.heap().allocate(task.bytes);
    if (!staging.ok()) return engine_.fail_now(staging.status());
    task.data = operation.staging_ = static_cast<char*>(*staging);
    if (table > 0) std::memcpy(task.data, node.table.data(), table);
    std::memcpy(task.data + table, request.send, bytes);
  }
  task.group = request.group;
  task.key = key;
  task.name = request.name;
  task.dtype = task.wire = request.dtype;
  task.op = request.op;
  task.prescale = request.prescale;
  task.postscale = request.postscale;
  task.deadline = engine_.deadline(request.timeout);
  task.exchanges = true;
  task.pieces = std::move(node.pieces);
  task.out = out;
  task.on_done = [this, &operation](uint32_t) { part_done(operation); };
  task.keeps = operation.shared_from_this();
  operation.parts_left_ = 1;
  engine_.node_stage().post(std::move(task));
}

void NamedOperations::exchange_by_servers(Operation& operation, Key key, const Exchange& exchange,
                                          char* out) {
  const Request& request = operation.request;
  for (const Block& block : exchange.blocks) {
    Transfer& transfer =
        add_transfer(operation, {key.stream, key.round, block.buffer, key.group}, block.bytes);
    transfer.open.participants = wire::Participants::kRanks;
    if (block.pair) {
      transfer.open.participants = wire::Participants::kPair;
      std::tie(transfer.open.pair_a, transfer.open.pair_b) = *block.pair;
    }
    if (block.send) transfer.send = request.send + *block.send;
    if (block.receive) transfer.receive = out + *block.receive;
  }
  operation.parts_left_ = operation.transfers_.size() + 1;
  for (Transfer& transfer : operation.transfers_) {
    if (!push(operation, transfer)) return;
  }
  part_done(operation);
}

// All ranks have agreed to do this without the servers.
void NamedOperations::launch_schedule(Operation& operation, Key key) {
  const Request& request = operation.request;
  const Status possible = reduce::check_stage({request.dtype, request.dtype, request.op,
                                               request.prescale, 1.0, request.postscale});
  if (!possible.ok()) return finish(operation, possible);
  if (!std::exchange(request.group->meets, true)) meet_workers(request.group);
  operation.parts_left_ = 1;
  if (request.group->met) return start_schedule(operation, key);
  unmet_.emplace(request.group->id(), std::pair(operation.id_, key));
}

// Schedules wait for their group to meet, also where others have told the addresses: no call of
// the group's own is in flight when what needed it is over.
void NamedOperations::met(const std::shared_ptr<Group>& group) {
  group->met = true;
  std::vector<std::pair<uint64_t, Key>> waiting;
  const auto [from, to] = unmet_.equal_range(group->id());
  for (auto one = from; one != to; ++one) waiting.push_back(one->second);
  unmet_.erase(from, to);
  for (const auto& [id, key] : waiting) {
    if (const auto operation = find(id)) start_schedule(*operation, key);
  }
}

void NamedOperations::start_schedule(Operation& operation, Key key) {
  const Request& request = operation.request;
  collective::Task task;
  task.group = key.group;
  task.stream = key.stream;
  task.ticket = key.round;
  task.ranks = request.group->members().ranks();
  task.name = request.name;
  task.algorithm = request.algorithm;
  task.data = request.receive;
  task.count = request.bytes() / size_of(request.dtype);
  task.dtype = request.dtype;
  task.op = request.op;
  task.prescale = request.prescale;
  task.postscale = request.postscale;
  engine_.executor().start(std::move(task), engine_.deadline(request.timeout),
                           [this, &operation](const Status& why) {
                             schedule_done(operation, why);
                           });
}

void NamedOperations::schedule_done(Operation& operation, const Status& why) {
  why.ok() ? part_done(operation) : finish(operation, why);
}

// From worker to worker, as a schedule of one step.
void NamedOperations::launch_message(Operation& operation, Key key, const std::string& address) {
  const Request& request = operation.request;
  const Group& group = *request.group;
  const auto nonsense = [&](const std::string& what) {
    engine_.fail_now(breach("a server answered '", request.name, "'", group.members().suffix(),
                            " with ", what));
  };
  if (operation.counts.size() != 2 || operation.counts[0] >= group.size() ||
      operation.counts[0] == group.index()) {
    return nonsense("a rank that does not exist");
  }
  const uint32_t peer = group.rank(static_cast<uint32_t>(operation.counts[0]));
  const bool sends = request.kind == wire::Collective::kSend;
  if (Status met = engine_.executor().meet({peer}, {address}); !met.ok()) {
    return nonsense(met.message());
  }
  operation.parts_left_ = 1;
  collective::Task task;
  task.group = key.group;
  task.stream = key.stream;
  task.ticket = key.round;
  const uint32_t own = group.rank(group.index());
  task.ranks = sends ? std::vector<uint32_t>{own, peer} : std::vector<uint32_t>{peer, own};
  task.name = request.name;
  task.data = sends ? const_cast<char*>(request.send) : request.receive;
  task.count = request.bytes() / size_of(request.dtype);
  task.dtype = request.dtype;
  collective::Step step;
  (sends ? step.to : step.from) = sends ? 1 : 0;
  (sends ? step.send : step.receive) = {0, request.bytes()};
  task.steps = {step};
  engine_.executor().start(std::move(task), engine_.deadline(request.timeout),
                           [this, &operation](const Status& why) {
                             schedule_done(operation, why);
                           });
}

Result<std::string> NamedOperations::own_address() {
  if (own_address_.empty()) {
    auto own = engine_.executor().listen();
    if (!own.ok()) return own.status();
    if (own->size() > kMaxAddress) {
      return defect("the address '", *own, "' is too long");
    }
    own_address_ = *own;
  }
  return own_address_;
}

// Every rank of the group tells every other where it listens, once. A rank that cannot listen says
// nothing.
void NamedOperations::meet_workers(const std::shared_ptr<Group>& group) {
  if (auto own = own_address(); !own.ok()) {
    log(LogLevel::kError, "cannot listen for other workers: ", own.status().message());
  }
  auto place = std::make_shared<std::array<char, kMaxAddress>>();
  std::copy(own_address_.begin(), own_address_.end(), place->begin());
  auto operation = std::make_shared<Operation>(engine_.loop());
  operation->owner_ = this;
  operation->request.group = group;
  operation->request.kind = wire::Collective::kAllgather;
  operation->request.name = wire::kMeetingName;
  operation->request.shape = {kMaxAddress};
  operation->request.send = place->data();
  operation->then_ = [this, place, group, gathered = operation.get()](const Status& status) {
    // A group that is called off fails its own operations.
    if (!status.ok()) {
      if (!engine_.failure().ok()) return;
      if (engine_.called_off(*group).ok()) engine_.membership().call_off(group, status);
      return met(group);
    }
    if (gathered->result_bytes != group->size() * kMaxAddress) {
      return engine_.fail_now(breach("the workers' addresses have ", gathered->result_bytes,
                                     " bytes"));
    }
    std::vector<std::string> addresses;
    for (uint32_t index = 0; index < group->size(); ++index) {
      const char* text = gathered->result.get() + index * kMaxAddress;
      addresses.emplace_back(text, strnlen(text, kMaxAddress));
      if (addresses.back().empty()) {
        return engine_.fail_now({Code::kConfiguration,
                                 concat(engine_.cluster().describe_rank(group->rank(index)),
                                        " cannot listen for other workers; its log says why")});
      }
    }
    const Status could = engine_.executor().meet(group->members().ranks(), addresses);
    if (!could.ok()) return engine_.fail_now(could);
    met(group);
  };
  start(operation);
}

}  // namespace herring::worker
