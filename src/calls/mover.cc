#include "calls/mover.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "calls/calls.h"
#include "calls/meeting.h"
#include "reduce/reduce.h"

namespace herring::calls {
namespace {

Status no_memory(const std::string& name, size_t bytes) {
  return {Code::kInternal,
          concat("out of memory: the result of '", name, "' needs ", counted(bytes, "byte"))};
}

// Whether the result overwrites the array.
bool is_in_place(const wire::Collective& what) {
  return wire::is<wire::AllReduce>(what) || wire::is<wire::Broadcast>(what) ||
         wire::is<wire::Receive>(what);
}

// Whether an exchange goes through the node stage and then as an all-reduce.
bool goes_through_nodes(const Call& call) {
  const control::Group& members = call.group->members();
  return (wire::is<wire::Broadcast>(call.what) || wire::is<wire::ReduceScatter>(call.what)) &&
         members.nodes() > 1 && members.most_on_a_node() > 1;
}

}  // namespace

// The result of each operation follows from this rank's arrays alone.
void Mover::alone(Underway& operation) {
  const Call& call = operation.call;
  if (wire::is_message(call.what)) {
    return calls_.finish(operation, {Code::kInvalidArgument, "this group has no other member"});
  }
  if (wire::is<wire::Join>(call.what)) operation.handle->counts = {0};
  char* out = nullptr;
  if (!is_in_place(call.what) && !operation.bundles.empty()) {
    const wire::Array& array = operation.bundles.front().array;
    operation.handle->counts = {wire::is<wire::AllGather>(call.what) ? array.rows()
                                                                      : array.elements()};
    out = operation.handle->place_result(operation.handle->bytes());
    if (out == nullptr) {
      return calls_.finish(operation, no_memory(call.name, operation.handle->bytes()));
    }
  }
  for (const Bundle& bundle : operation.bundles) {
    char* const to = out == nullptr ? bundle.receive : out;
    const size_t bytes = bundle.array.bytes();
    if (const Reduction* reduction = wire::reduction_of(call.what)) {
      const reduce::Stage stage = reduce::whole(bundle.array.dtype, *reduction);
      if (Status fits = reduce::check_stage(stage); !fits.ok()) {
        return calls_.finish(operation, fits);
      }
      const void* source = bundle.send;
      if (bytes > 0) reduce::combine(&source, 1, to, bundle.array.elements(), stage);
    } else if (out != nullptr && bytes > 0) {
      std::memcpy(to, bundle.send, bytes);
    }
    if (out != nullptr) out += bytes;
  }
  calls_.finish(operation, {});
}

void Mover::take(Underway& operation, std::string_view result) {
  const Call& call = operation.call;
  if (is_in_place(call.what)) {
    if (result.size() != operation.handle->bytes()) {
      return core_.ending.fail_now(breach("the result of '", call.name, "' has ", result.size(),
                                     " bytes, not ", operation.handle->bytes()));
    }
    for (const Bundle& bundle : operation.bundles) {
      const size_t bytes = bundle.array.bytes();
      if (bytes > 0) std::memcpy(bundle.receive, result.data(), bytes);
      result.remove_prefix(bytes);
    }
  } else if (!operation.bundles.empty() && !wire::is<wire::Send>(call.what)) {
    char* const out = operation.handle->place_result(result.size());
    if (out == nullptr) return core_.ending.fail_now(no_memory(call.name, result.size()));
    if (!result.empty()) std::memcpy(out, result.data(), result.size());
  }
  calls_.finish(operation, {});
}

void Mover::move(Underway& operation, Key key, const std::string& address) {
  const wire::Collective& what = operation.call.what;
  if (wire::is_message(what)) return message(operation, key, address);
  const auto* allreduce = std::get_if<wire::AllReduce>(&what);
  if (allreduce == nullptr) return exchange(operation, key);
  if (allreduce->algorithm == wire::Algorithm::kHerring) return reduce(operation, key);
  const Bundle& bundle = operation.bundles.front();
  const Status possible =
      reduce::check_stage(reduce::whole(bundle.array.dtype, allreduce->reduction));
  if (!possible.ok()) return calls_.finish(operation, possible);
  operation.parts_left = 1;
  meeting_.when_met(operation, key);
}

// parts_left_ counts every part before it is pushed, plus one until all are pushed. So the
// operation cannot end in between.
void Mover::reduce(Underway& operation, Key key) {
  const Group& group = *operation.call.group;
  operation.parts_left = 1;
  for (size_t b = 0; b < operation.bundles.size(); ++b) {
    const Bundle& bundle = operation.bundles[b];
    const size_t bytes = bundle.array.bytes();
    if (bytes == 0) continue;
    if (!group.uses_node_stage()) {
      if (!save(operation, b)) return;
      links::Transfer& transfer = add_transfer(operation, key, b, bytes);
      ++key.buffer;
      transfer.receive = bundle.receive;
      transfer.send = operation.absent() ? nullptr : bundle.receive;
      if (operation.absent()) transfer.open.workers = 0;
      continue;
    }
    char* data = bundle.receive;
    if (group.local_size() > 1 && !core_.heap->locate(data, bytes)) {
      data = stage(operation, bytes);
      if (data == nullptr) return;
      std::memcpy(data, bundle.send, bytes);
      operation.copies.push_back({bundle.receive, data, bytes});
    } else if (!save(operation, b)) {
      return;
    }
    by_node_stage(operation, key, b, data, !operation.absent());
    if (core_.ending.begun()) return;
  }
  if (push(operation)) calls_.part_done(operation);
}

// Adds a transfer that goes directly to the servers and back, without the node stage.
links::Transfer& Mover::add_transfer(Underway& operation, Key key, size_t bundle, size_t bytes) {
  const Call& call = operation.call;
  links::Transfer& transfer = operation.transfers.emplace_back();
  transfer.key = key;
  transfer.open.workers = 1;
  transfer.open.deadline = core_.deadline(call.timeout);
  transfer.open.name = call.name;
  transfer.open.dtype = DType::kUInt8;  // bytes move unchanged unless they are to be summed
  if (const Reduction* reduction = wire::reduction_of(call.what)) {
    transfer.open.dtype = operation.bundles[bundle].array.dtype;
    transfer.open.reduction = *reduction;
  }
  transfer.shards = plan::shard_layout(bytes, call.group->shards().weights);
  transfer.runs = plan::local_slice(transfer.shards, core_.options.links.segment_bytes, 0, 1);
  if (operation.attempt) transfer.attempt = operation.attempt->servers;
  transfer.owner = &operation;
  transfer.mark = operation.part();
  return transfer;
}

bool Mover::push(Underway& operation) {
  operation.parts_left += operation.transfers.size();
  operation.parts.to_push += static_cast<uint32_t>(operation.transfers.size());
  for (links::Transfer& transfer : operation.transfers) {
    const Status pushed = core_.links->push(transfer, operation.shared_from_this());
    if (pushed.ok()) continue;
    core_.ending.fail_now(pushed);
    return false;
  }
  return true;
}

// Keeps the contents of an array that an attempt overwrites.
bool Mover::save(Underway& operation, size_t bundle) {
  if (operation.save(bundle)) return true;
  core_.ending.fail_now(no_memory(operation.call.name, operation.bundles[bundle].array.bytes()));
  return false;
}

// Allocates memory that neighbours can see, for an array that lies outside the shared heap.
char* Mover::stage(Underway& operation, size_t bytes) {
  Status why;
  char* const staged = operation.handle->stage(bytes, why);
  if (!why.ok()) core_.ending.fail_now(why);
  return staged;
}

NodeTask Mover::task_of(Underway& operation, Key key, size_t bundle) {
  const Call& call = operation.call;
  NodeTask task;
  task.group = call.group;
  task.key = key;
  task.name = call.name;
  task.dtype = task.wire = DType::kUInt8;
  if (const Reduction* reduction = wire::reduction_of(call.what)) {
    task.dtype = task.wire = operation.bundles[bundle].array.dtype;
    task.reduction = *reduction;
  }
  task.deadline = core_.deadline(call.timeout);
  if (operation.attempt) task.attempt = operation.attempt->servers;
  task.on_done = [this, &operation](uint32_t workers) {
    if (workers == 0) operation.whole = 0;
    calls_.part_done(operation);
  };
  task.keeps = operation.shared_from_this();
  task.mark = operation.part();
  return task;
}

// Reduces all ranks' `data` in place. `active`: whether this rank adds anything. Advances
// key.buffer.
void Mover::by_node_stage(Underway& operation, Key& key, size_t bundle, char* data, bool active) {
  const Group& group = *operation.call.group;
  const size_t bytes = operation.bundles[bundle].array.bytes();
  // Cuts the array into several buffers, so that one is pushed while the next is reduced in the
  // node.
  const uint32_t nodes = group.members().nodes();
  const auto servers = static_cast<uint32_t>(group.shards().owners.size());
  const size_t buffer_bytes =
      nodes == 1 ? bytes
                 : plan::choose_buffer_bytes(bytes, nodes, servers,
                                             core_.options.links.segment_bytes);
  const size_t parts = (bytes + buffer_bytes - 1) / buffer_bytes;
  operation.parts_left += parts;
  operation.parts.to_reduce += static_cast<uint32_t>(parts);
  if (nodes > 1) operation.parts.to_push += static_cast<uint32_t>(parts);
  for (size_t at = 0; at < bytes; at += buffer_bytes, ++key.buffer) {
    NodeTask task = task_of(operation, key, bundle);
    task.active = active;
    task.data = data + at;
    task.bytes = std::min(buffer_bytes, bytes - at);
    task.shards = nodes == 1 ? std::vector<plan::Shard>{{0, 0, task.bytes}}
                             : plan::shard_layout(task.bytes, group.shards().weights);
    core_.node_stage->post(std::move(task));
    if (core_.ending.begun()) return;
  }
}

bool Mover::can_try_again(const Call& call) const {
  if (!core_.options.failover || call.group->members().nodes() == 1 ||
      wire::is_message(call.what)) {
    return false;
  }
  const auto* allreduce = std::get_if<wire::AllReduce>(&call.what);
  if (allreduce == nullptr && !goes_through_nodes(call)) return true;
  if (allreduce != nullptr && allreduce->algorithm != wire::Algorithm::kHerring) return false;
  return !core_.links->window_settles(call.group->id());
}

// Moves every operation other than an all-reduce.
void Mover::exchange(Underway& operation, Key key) {
  const Call& call = operation.call;
  const control::Group& members = call.group->members();
  const uint32_t index = call.group->index(), size = call.group->size();
  std::vector<wire::Array> arrays;
  for (const Bundle& bundle : operation.bundles) arrays.push_back(bundle.array);
  const std::vector<uint64_t>& counts = operation.handle->counts;
  const Status fits = check_counts(call.name, call.what, arrays, counts, index, size);
  if (!fits.ok()) return core_.ending.fail_now(fits);
  std::vector<Exchange> exchanges;
  size_t result_bytes = 0;
  for (size_t b = 0; b < arrays.size(); ++b) {
    exchanges.push_back(plan_exchange(call.what, arrays[b], b, counts, index, size));
    result_bytes += exchanges.back().result_bytes;
  }
  const bool in_place = wire::is<wire::Broadcast>(call.what);
  char* out = in_place ? operation.bundles.front().receive
                       : operation.handle->place_result(result_bytes);
  if (out == nullptr) return core_.ending.fail_now(no_memory(call.name, result_bytes));
  const bool in_nodes = goes_through_nodes(call);
  // Uses a stream of its own. All-reduces with the same owner go through the node stage first, and
  // the order inside a stream must be the same on every worker.
  if (!in_nodes) key.stream += static_cast<uint32_t>(core_.cluster.servers.size());
  operation.parts_left = 1;  // until everything is pushed
  for (size_t b = 0; b < exchanges.size() && !core_.ending.begun(); ++b) {
    const Exchange& exchange = exchanges[b];
    if (exchange.own) {
      std::memcpy(out + *exchange.own->receive,
                  operation.bundles[b].send + *exchange.own->send, exchange.own->bytes);
    }
    if (in_nodes) {
      through_nodes(operation, key, b, exchange, out);
    } else if (members.nodes() == 1) {
      on_node(operation, key, b, exchange, out);
      ++key.buffer;
    } else {
      by_servers(operation, key, b, exchange, out);
    }
    out += exchange.result_bytes;
  }
  if (!core_.ending.begun() && push(operation)) calls_.part_done(operation);
}

// If nodes have several ranks, moves the data as an all-reduce. Then every byte crosses to a node
// once, not once for each rank there. A broadcast is the sum of one rank's array and nothing else.
void Mover::through_nodes(Underway& operation, Key& key, size_t b, const Exchange& exchange,
                          char* out) {
  const Bundle& bundle = operation.bundles[b];
  const size_t bytes = bundle.array.bytes();
  const auto* broadcast = std::get_if<wire::Broadcast>(&operation.call.what);
  const bool active = wire::gives_data(operation.call.what, operation.call.group->index());
  if (bytes == 0) return;
  // A list already has its own copy, which may be overwritten.
  if (operation.call.list || (broadcast != nullptr && core_.heap->locate(out, bytes))) {
    if (broadcast == nullptr) copy_own(operation, exchange, bundle.receive, out);
    if (!save(operation, b)) return;
    return by_node_stage(operation, key, b, bundle.receive, active);
  }
  char* const data = stage(operation, bytes);
  if (data == nullptr) return;
  if (active) std::memcpy(data, bundle.send, bytes);
  copy_own(operation, exchange, data, out);
  by_node_stage(operation, key, b, data, active);
}

// Notes which part of the reduced `data` is copied to this rank's result when all parts are done.
void Mover::copy_own(Underway& operation, const Exchange& exchange, const char* data, char* out) {
  const bool broadcast = wire::is<wire::Broadcast>(operation.call.what);
  for (const Block& block : exchange.blocks) {
    if (!block.receive) continue;
    operation.copies.push_back(
        {out + *block.receive, data + (broadcast ? 0 : *block.send), block.bytes});
  }
}

// In a group on one node, every rank copies its result from its neighbours' memory.
void Mover::on_node(Underway& operation, Key key, size_t b, const Exchange& exchange, char* out) {
  const Group& group = *operation.call.group;
  const Bundle& bundle = operation.bundles[b];
  NodeExchange node = plan_node_exchange(operation.call.what, bundle.array, exchange,
                                         group.index(), group.size());
  NodeTask task = task_of(operation, key, b);
  task.exchanges = true;
  task.pieces = std::move(node.pieces);
  task.out = out;
  const size_t table = node.table.size() * sizeof(uint64_t);
  const size_t bytes = node.posts ? bundle.array.bytes() : 0;
  if (bytes > 0) {
    task.bytes = table + bytes;
    task.data = const_cast<char*>(bundle.send);
    const bool seen = table == 0 && core_.heap->locate(bundle.send, bytes);
    if (group.size() > 1 && !seen) {
      task.data = stage(operation, task.bytes);
      if (task.data == nullptr) return;
      if (table > 0) std::memcpy(task.data, node.table.data(), table);
      std::memcpy(task.data + table, bundle.send, bytes);
    }
  }
  ++operation.parts_left;
  ++operation.parts.to_reduce;
  core_.node_stage->post(std::move(task));
}

void Mover::by_servers(Underway& operation, Key key, size_t b, const Exchange& exchange,
                       char* out) {
  for (const Block& block : exchange.blocks) {
    key.buffer = block.buffer;
    links::Transfer& transfer = add_transfer(operation, key, b, block.bytes);
    transfer.open.participants = wire::Participants::kRanks;
    if (block.pair) {
      transfer.open.participants = wire::Participants::kPair;
      std::tie(transfer.open.pair_a, transfer.open.pair_b) = *block.pair;
    }
    if (block.send) transfer.send = operation.bundles[b].send + *block.send;
    if (block.receive) transfer.receive = out + *block.receive;
  }
}

void Mover::start_schedule(Underway& operation, Key key) {
  const auto& what = std::get<wire::AllReduce>(operation.call.what);
  collective::Task task;
  task.group = key.group;
  task.stream = key.stream;
  task.ticket = key.round;
  task.ranks = operation.call.group->members().ranks();
  task.algorithm = what.algorithm;
  task.data = operation.bundles.front().receive;
  task.reduction = what.reduction;
  task.elsewhere = operation.handle->sums();
  task.near = calls_.near_members(operation.call).indices;
  start(operation, std::move(task));
}

void Mover::start(Underway& operation, collective::Task task) {
  const wire::Array& array = operation.bundles.front().array;
  task.name = operation.call.name;
  task.count = array.elements();
  task.dtype = array.dtype;
  core_.executor->start(std::move(task), core_.deadline(operation.call.timeout),
                           [this, &operation](const Status& why) {
                             why.ok() ? calls_.part_done(operation)
                                      : calls_.finish(operation, why);
                           });
}

// Sends or receives a message directly between two workers, as a schedule of one operation.
void Mover::message(Underway& operation, Key key, const std::string& address) {
  const Group& group = *operation.call.group;
  const auto nonsense = [&](const std::string& what) {
    core_.ending.fail_now(breach("a server answered '", operation.call.name, "'",
                            group.members().suffix(), " with ", what));
  };
  const std::vector<uint64_t>& counts = operation.handle->counts;
  if (counts.size() != 2 || counts[0] >= group.size() || counts[0] == group.index()) {
    return nonsense("a rank that does not exist");
  }
  const uint32_t peer = group.rank(static_cast<uint32_t>(counts[0]));
  if (Status met = core_.executor->meet({peer}, {address}); !met.ok()) {
    return nonsense(met.message());
  }
  const bool sends = wire::is<wire::Send>(operation.call.what);
  const uint32_t own = group.rank(group.index());
  const Bundle& bundle = operation.bundles.front();
  collective::Task task;
  task.group = key.group;
  task.stream = key.stream;
  task.ticket = key.round;
  task.ranks = sends ? std::vector<uint32_t>{own, peer} : std::vector<uint32_t>{peer, own};
  task.data = sends ? const_cast<char*>(bundle.send) : bundle.receive;
  using collective::Operation;
  collective::Range range{0, bundle.array.bytes()};
  if (range.bytes == 0) {
    // A byte moves, so that neither rank is done before the other has heard of it.
    task.data = reinterpret_cast<char*>(&operation.whole);
    range.bytes = 1;
  }
  task.schedule.add({.kind = sends ? Operation::Kind::kSend : Operation::Kind::kReceive,
                     .peer = sends ? 1u : 0u,
                     .range = range});
  operation.parts_left = 1;
  start(operation, std::move(task));
}

}  // namespace herring::calls
