#include "worker/exchange.h"

#include <algorithm>
#include <numeric>

#include "plan/split.h"

namespace herring::worker {
namespace {

Exchange broadcast(const Request& request, uint32_t rank) {
  Exchange exchange;
  Block& block = exchange.blocks.emplace_back();
  block.bytes = request.bytes();
  (rank == request.root ? block.send : block.receive) = 0;
  return exchange;
}

// Items of a row of the array.
uint64_t row_items(const Request& request) {
  uint64_t items = 1;
  for (size_t i = 1; i < request.shape.size(); ++i) items *= request.shape[i];
  return items;
}

// counts: rows of each rank.
Exchange allgather(const Request& request, const std::vector<uint64_t>& counts, uint32_t rank) {
  Exchange exchange;
  const size_t row = row_items(request) * size_of(request.dtype);
  for (uint32_t r = 0; r < counts.size(); ++r) {
    Block block;
    block.buffer = r;
    block.bytes = counts[r] * row;
    const size_t place = exchange.result_bytes;
    exchange.result_bytes += block.bytes;
    if (r == rank) {
      block.send = 0;
      exchange.own = block;
      exchange.own->receive = place;
    } else {
      block.receive = place;
    }
    exchange.blocks.push_back(block);
  }
  return exchange;
}

Exchange reduce_scatter(const Request& request, uint32_t rank, uint32_t size) {
  const uint64_t rows = request.shape.empty() ? 1 : request.shape[0];
  const size_t row = request.bytes() / std::max<size_t>(rows, 1);
  Exchange exchange;
  const std::vector<plan::Part> parts = plan::split(rows, size, request.splits);
  for (uint32_t r = 0; r < size; ++r) {
    const plan::Part part = parts[r];
    Block block;
    block.buffer = r;
    block.bytes = part.count * row;
    block.send = part.first * row;
    if (r == rank) {
      block.receive = 0;
      exchange.result_bytes = block.bytes;
    }
    exchange.blocks.push_back(block);
  }
  return exchange;
}

// counts: items that each rank has for this one.
Exchange alltoall(const Request& request, const std::vector<uint64_t>& counts, uint32_t rank,
                  uint32_t size) {
  const size_t item = size_of(request.dtype), row = row_items(request) * item;
  Exchange exchange;
  size_t in = 0;
  for (uint32_t r = 0; r < size; ++r) {
    Block outgoing, incoming;
    outgoing.buffer = rank * size + r;
    outgoing.bytes = request.splits[r] * row;
    outgoing.send = in;
    incoming.buffer = r * size + rank;
    incoming.bytes = counts[r] * item;
    incoming.receive = exchange.result_bytes;
    in += outgoing.bytes;
    exchange.result_bytes += incoming.bytes;
    if (r == rank) {
      exchange.own = outgoing;
      exchange.own->receive = incoming.receive;
    } else {
      outgoing.pair = incoming.pair = std::minmax(rank, r);
      exchange.blocks.push_back(outgoing);
      exchange.blocks.push_back(incoming);
    }
  }
  std::sort(exchange.blocks.begin(), exchange.blocks.end(),
            [](const Block& a, const Block& b) { return a.buffer < b.buffer; });
  return exchange;
}

Exchange all_blocks(const Request& request, const std::vector<uint64_t>& counts, uint32_t rank,
                    uint32_t size) {
  switch (request.kind) {
    case wire::Collective::kBroadcast: return broadcast(request, rank);
    case wire::Collective::kAllgather: return allgather(request, counts, rank);
    case wire::Collective::kReduceScatter: return reduce_scatter(request, rank, size);
    case wire::Collective::kAlltoall: return alltoall(request, counts, rank, size);
    default: return {};
  }
}

Status check_splits(const Request& request, uint32_t size) {
  uint64_t sum = 0;
  bool overflow = request.splits.size() != size;
  for (const uint64_t split : request.splits) overflow |= __builtin_add_overflow(sum, split, &sum);
  if (!overflow && sum == (request.shape.empty() ? 1 : request.shape[0])) return {};
  return breach("a server let '", request.name, "' pass; its splits are not ", size,
                " counts that sum up to its rows");
}

}  // namespace

Status check_counts(const Request& request, const std::vector<uint64_t>& counts, uint32_t rank,
                    uint32_t size) {
  const bool gathers = request.kind == wire::Collective::kAllgather;
  const bool scatters = request.kind == wire::Collective::kAlltoall;
  // A server that says go has checked the splits of all ranks: here nothing depends on it.
  if (scatters || !request.splits.empty()) HERRING_RETURN_IF_ERROR(check_splits(request, size));
  if (!gathers && !scatters) return {};
  const auto wrong = [&](const std::string& what) {
    return breach("the counts that a server sent for '", request.name, "' ", what);
  };
  if (counts.size() != size) return wrong(concat("are ", counts.size(), ", not ", size));
  constexpr uint64_t kMost = uint64_t{1} << 48;  // as for an announcement
  const uint64_t each = gathers ? row_items(request) : 1;
  uint64_t received = 0;
  for (const uint64_t count : counts) {
    uint64_t items = 0;
    if (__builtin_mul_overflow(count, each, &items) || items > kMost || count > kMost) {
      return wrong("are beyond all reason");
    }
    received += items;
  }
  if (received > kMost) return wrong("are beyond all reason");
  // To itself a rank sends what it receives from there.
  const uint64_t own = gathers ? (request.shape.empty() ? 1 : request.shape[0])
                               : request.splits[rank] * row_items(request);
  if (counts[rank] != own) {
    return wrong(concat("say that this rank has ", counts[rank], gathers ? " rows" : " elements",
                        " for itself; it has ", own));
  }
  return {};
}

Exchange plan_exchange(const Request& request, const std::vector<uint64_t>& counts, uint32_t rank,
                       uint32_t size) {
  Exchange exchange = all_blocks(request, counts, rank, size);
  if (exchange.own && exchange.own->bytes == 0) exchange.own.reset();
  std::erase_if(exchange.blocks, [](const Block& block) { return block.bytes == 0; });
  return exchange;
}

NodeExchange plan_node_exchange(const Request& request, const Exchange& exchange, uint32_t rank,
                                uint32_t size) {
  NodeExchange node;
  node.posts = request.kind != wire::Collective::kBroadcast || rank == request.root;
  if (request.kind == wire::Collective::kAlltoall) {
    size_t first = size * sizeof(uint64_t);
    const size_t row = row_items(request) * size_of(request.dtype);
    for (const uint64_t split : request.splits) {
      node.table.push_back(first);
      first += split * row;
    }
  }
  for (const Block& block : exchange.blocks) {
    if (!block.receive) continue;
    NodePiece& piece = node.pieces.emplace_back();
    piece.receive = *block.receive;
    piece.bytes = block.bytes;
    switch (request.kind) {
      case wire::Collective::kBroadcast: piece.from = request.root; break;
      case wire::Collective::kAllgather: piece.from = block.buffer; break;
      case wire::Collective::kReduceScatter: piece.offset = *block.send; break;
      default:
        piece.from = block.buffer / size;
        piece.offset = rank * sizeof(uint64_t);
        piece.told = true;
    }
  }
  return node;
}

}  // namespace herring::worker
