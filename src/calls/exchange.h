// Broadcast, all-gather, reduce-scatter and all-to-all as blocks that move between ranks. Some
// ranks contribute to each block, and some want the result. Blocks go through the servers or, in a
// group on one node, from memory to memory. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "node/node_work.h"
#include "wire/array.h"
#include "wire/collective.h"

namespace herring::calls {

// One rank's part in one block.
struct Block {
  uint32_t buffer = 0;           // the same number on every participating rank
  size_t bytes = 0;
  std::optional<size_t> send;    // offset in the caller's array; none: contributes nothing
  std::optional<size_t> receive;  // offset in the result; none: does not want it
  // In an all-to-all: the two ranks that take part, the lower one first. Otherwise all ranks take
  // part.
  std::optional<std::pair<uint32_t, uint32_t>> pair;
};

struct Exchange {
  std::vector<Block> blocks;     // sorted by buffer; every rank pushes them in this order
  size_t result_bytes = 0;       // size of a new array; a broadcast receives in place
  std::optional<Block> own;      // a block from this rank to itself, which no server sees
};

// Checks whether the counts that a server sent fit the call of `name`. Returns kProtocol if not.
Status check_counts(const std::string& name, const wire::Collective& what,
                    const std::vector<wire::Array>& arrays, const std::vector<uint64_t>& counts,
                    uint32_t rank, uint32_t size);

// Returns what `rank` of `size` has to do for an array. The array is the only one of the call, or
// its bundle with that number. `counts`: see wire::Go; they must have passed check_counts().
Exchange plan_exchange(const wire::Collective& what, const wire::Array& array, size_t bundle,
                       const std::vector<uint64_t>& counts, uint32_t rank, uint32_t size);

// In a group on one node: what a rank posts for the others, and what it takes from them. In an
// all-to-all, the parts begin at different offsets in each rank's array. Therefore a table precedes
// the array. It has a uint64 offset for each rank, counted from the first byte of the table.
struct NodeExchange {
  bool posts = true;             // whether this rank posts its array
  std::vector<uint64_t> table;   // empty if there is none
  std::vector<NodePiece> pieces;
};
NodeExchange plan_node_exchange(const wire::Collective& what, const wire::Array& array,
                                const Exchange& exchange, uint32_t rank, uint32_t size);

}  // namespace herring::calls
