// The unit on the wire: a 48-byte little-endian header, then `payload` bytes.
#pragma once

#include <cstdint>
#include <string>

namespace herring::wire {

enum class FrameType : uint8_t {
  // Data plane, worker <-> server.
  kOpen = 1,     // worker -> server: describes a shard of one buffer in one round, before its data
  kData,         // worker -> server: consecutive segments of an opened shard
  kResult,       // server -> worker: combined segments; returns their credit
  kAnnounce,     // worker -> owner: a named operation; a small payload rides along
  kGo,           // owner -> worker: all announced; push under this ticket
  kReply,        // owner -> worker: the result of a small operation
  kOpError,      // owner -> worker: a named operation failed on every rank
  kWarning,      // server -> worker: text for the log (who is missing, for how long)
  // Control plane, member <-> rendezvous.
  kRegister,
  kCluster,
  kReady,
  kHeartbeat,
  kGoodbye,
  kPeerLost,
  kAbort,
  // Worker <-> worker: all-reduce by messages (collective/).
  kGrant,        // how many frames of a message the sender may send
  kBlock,        // one frame of a message
  // Worker -> server: lent results were read, and no push that would say so follows soon.
  kTaken,
  // Data plane: partial all-reduce (wire/partial.h).
  kEnlist,       // worker -> every server: takes part in a series of rounds
  kJoin,         // worker -> owner: contributions are ready; small ones ride along
  kRound,        // owner -> worker: a round has closed; a small result rides along. Worker ->
                 // server that becomes the owner: a round of which it has heard
  kReceived,     // worker -> owner: it has the result of a round
  kCommit,       // owner -> worker: the round is committed
  // Groups.
  kGroup,        // worker -> server: who is in a group that it belongs to; answered by kReply
  kLeaveGroup,   // worker -> server: it calls nothing more in this group
  kWhereabouts,  // worker -> every server: text: the calls in which it is held up; empty: none
  kReleased,     // worker -> server whose worker has left: this rank no longer needs that server
  // Control plane: what processes tell about themselves (observe/).
  kReport,       // member -> rendezvous: what it does and has counted
  kRankTexts,    // rendezvous -> member: what ranks do that hold others up
  kRecord,       // rendezvous -> member: asks for its latest entries; and the answer
  kTimeline,     // rendezvous -> member: entries are wanted, or no more; member -> rendezvous: what
                 // has ended since the last message
  // Data plane: named operations whose server is gone (wire/handover.h).
  kHandOver,     // worker -> server that begins to answer for names: which answers it has
  kServerNews,   // control plane: a dedicated server is replaced, or cannot be reached
  // Data plane: worker -> server that becomes the owner of series of partial all-reduces: what it
  // knows of one; empty: it has told all (wire/partial.h).
  kSeries,
  // Worker <-> worker on one node: data that the receiver reads from the sender's GPU.
  kCard,         // what the sender's GPU has, and what it reaches, in one task
  kShown,        // how many frames of a message lie in memory that the receiver reads
  kRead,         // the receiver has read a message
  // Data plane: worker -> server: of what this rank lacks nothing any more; server -> worker: of
  // what no rank of the group does (wire/settled.h).
  kSettled,
  // Worker <-> worker: of what runs again and again between workers; `round` is the instance,
  // `buffer` what the sender says (rounds/activated_partial.h).
  kSignal,
  kLast = kSignal,
};

const char* name_of(FrameType type);

struct FrameHeader {
  FrameType type = FrameType::kHeartbeat;
  uint8_t flags = 0;
  uint16_t segments = 0;       // kData, kResult: number of consecutive segments
  uint32_t payload = 0;        // bytes that follow
  uint32_t group = 0;          // data plane: the ranks that take part; 0: all
  uint32_t stream = 0;         // within the group: a sequence of operations in one agreed order
  uint32_t round = 0;          // ticket or round within the stream
  uint32_t buffer = 0;         // fusion buffer within the round
  uint32_t first_segment = 0;  // of the shard
  uint16_t credit = 0;         // segments that each flow may have outstanding; see links/credit.h
  uint16_t home = 0;           // data plane: 0, or one more than the index of the server that the
                               // receiver of the data stands in for
  uint32_t epoch = 0;          // with `home`: since when the receiver stands in for it
  uint32_t signals = 0;        // losses that the sender has counted so far, modulo 2^32
  union {
    uint32_t workers = 0;      // kResult: workers whose contributions are in it; in rounds of a
                               // partial all-reduce, contributors whose bytes are in it
    uint32_t taken;            // kData, kTaken: segments of lent results read on this flow so far,
  };                           // modulo 2^32
  uint32_t check = 0;          // check_of() this header, as the flow that sends it sets it
};
static_assert(sizeof(FrameHeader) == 48, "the header travels as it lies in memory");

inline constexpr size_t kHeaderBytes = sizeof(FrameHeader);

// kData: there is no payload; this contributor adds nothing, but may still want the result.
// kResult: there is no payload; the contributor did not want the result.
inline constexpr uint8_t kFlagEmpty = 1;
// kData: send the result's payload back.
inline constexpr uint8_t kFlagWant = 2;
// kData: the server adopts the credit field, which comes from the group's credit controller.
inline constexpr uint8_t kFlagSteers = 4;
// kResult: the payload is lent; the server keeps it until the worker has taken it.
inline constexpr uint8_t kFlagLent = 8;
// kResult, kLeaveGroup: the group is called off. The credit of such a result comes back, but the
// operation has failed.
inline constexpr uint8_t kFlagCalledOff = 16;
// kData: the payload is the result, which another worker may lack because its server has died.
inline constexpr uint8_t kFlagGives = 32;
// kResult: this server no longer stands in for the segments' home, so it has no result for them.
inline constexpr uint8_t kFlagMoved = 64;
// kGo, kReply, kOpError: the answer to a send or a receive that has met its counterpart. Its number
// is the ID of that call.
inline constexpr uint8_t kFlagMet = 128;
// kGroup: other servers know the group already, so this one answers without waiting for the other
// members.
inline constexpr uint8_t kFlagFormed = 32;

// The largest payload of any frame. Most receivers expect far less, and check that before they
// touch memory. There is room for the largest `frame_max` and `small_bytes`, and for the fields
// that precede a payload.
inline constexpr uint32_t kMaxPayload = 96u << 20;
// Messages of the control plane have at most this size.
inline constexpr uint32_t kMaxControlPayload = 16u << 20;

// Returns the check of a header that is the `number`-th on its connection, from 1 on. A header that
// differs in up to 32 adjacent bits of one field, or in its number alone, always has another check.
// So a frame that was changed, repeated or lost on its way does no harm.
uint32_t check_of(const FrameHeader& header, uint64_t number);

// Returns false for a header that no peer would send: an unknown type or impossible counts.
bool plausible(const FrameHeader& header);

}  // namespace herring::wire
