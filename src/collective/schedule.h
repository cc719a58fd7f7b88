// Collectives as data: a schedule says what one rank sends, receives and adds, and which of these
// operations must come before which others. Pure. Tests, the check of the cost models, and
// execution use the same schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
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

inline bool overlap(const Range& a, const Range& b) {
  return a.bytes > 0 && b.bytes > 0 && a.offset < b.end() && b.offset < a.end();
}

inline constexpr uint32_t kNobody = ~0u;
inline constexpr uint32_t kNoOperation = ~0u;

struct Operation {
  enum class Kind : uint8_t {
    kNop,      // is complete as soon as it may run
    kSend,     // sends the range to `peer`
    kReceive,  // receives it from `peer`: in place, or for the sum that is its `half`
    kCompute,  // combines the range with what its `half` has received for it
  };
  // When the operation may run: after all operations that it needs, or after any of them. "All" of
  // none is at once. "Any" of none is never, unless somebody outside sets the operation going.
  enum class After : uint8_t { kAll, kAny };

  Kind kind = Kind::kNop;
  After after = After::kAll;
  bool finishes = false;  // of a compute: it is the last one of its bytes, and divides and scales
  bool kept = false;      // of a receive for a sum: all of it must have a place before it is summed
  uint32_t peer = kNobody;
  uint32_t half = kNoOperation;  // of a compute: its receive; of a receive for a sum: its compute
  Range range;
  size_t place = 0;  // of a receive that is kept: its first byte in the working space

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  // A message without bytes. Nobody knows beforehand whether it will come.
  bool is_signal() const { return is_message() && range.bytes == 0; }
  bool sums() const { return kind == Kind::kReceive && half != kNoOperation; }
};

// A directed acyclic graph of operations. They are numbered, and need only operations with lower
// numbers. Messages from one rank to another are sent and received in the order of their numbers.
//
// Every operation runs at most once. If an operation needs all of several, and has bytes in common
// with one of them, only these bytes wait for each other: it may run for a byte once the other is
// complete for that byte. In all other cases it runs after the other is complete. A receive for a
// sum and its compute go on together: neither can be ahead of what the other needs.
class Schedule {
 public:
  // Returns the number of the operation. kNoOperation in `needs` is left out. A compute needs its
  // half without saying so.
  uint32_t add(Operation operation, std::initializer_list<uint32_t> needs = {});
  void need(uint32_t earlier);  // adds to what the last operation needs
  // Adds all operations of another schedule. Those that need nothing there need `first`.
  void append(const Schedule& other, uint32_t first);

  uint32_t size() const { return static_cast<uint32_t>(operations_.size()); }
  bool empty() const { return operations_.empty(); }
  const Operation& operator[](uint32_t number) const { return operations_[number]; }
  auto begin() const { return operations_.begin(); }
  auto end() const { return operations_.end(); }
  void reserve(size_t operations);
  std::span<const uint32_t> needs(uint32_t number) const {
    return std::span(needs_).subspan(first_[number], end_of_needs(number) - first_[number]);
  }
  size_t number_of_needs() const { return needs_.size(); }
  // Bytes of working space, for receives that are kept.
  size_t space() const { return space_; }

 private:
  size_t end_of_needs(uint32_t number) const {
    return number + 1 < first_.size() ? first_[number + 1] : needs_.size();
  }

  std::vector<Operation> operations_;
  std::vector<uint32_t> needs_, first_;  // needs of all; where those of each operation begin
  size_t space_ = 0;
};

// A receive gets its place before the sender needs it, but only after the receive that is this many
// and one before it in a schedule of make_schedule().
inline constexpr uint32_t kLookAhead = 2;

// Returns what `rank` among `size` ranks does, for `count` elements of `item` bytes. What a rank
// sends to another is exactly what the other receives from it, in the same order of messages. All
// ranks end with the same bits: an element is finished on one rank, and copied to the others, or
// finished on all of them from the same operands (doubling; reduce::combine() does not depend on
// the order of two). Algorithm::kHerring has an empty schedule.
//
//   server     rank 0 receives from every other rank in turn, then sends to each
//   tree       binomial: a rank receives from rank + 1, + 2, + 4 ... and sends to rank - its lowest
//              set bit; results take the same way back
//   ring       2 (size - 1) steps: each rank sends one of `size` blocks to rank + 1 and receives
//              another from rank - 1, first to add, then to copy
//   butterfly  recursive halving, then recursive doubling, over the largest power of two of ranks.
//              Each surplus rank (0, 2, 4 ...) first sends its array to its right neighbour, which
//              adds it, and receives the result from it at the end
//   doubling   recursive doubling: ranks at distance 1, 2, 4 ... exchange their whole sums, over
//              the same ranks as the butterfly
Schedule make_schedule(Algorithm algorithm, uint32_t rank, uint32_t size, uint64_t count,
                       size_t item);

// How a number of ranks is brought to a power of two. The even ones among the first ranks are the
// surplus. Each has a neighbour, the rank after it, which takes part for both.
struct PowerOfTwo {
  explicit PowerOfTwo(uint32_t size);
  bool is_surplus(uint32_t rank) const { return rank < 2 * extra && rank % 2 == 0; }
  bool has_surplus(uint32_t rank) const { return rank < 2 * extra && rank % 2 == 1; }
  // The number, below `power`, of a rank that is not surplus, and the other way round.
  uint32_t id_of(uint32_t rank) const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  uint32_t rank_of(uint32_t id) const { return id < extra ? 2 * id + 1 : id + extra; }
  uint32_t power = 1, extra = 0;
};

// A caller's choice, made by a name.
struct Choice {
  Algorithm algorithm = Algorithm::kHerring;
  bool device_sums = false;  // if the array lies on a device; each rank may choose for itself
};

// Parses a name as used in Python: "herring", "server", "tree", "ring", "butterfly", "doubling",
// "cuda-butterfly".
Result<Choice> parse_algorithm(const std::string& name);

}  // namespace herring::collective
