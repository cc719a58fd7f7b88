// Broadcast, allgather, reduce-scatter and all-to-all as blocks that move between ranks: for each
// block some ranks contribute and some want the result. They go through the servers, or, in a group
// on one node, from memory to memory. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "node/node_work.h"
#include "wire/array.h"
#include "wire/collective.h"

namespace herring::worker {

// One rank's part in one block.
struct Block {
  uint32_t buffer = 0;           // the same number on every rank that takes part
  size_t bytes = 0;
  std::optional<size_t> send;    // offset in the caller's array; none: contributes nothing
  std::optional<size_t> receive;  // offset in the result; none: does not want it
  // All-to-all: the only two ranks that take part (the lower one first); otherwise all do.
  std::optional<std::pair<uint32_t, uint32_t>> pair;
};

struct Exchange {
  std::vector<Block> blocks;     // by buffer: everywhere pushed in this order
  size_t result_bytes = 0;       // of a new array; broadcast receives in place
  std::optional<Block> own;      // moves from here to here: no server sees it
};

// Whether the counts that a server sent fit the call of `name`; kProtocol.
Status check_counts(const std::string& name, const wire::Collective& what,
                    const std::vector<wire::Array>& arrays, const std::vector<uint64_t>& counts,
                    uint32_t rank, uint32_t size);

// What `rank` of `size` has to do for an array, which is the call's only one or its bundle of that
// number; `counts`: see wire::Go, checked.
Exchange plan_exchange(const wire::Collective& what, const wire::Array& array, size_t bundle,
                       const std::vector<uint64_t>& counts, uint32_t rank, uint32_t size);

// In a group on one node: what a rank posts for the others, and what it takes from them. In an
// all-to-all parts begin elsewhere in each rank's array; a table before the array says where, a
// uint64 for each rank, counted from the table's own first byte.
struct NodeExchange {
  bool posts = true;             // its array
  std::vector<uint64_t> table;   // empty: none
  std::vector<NodePiece> pieces;
};
NodeExchange plan_node_exchange(const wire::Collective& what, const wire::Array& array,
                                const Exchange& exchange, uint32_t rank, uint32_t size);

}  // namespace herring::worker
