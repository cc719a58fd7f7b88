// What a rank keeps for others in a job that goes on when a server dies, and from when on nobody
// can ask for it (kSettled).
//
// Each rank says of what it lacks nothing any more. Such a statement never becomes false. When all
// members of a group have said it that are not gone, their server tells all of them. No statement
// needs the others, or an order, so whoever begins to answer for a home is simply told again.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "wire/key.h"

namespace herring::wire {

// Something in a group of which ranks may lack a part.
struct Subject {
  enum class Kind : uint8_t {
    kStream,   // the results of a stream; the ID is its number
    kSeries,   // the end of a series of partial all-reduces; the ID is that of the series
    kAnswers,  // the answers to the calls of a home; the ID is the home
    kLast = kAnswers,
  };
  Kind kind = Kind::kStream;
  uint64_t id = 0;
  auto operator<=>(const Subject&) const = default;
};

struct Settled {
  Subject subject;
  // Nothing up to here is lacked: settled_at() of a transfer, the number of an answer, 1 for the
  // end of a series. At least 1.
  uint64_t upto = 0;
  bool operator==(const Settled&) const = default;
};

// Returns the place of a transfer in its stream.
inline uint64_t settled_at(const Key& key) { return (uint64_t{key.round} << 32 | key.buffer) + 1; }

// How many of them a message has at most.
inline constexpr size_t kMostSettled = 1024;

std::string encode(const std::vector<Settled>& settled);
Result<std::vector<Settled>> decode_settled(std::string_view in);

}  // namespace herring::wire
