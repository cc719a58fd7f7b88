// One piece of work of a process, from the call that starts it to its end: a round of a plan, one
// of its fusion buffers, a named call, or the sum of a shard on a server. The flight recorder, the
// timeline and the reports to the rendezvous all consist of entries.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace herring::observe {

enum class Kind : uint8_t {
  kRound = 0,  // a round of a planned operation on a worker
  kBuffer,     // a fusion buffer in such a round
  kCall,       // a named operation on a worker
  kSum,        // a shard of a buffer or of a call on a server
  kLast = kSum,
};

// The moments of an entry, in their order. An entry has only those that its kind passes through.
enum class Moment : uint8_t {
  kCalled = 0,  // the program began the round, or made the call; on a server, the first rank came
  kReady,       // this rank has given all its data; on a server, the last rank came
  kReduced,     // the node stage has combined this rank's slice over the node
  kPushed,      // all of this rank's bytes were handed to the system
  kSummed,      // on a server, the last segment was combined
  kDone,        // the result is in place; on a server, all results were handed to the system
  kLast = kDone,
};
inline constexpr size_t kMoments = static_cast<size_t>(Moment::kLast) + 1;

const char* name_of(Kind kind);
const char* name_of(Moment moment);

struct Entry {
  static constexpr size_t kNameBytes = 80;

  uint64_t id = 0;           // counts the entries of a process from 1 on
  Kind kind = Kind::kCall;
  Code outcome = Code::kOk;  // of an entry that has ended
  bool ended = false;
  uint32_t group = 0, stream = 0, round = 0, buffer = 0;
  uint32_t number = 0;       // of a call among those of its name; 0: no other one has it
  uint64_t bytes = 0;
  std::array<Nanos, kMoments> at{};  // in this process's monotonic clock; 0: not reached
  Nanos waited = 0;          // how long the program waited for the result
  char name[kNameBytes] = {};  // ends with a zero byte; longer names lose their middle

  Nanos when(Moment moment) const { return at[static_cast<size_t>(moment)]; }
  std::string_view title() const { return {name, strnlen(name, kNameBytes)}; }
  void set_name(std::string_view text) {
    std::memset(name, 0, kNameBytes);
    add_to_name(text);
  }
  void add_to_name(std::string_view text) {
    const size_t used = title().size(), room = kNameBytes - 1 - used;
    constexpr std::string_view kGap = "...";
    if (text.size() <= room || room <= kGap.size()) {
      std::memcpy(name + used, text.data(), std::min(text.size(), room));
      return;
    }
    // Names of parameters differ at their end.
    const size_t head = (room - kGap.size()) / 3, tail = room - kGap.size() - head;
    std::memcpy(name + used, text.data(), head);
    std::memcpy(name + used + head, kGap.data(), kGap.size());
    std::memcpy(name + kNameBytes - 1 - tail, text.data() + text.size() - tail, tail);
  }
};

}  // namespace herring::observe
