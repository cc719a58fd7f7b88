// How a named operation moves its bytes once all ranks have announced it.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "base/log.h"
#include "reduce/reduce.h"
#include "worker/engine.h"
#include "worker/exchange.h"

namespace herring::worker {
namespace {

// "[an IPv6 address]:port" has less.
constexpr size_t kMaxAddress = 64;

}  // namespace

void Engine::launch(Operation& operation, const wire::FrameHeader& header, wire::Go go) {
  operation.launched_ = true;
  operation.counts = std::move(go.counts);
  operation.dims = std::move(go.dims);
  const Key key{header.stream, header.round, 0};
  if (operation.request.algorithm != wire::Algorithm::kHerring) {
    launch_schedule(operation, key);
  } else if (operation.request.kind == wire::Collective::kAllreduce) {
    launch_allreduce(operation, key);
  } else {
    launch_exchange(operation, key);
  }
}

// Straight to the servers and back, without the node stage.
Transfer& Engine::add_transfer(Operation& operation, Key key, size_t bytes) {
  const Request& request = operation.request;
  Transfer& transfer = operation.transfers_.emplace_back();
  transfer.key = key;
  transfer.open.workers = 1;
  transfer.open.deadline = deadline(request.timeout);
  transfer.open.name = request.name;
  transfer.open.dtype = DType::kUInt8;  // unless it is to be summed, bytes move unchanged
  if (request.kind == wire::Collective::kAllreduce ||
      request.kind == wire::Collective::kReduceScatter) {
    transfer.open.dtype = request.dtype;
    transfer.open.op = request.op;
    transfer.open.prescale = request.prescale;
    transfer.open.postscale = request.postscale;
  }
  transfer.shards = plan::shard_layout(bytes, weights());
  transfer.runs = plan::local_slice(transfer.shards, options_.links.segment_bytes, 0, 1);
  transfer.owner = &operation;
  return transfer;
}

bool Engine::push(Operation& operation, Transfer& transfer) {
  const Status pushed = links_->push(transfer, operation.shared_from_this());
  if (!pushed.ok()) fail_now(pushed);
  return pushed.ok();
}

void Engine::launch_allreduce(Operation& operation, Key key) {
  const Request& request = operation.request;
  const size_t bytes = request.bytes();
  if (!uses_node_stage_) {
    operation.parts_left_ = 1;
    Transfer& transfer = add_transfer(operation, key, bytes);
    transfer.send = transfer.receive = request.receive;
    push(operation, transfer);
    return;
  }
  char* data = request.receive;
  if (bus_->local_size() > 1 && !heap_.locate(data, bytes)) {
    auto staging = heap_.allocate(bytes);
    if (!staging.ok()) return fail_now(staging.status());
    operation.staging_ = static_cast<char*>(*staging);
    std::memcpy(operation.staging_, data, bytes);
    data = operation.staging_;
  }
  // Several buffers, so that one is pushed while the next is still being reduced in the node.
  const auto servers = static_cast<uint32_t>(cluster_.servers.size());
  const size_t buffer_bytes =
      cluster_.nodes == 1 ? bytes
                          : plan::choose_buffer_bytes(bytes, cluster_.nodes, servers,
                                                      options_.links.segment_bytes);
  operation.parts_left_ = (bytes + buffer_bytes - 1) / buffer_bytes;
  const size_t parts = operation.parts_left_;
  for (size_t i = 0; i < parts; ++i) {
    NodeTask task;
    task.key = {key.stream, key.round, static_cast<uint32_t>(i)};
    task.name = request.name;
    task.data = data + i * buffer_bytes;
    task.bytes = std::min(buffer_bytes, bytes - i * buffer_bytes);
    task.dtype = task.wire = request.dtype;
    task.op = request.op;
    task.prescale = request.prescale;
    task.postscale = request.postscale;
    task.deadline = deadline(request.timeout);
    task.shards = cluster_.nodes == 1 ? std::vector<plan::Shard>{{0, 0, task.bytes}}
                                      : plan::shard_layout(task.bytes, weights());
    task.on_done = [this, &operation](uint32_t) { part_done(operation); };
    task.keeps = operation.shared_from_this();
    node_stage_->post(std::move(task));
    if (!failure().ok()) return;
  }
}

// Everything but all-reduce. In a stream of its own: all-reduces of the same owner go through the
// node stage first, and the order of a stream must be the same on every worker.
void Engine::launch_exchange(Operation& operation, Key key) {
  key.stream += static_cast<uint32_t>(cluster_.servers.size());
  const Request& request = operation.request;
  const Status fits = check_counts(request, operation.counts, options_.rank, cluster_.size);
  if (!fits.ok()) return fail_now(fits);
  const Exchange exchange =
      plan_exchange(request, operation.counts, options_.rank, cluster_.size);
  char* out = request.kind == wire::Collective::kBroadcast
                  ? request.receive
                  : operation.make_result(exchange.result_bytes);
  if (out == nullptr) {
    return fail_now({Code::kInternal, concat("no memory for the result of '", request.name,
                                             "', which has ", exchange.result_bytes, " bytes")});
  }
  if (exchange.own) {
    std::memcpy(out + *exchange.own->receive, request.send + *exchange.own->send,
                exchange.own->bytes);
  }
  for (const Block& block : exchange.blocks) {
    Transfer& transfer =
        add_transfer(operation, {key.stream, key.round, block.buffer}, block.bytes);
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
void Engine::launch_schedule(Operation& operation, Key key) {
  const Request& request = operation.request;
  const Status possible = reduce::check_stage({request.dtype, request.dtype, request.op,
                                               request.prescale, 1.0, request.postscale});
  if (!possible.ok()) return finish(operation, possible);
  if (!std::exchange(meeting_, true)) meet_workers();
  collective::Task task;
  task.stream = key.stream;
  task.ticket = key.round;
  task.name = request.name;
  task.algorithm = request.algorithm;
  task.data = request.receive;
  task.count = request.bytes() / size_of(request.dtype);
  task.dtype = request.dtype;
  task.op = request.op;
  task.prescale = request.prescale;
  task.postscale = request.postscale;
  executor_->start(std::move(task), deadline(request.timeout),
                   [this, &operation] { finish(operation, {}); });
}

// Every rank tells every other where it listens, once. A rank that cannot listen says nothing.
void Engine::meet_workers() {
  auto place = std::make_shared<std::array<char, kMaxAddress>>();
  auto own = executor_->listen();
  if (!own.ok() || own->size() > kMaxAddress) {
    log(LogLevel::kError, "cannot listen for other workers: ", own.status().message());
  } else {
    std::copy(own->begin(), own->end(), place->begin());
  }
  auto operation = std::make_shared<Operation>(loop_);
  operation->engine_ = this;
  operation->request.kind = wire::Collective::kAllgather;
  operation->request.name = "herring.workers' addresses";
  operation->request.shape = {kMaxAddress};
  operation->request.send = place->data();
  operation->then_ = [this, place, gathered = operation.get()](const Status& status) {
    if (!status.ok()) return fail_now(status);
    if (gathered->result_bytes != cluster_.size * kMaxAddress) {
      return fail_now({Code::kInternal, concat("the workers' addresses have ",
                                               gathered->result_bytes, " bytes")});
    }
    std::vector<std::string> addresses;
    for (uint32_t rank = 0; rank < cluster_.size; ++rank) {
      const char* text = gathered->result.get() + rank * kMaxAddress;
      addresses.emplace_back(text, strnlen(text, kMaxAddress));
      if (addresses.back().empty()) {
        return fail_now({Code::kConfiguration,
                         concat(cluster_.describe_rank(rank),
                                " cannot listen for other workers; its log says why")});
      }
    }
    if (Status met = executor_->meet(addresses); !met.ok()) fail_now(met);
  };
  start(operation);
}

}  // namespace herring::worker
