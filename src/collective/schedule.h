// All-reduce algorithms as data: what one rank sends, receives and adds, step by step. Pure. Tests,
// the check of the cost models, and execution use the same schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace herring::collective {

using wire::Algorithm;

// Bytes of the array.
struct Range {
  size_t offset = 0, bytes = 0;
  size_t end() const { return offset + bytes; }
  bool operator==(const Range&) const = default;
};

// Says what happens to received bytes.
enum class Combine : uint8_t {
  kCopy,    // they are results, and replace what is there
  kReduce,  // they are contributions, and are combined with what is there
  kFinish,  // like kReduce, for the last time: also divide and scale
};

inline constexpr uint32_t kNobody = ~0u;

// Both halves of a step run at the same time; their ranges do not overlap. A half without bytes has
// no peer.
struct Step {
  uint32_t to = kNobody;
  Range send;
  uint32_t from = kNobody;
  Range receive;
  Combine combine = Combine::kCopy;
};

using Schedule = std::vector<Step>;

// Returns the steps of `rank` among `size` ranks, for `count` elements of `item` bytes. What a rank
// sends to another is exactly what the other receives from it, in the same order of messages. Every
// element is finished on exactly one rank, so all ranks end with the same bits. Algorithm::kHerring
// has an empty schedule.
//
//   server     rank 0 receives from every other rank in turn, then sends to each
//   tree       binomial: a rank receives from rank + 1, + 2, + 4 ... and sends to rank - its lowest
//              set bit; results take the same way back
//   ring       2 (size - 1) steps: each rank sends one of `size` blocks to rank + 1 and receives
//              another from rank - 1, first to add, then to copy
//   butterfly  recursive halving, then recursive doubling, over the largest power of two of ranks.
//              Each surplus rank (0, 2, 4 ...) first sends its array to its right neighbour, which
//              adds it, and receives the result from it at the end
Schedule make_schedule(Algorithm algorithm, uint32_t rank, uint32_t size, uint64_t count,
                       size_t item);

// A caller's choice, made by a name.
struct Choice {
  Algorithm algorithm = Algorithm::kHerring;
  bool device_sums = false;  // if the array lies on a device; each rank may choose for itself
};

// Parses a name as used in Python: "herring", "server", "tree", "ring", "butterfly",
// "cuda-butterfly".
Result<Choice> parse_algorithm(const std::string& name);

}  // namespace herring::collective
