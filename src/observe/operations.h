// Counts what has ended on a worker by collective and size, for metrics: few series, however many
// names and sizes a program uses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "observe/entry.h"

namespace herring::observe {

// The collectives that metrics tell apart. A fusion buffer of a plan counts as an all-reduce.
inline constexpr std::array kCollectives = {
    "allreduce", "broadcast",  "allgather", "reduce_scatter", "alltoall",          "barrier",
    "send",      "receive",    "join",      "form_group",     "partial_allreduce", "other",
};
// The ranges of sizes, as metrics name them. Each but the last ends before its limit, in bytes.
inline constexpr std::array kMessageSizes = {"0-4KB",  "4-64KB",   "64KB-1MB",
                                             "1-16MB", "16-256MB", "256MB-"};
inline constexpr std::array<uint64_t, kMessageSizes.size() - 1> kSizeLimits = {
    1ull << 12, 1ull << 16, 1ull << 20, 1ull << 24, 1ull << 28};

struct OperationCount {
  uint8_t collective = 0, size = 0;  // places in the two lists above
  uint64_t ended = 0, bytes = 0;
  // From the moment when a rank had given its data to that of its result, over all that ended.
  Nanos time = 0;
};

class OperationCounts {
 public:
  // Counts an entry of a worker that has ended well: a call, a buffer of a plan, or a partial
  // round. Rounds of plans do not count, because their buffers do.
  void add(const Entry& entry) noexcept;
  // Returns the counts that are not 0.
  std::vector<OperationCount> all() const;

 private:
  std::array<OperationCount, kCollectives.size() * kMessageSizes.size()> cells_{};
};

}  // namespace herring::observe
