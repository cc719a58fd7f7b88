// Payloads of the data plane's control frames. Decoders accept nothing that does not parse to its
// end and check every enumeration and count; what depends on the cluster is checked by the
// receiver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/status.h"
#include "wire/array.h"
#include "wire/collective.h"

namespace herring::wire {

// Who contributes to a buffer, and so how many contributions complete a segment.
enum class Participants : uint8_t {
  kNodes = 0,  // one contribution per node, from whichever local rank owns the segment
  kRanks,      // one per rank
  kPair,       // ranks pair_a and pair_b inside the group only (pair_a < pair_b)
};

// kOpen: what one contributor says about a shard of a buffer. All contributors must agree, but for
// `workers`.
struct Open {
  DType dtype = DType::kFloat32;  // on the wire
  Reduction reduction;
  Participants participants = Participants::kNodes;
  uint32_t workers = 0;  // workers whose gradients are in this contribution
  uint64_t shard_bytes = 0;
  Deadline deadline;
  uint32_t pair_a = 0, pair_b = 0;
  std::string name;  // for messages
};

// The names of joins, which go to every owner of names of the group, and of the calls by which its
// members tell each other where they listen.
inline constexpr char kJoinName[] = "herring.join";
inline constexpr char kMeetingName[] = "herring.workers' addresses";
// "[an IPv6 address]:port" has less.
inline constexpr size_t kMaxAddress = 64;
// Bytes of Announce::refusal; longer ones are cut.
inline constexpr size_t kMaxRefusal = 4096;
// Bytes of Announce::agreement; see agreement_of().
inline constexpr size_t kMaxAgreement = 1024;
// Bytes of kWhereabouts, likewise.
inline constexpr size_t kMaxWhereabouts = 1024;
// kAnnounce: a named operation as one rank calls it.
struct Announce {
  uint64_t id = 0;  // the sender's own, echoed in every answer
  Collective what;
  // What moves: an array; of a list one bundle of each dtype, its arrays put together.
  std::vector<Array> arrays;
  bool listed = false;
  bool inline_payload = false;  // the payload rides along
  uint32_t timeout_ms = 0, warn_ms = 0;
  std::string name;
  std::string refusal;           // why this rank cannot take part, though it was called; else empty
  // What ranks must give alike beside that, in words; of a list what its arrays are, too.
  std::string agreement;
  std::string address;           // send, receive of what does not ride along: where it listens
  std::string_view payload;      // into the decoded text

  uint64_t bytes() const;
};

// A text as an agreement: one that is too long is cut, and has a number that tells it from others.
std::string agreement_of(std::string text);

// kGo and the head of kReply: per-rank counts where ranks may differ (allgather: rows of each rank;
// alltoall: elements that each rank has for the one that is told), else empty.
// form_group: one count, the number of the new group. send, receive: the other rank and the tag; in
// kGo the other's address follows. join: one count, the rank that was last. To a rank that has
// joined, a kGo with id 0 and, after it, what one of the others has announced (without payload):
// its part of an all-reduce to which it adds nothing.
struct Go {
  uint64_t id = 0;
  std::vector<uint64_t> counts;
};

// kGroup: the group of the header's number, as one of its members says. Answered with its id.
struct GroupMessage {
  uint64_t id = 0;
  std::string name;             // for messages
  std::vector<uint32_t> ranks;  // of the job, ascending
};

struct OpError {
  uint64_t id = 0;
  Code code = Code::kInternal;
  std::string text;
};

std::string encode(const Open& open);
std::string encode(const Announce& announce);  // without payload, which follows it on the wire
std::string encode(const Go& go);
std::string encode(const GroupMessage& group);
std::string encode(const OpError& error);

Result<Open> decode_open(std::string_view in);
Result<Announce> decode_announce(std::string_view in);
// What follows the counts is left in `rest` (kReply: the result's bytes).
Result<Go> decode_go(std::string_view in, std::string_view* rest);
Result<GroupMessage> decode_group(std::string_view in);
Result<OpError> decode_op_error(std::string_view in);

}  // namespace herring::wire
