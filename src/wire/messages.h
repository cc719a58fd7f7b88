// Payloads of the data plane's control frames. Decoders accept only payloads that parse to their
// end, and check every enumeration and count. Receivers check what depends on the cluster.
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

// Who contributes to a buffer, which determines how many contributions complete a segment.
enum class Participants : uint8_t {
  kNodes = 0,  // one contribution per node, from whichever local rank owns the segment
  kRanks,      // one per rank
  kPair,       // only ranks pair_a and pair_b in the group (pair_a < pair_b)
};

// kOpen: what one contributor says about a shard of a buffer. All contributors must agree, except
// on the numbers of workers and `again`.
struct Open {
  DType dtype = DType::kFloat32;  // on the wire
  Reduction reduction;
  Participants participants = Participants::kNodes;
  uint32_t workers = 0;  // workers whose gradients are in this contribution
  uint64_t shard_bytes = 0;
  Deadline deadline;
  uint32_t pair_a = 0, pair_b = 0;
  // The contributor pushes again what another server may have summed: some segments may be missing,
  // and some may be results, with the gradients of this number of workers.
  bool again = false;
  // It stays where it is although its home serves again, because nobody keeps its results.
  bool stays = false;
  uint32_t result_workers = 0;
  std::string name;  // for messages
};

// Reserved names. Joins go to every owner of names in the group. With meetings, the members of a
// group tell each other where they listen.
inline constexpr char kJoinName[] = "herring.join";
inline constexpr char kMeetingName[] = "herring.workers' addresses";
// Calls with these names say whether the blocks of an exchange have reached all ranks.
inline constexpr char kWholePrefix[] = "herring.whole ";
// Calls of which a part was lost with a server are made again with these names. The same ranks take
// part again, whether or not they have joined since.
inline constexpr char kAgainPrefix[] = "herring.again ";
inline bool is_reserved(std::string_view name) {
  return name == kJoinName || name == kMeetingName || name.starts_with(kWholePrefix) ||
         name.starts_with(kAgainPrefix);
}
// "[an IPv6 address]:port" is shorter.
inline constexpr size_t kMaxAddress = 64;
// The limit of Announce::refusal in bytes; longer texts are cut.
inline constexpr size_t kMaxRefusal = 4096;
// The limit of Announce::agreement in bytes; see agreement_of().
inline constexpr size_t kMaxAgreement = 1024;
// The limit of the text in kWhereabouts, in bytes.
inline constexpr size_t kMaxWhereabouts = 1024;
// kAnnounce: a named operation as one rank calls it.
struct Announce {
  uint64_t id = 0;  // chosen by the sender, echoed in every answer
  Collective what;
  // The arrays that move: one, or for a list one bundle per dtype, which joins its arrays.
  std::vector<Array> arrays;
  bool listed = false;
  bool inline_payload = false;  // the payload follows in the same frame
  uint32_t timeout_ms = 0, warn_ms = 0;
  uint32_t servers = 0;         // epoch of the set of servers that the rank knows
  std::string name;
  std::string refusal;           // why this rank, although called, cannot take part; or empty
  // In words, what else must be the same on all ranks; for a list, also its arrays.
  std::string agreement;
  std::string address;           // where this rank listens, if a message does not ride along
  std::string_view payload;      // a view into the decoded text

  uint64_t bytes() const;
};

// Returns a text as an agreement. A text that is too long is cut and gets a hash of the whole.
std::string agreement_of(std::string text);

// kGo, and the head of kReply. `counts` depends on the operation:
// - allgather: the rows of each rank; alltoall: the elements that each rank has for the receiver;
// - form_group: one count, the number of the new group;
// - send, receive: the other rank and the tag; in kGo, the other rank's address follows;
// - join: one count, the rank that joined last;
// - others: empty.
// A rank that has joined gets a kGo with id 0, followed by what one of the other ranks has
// announced (without payload). This is its part of an all-reduce to which it adds nothing.
struct Go {
  uint64_t id = 0;
  std::vector<uint64_t> counts;
  uint32_t servers = 0;  // epoch of the set of servers with which all ranks carry out an exchange
};

// kGroup: the group with the header's number, described by one of its members. The answer has `id`.
struct GroupMessage {
  uint64_t id = 0;
  std::string name;             // for messages
  std::vector<uint32_t> ranks;  // ranks of the job, ascending
};

struct OpError {
  uint64_t id = 0;
  Code code = Code::kInternal;
  std::string text;
};

std::string encode(const Open& open);
std::string encode(const Announce& announce);  // without the payload, which follows on the wire
std::string encode(const Go& go);
std::string encode(const GroupMessage& group);
std::string encode(const OpError& error);

Result<Open> decode_open(std::string_view in);
Result<Announce> decode_announce(std::string_view in);
// Leaves what follows the counts in `rest`; for kReply, these are the bytes of the result.
Result<Go> decode_go(std::string_view in, std::string_view* rest);
Result<GroupMessage> decode_group(std::string_view in);
Result<OpError> decode_op_error(std::string_view in);

}  // namespace herring::wire
