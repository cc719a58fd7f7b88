// Messages of partial all-reduces. A partial all-reduce is a series of rounds over one array,
// closed by the server that owns the series' name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "partial/round_owner.h"

namespace herring::wire {

// Returns the identity of a series: a hash of its name, its group's number, and its own number, by
// which it differs from other series of that name in the group.
uint64_t series_id(std::string_view name, uint32_t group = 0, uint32_t number = 0);

// kEnlist. All ranks must send the same, except for `owner`, which depends on the receiving server.
// The header says in which reign that server is the owner.
struct Enlist {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kAverage;  // kSum or kAverage
  bool by_contributors = false;      // averages divide by the contributors, not all workers
  bool inline_payload = false;       // contributions and results ride along
  uint64_t elements = 0;
  uint32_t quorum = 1;
  Nanos grace = 0;
  uint32_t staleness = 0;
  bool replays = false;  // joins say which round they are in
  bool owner = true;     // the server that reads this closes the rounds
  uint32_t timeout_ms = 0, warn_ms = 0;
  uint32_t number = 0;   // see series_id()
  std::string name;
};

// kJoin: `payload` is the sum of what was produced since the last join, or empty.
struct JoinMessage {
  uint64_t id = 0;
  uint64_t upto = 0;
  uint32_t base = 0;
  bool last = false;
  // In a replay: the round of this join and its number of contributors. Otherwise 0.
  uint32_t round = 0, contributors = 0;
  // A digest of the replica after it applied the results of `digest_round` rounds; 0: none.
  uint32_t digest_round = 0;
  uint64_t digest = 0;
  std::string_view payload;  // a view into the decoded text
};

// kRound. If there is a push, the header has the stream and the round of that push.
struct RoundMessage {
  uint64_t id = 0;
  uint32_t round = 0, attempt = 0;
  uint32_t divisor = 1;
  bool last = false;
  std::vector<partial::Contributor> contributors;
  std::vector<partial::Lost> lost;  // all losses so far
  std::string_view payload;         // a view into the decoded text
};

// kReceived, kCommit.
struct RoundMark {
  uint64_t id = 0;
  uint32_t round = 0, attempt = 0;
  bool whole = true;  // kReceived: the bytes of every contributor are in the result
};

// How many series that have ended a rank tells of, at most.
inline constexpr size_t kMostEndedSeries = 64;

// kSeries: what a rank knows of a series whose owner is gone, without the rounds and joins. These
// follow as kRound and kJoin. A kSeries without a payload follows everything about all series.
struct KnownSeries {
  uint64_t id = 0;
  partial::SeriesState known;
};

std::string encode(const Enlist& enlist);
std::string encode(const JoinMessage& join);    // without the payload, which follows on the wire
std::string encode(const RoundMessage& round);  // without the payload, which follows on the wire
std::string encode(const RoundMark& mark);
// Without the rounds and joins.
std::string encode_known(uint64_t id, const partial::SeriesState& known);
JoinMessage message_of(uint64_t id, const partial::SentJoin& said);  // views the payload

Result<Enlist> decode_enlist(std::string_view in);
Result<JoinMessage> decode_join(std::string_view in);
Result<RoundMessage> decode_round(std::string_view in);
Result<RoundMark> decode_mark(std::string_view in);
Result<KnownSeries> decode_series(std::string_view in);

}  // namespace herring::wire
