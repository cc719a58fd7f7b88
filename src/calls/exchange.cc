#include "calls/exchange.h"

#include <algorithm>
#include <variant>

#include "plan/split.h"

namespace herring::calls {
namespace {

using wire::Array;

Exchange broadcast(const wire::Broadcast& what, const Array& array, uint32_t rank) {
  Exchange exchange;
  Block& block = exchange.blocks.emplace_back();
  block.bytes = array.bytes();
  (rank == what.root ? block.send : block.receive) = 0;
  return exchange;
}

// `counts`: the number of rows of each rank.
Exchange allgather(const Array& array, const std::vector<uint64_t>& counts, uint32_t rank) {
  Exchange exchange;
  for (uint32_t r = 0; r < counts.size(); ++r) {
    Block block;
    block.buffer = r;
    block.bytes = counts[r] * array.row_bytes();
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

Exchange reduce_scatter(const wire::ReduceScatter& what, const Array& array, size_t bundle,
                        uint32_t rank, uint32_t size) {
  Exchange exchange;
  const auto parts = plan::split(array.rows(), size, what.rows, bundle);
  for (uint32_t r = 0; r < size; ++r) {
    Block block;
    block.buffer = static_cast<uint32_t>(bundle) * size + r;
    block.bytes = parts[r].count * array.row_bytes();
    block.send = parts[r].first * array.row_bytes();
    if (r == rank) {
      block.receive = 0;
      exchange.result_bytes = block.bytes;
    }
    exchange.blocks.push_back(block);
  }
  return exchange;
}

// `counts`: the number of elements that each rank has for this one.
Exchange alltoall(const wire::AllToAll& what, const Array& array,
                  const std::vector<uint64_t>& counts, uint32_t rank, uint32_t size) {
  Exchange exchange;
  size_t in = 0;
  for (uint32_t r = 0; r < size; ++r) {
    Block outgoing, incoming;
    outgoing.buffer = rank * size + r;
    outgoing.bytes = what.rows[r] * array.row_bytes();
    outgoing.send = in;
    incoming.buffer = r * size + rank;
    incoming.bytes = counts[r] * size_of(array.dtype);
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

Exchange all_blocks(const wire::Collective& what, const Array& array, size_t bundle,
                    const std::vector<uint64_t>& counts, uint32_t rank, uint32_t size) {
  if (const auto* kind = std::get_if<wire::Broadcast>(&what)) return broadcast(*kind, array, rank);
  if (const auto* kind = std::get_if<wire::ReduceScatter>(&what)) {
    return reduce_scatter(*kind, array, bundle, rank, size);
  }
  if (const auto* kind = std::get_if<wire::AllToAll>(&what)) {
    return alltoall(*kind, array, counts, rank, size);
  }
  return wire::is<wire::AllGather>(what) ? allgather(array, counts, rank) : Exchange{};
}

}  // namespace

Status check_counts(const std::string& name, const wire::Collective& what,
                    const std::vector<Array>& arrays, const std::vector<uint64_t>& counts,
                    uint32_t rank, uint32_t size) {
  const auto* alltoall = std::get_if<wire::AllToAll>(&what);
  const auto* scatter = std::get_if<wire::ReduceScatter>(&what);
  // A server that answers Go has checked the splits of all ranks. They are checked again here so
  // that nothing depends on that server.
  const std::vector<uint64_t>* splits = alltoall != nullptr  ? &alltoall->rows
                                        : scatter != nullptr ? &scatter->rows
                                                             : nullptr;
  const bool given = splits != nullptr && (alltoall != nullptr || !splits->empty());
  if (given && !wire::are_splits(*splits, arrays, size)) {
    return breach("a server accepted '", name, "', whose splits are not ", size,
                  " counts that sum up to its rows");
  }
  const bool gathers = wire::is<wire::AllGather>(what);
  if (!gathers && alltoall == nullptr) return {};
  const auto wrong = [&](const std::string& text) {
    return breach("the counts that a server sent for '", name, "' ", text);
  };
  if (counts.size() != size) return wrong(concat("are ", counts.size(), ", not ", size));
  constexpr uint64_t kMost = uint64_t{1} << 48;  // the limit that applies to announcements, too
  const uint64_t row = arrays.front().row_elements();
  uint64_t received = 0;
  for (const uint64_t count : counts) {
    uint64_t items = 0;
    if (__builtin_mul_overflow(count, gathers ? row : 1, &items) || items > kMost ||
        count > kMost) {
      return wrong("are too large");
    }
    received += items;
  }
  if (received > kMost) return wrong("are too large in total");
  // A rank must receive from itself exactly what it sends to itself.
  const uint64_t own = gathers ? arrays.front().rows() : alltoall->rows[rank] * row;
  if (counts[rank] != own) {
    return wrong(concat("say that this rank has ", counts[rank], gathers ? " rows" : " elements",
                        " for itself, but it has ", own));
  }
  return {};
}

Exchange plan_exchange(const wire::Collective& what, const Array& array, size_t bundle,
                       const std::vector<uint64_t>& counts, uint32_t rank, uint32_t size) {
  Exchange exchange = all_blocks(what, array, bundle, counts, rank, size);
  if (exchange.own && exchange.own->bytes == 0) exchange.own.reset();
  std::erase_if(exchange.blocks, [](const Block& block) { return block.bytes == 0; });
  return exchange;
}

NodeExchange plan_node_exchange(const wire::Collective& what, const Array& array,
                                const Exchange& exchange, uint32_t rank, uint32_t size) {
  const auto* broadcast = std::get_if<wire::Broadcast>(&what);
  const auto* alltoall = std::get_if<wire::AllToAll>(&what);
  NodeExchange node;
  node.posts = broadcast == nullptr || rank == broadcast->root;
  if (alltoall != nullptr) {
    size_t first = size * sizeof(uint64_t);
    for (const uint64_t rows : alltoall->rows) {
      node.table.push_back(first);
      first += rows * array.row_bytes();
    }
  }
  for (const Block& block : exchange.blocks) {
    if (!block.receive) continue;
    NodePiece& piece = node.pieces.emplace_back();
    piece.receive = *block.receive;
    piece.bytes = block.bytes;
    if (broadcast != nullptr) {
      piece.from = broadcast->root;
    } else if (wire::is<wire::AllGather>(what)) {
      piece.from = block.buffer;
    } else if (wire::is<wire::ReduceScatter>(what)) {
      piece.offset = *block.send;
    } else {
      piece.from = block.buffer / size;
      piece.offset = rank * sizeof(uint64_t);
      piece.told = true;
    }
  }
  return node;
}

}  // namespace herring::calls
