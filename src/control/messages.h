// Payloads of control frames. Decoders check every length and index; what they return can be used
// as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/settings.h"
#include "control/cluster.h"
#include "control/member.h"

namespace herring::control {

inline constexpr size_t kMaxSettings = 64;
inline constexpr size_t kMaxIdentityBytes = 1024;  // host id, bus address, host name
inline constexpr size_t kMaxTextBytes = 16384;     // of a message for people

// kRegister, member -> rendezvous.
struct Registration {
  std::variant<WorkerRegistration, ServerRegistration> what;
  int64_t pid = 0;
  Nanos patience = 0;  // how long this member will still wait for the others
};
// kConfiguration when it is larger than what the rendezvous accepts.
Status check_limits(const WorkerRegistration& registration);
std::string encode(const Registration& registration);
Result<Registration> decode_registration(std::string_view payload);

// kCluster (servers still missing) and kReady, rendezvous -> member.
// Of the workers' local addresses a receiver gets those of its own node, the others stay empty.
struct ClusterMessage {
  bool start_server = false;  // kCluster: this worker must start its node's server
  uint32_t index = 0;         // the receiver's rank or server index
  Cluster cluster;
};
// What differs between receivers comes first: the rest is encoded once for all. `ranks`: whose
// local addresses it gets.
std::string encode_own(bool start_server, uint32_t index, const Cluster& cluster,
                       const std::vector<uint32_t>& ranks);
std::string encode_common(const Cluster& cluster);
std::string encode(const ClusterMessage& message);  // both, with all local addresses
Result<ClusterMessage> decode_cluster(std::string_view payload);

// kHeartbeat, rendezvous -> member: how often it wants to hear, and when it gives up. The other
// way it is empty.
struct Rhythm {
  Nanos interval = 0, timeout = 0;
};
Status check_rhythm(const Rhythm& rhythm);
std::string encode(const Rhythm& rhythm);
Result<Rhythm> decode_rhythm(std::string_view payload);

// kPeerLost, rendezvous -> member. Of those who left the text is empty: there is nothing else to
// say. The losses' own epochs do not travel: they end with that of the notice.
struct LossNotice {
  uint32_t epoch = 0;  // of the membership without all of these
  std::vector<Loss> losses;
};
std::string encode(const LossNotice& notice);
Result<LossNotice> decode_losses(std::string_view payload);
// Whether it is the next notice for who has heard of everything up to `epoch`: none is missing in
// between, and none comes again.
Status check_next(const LossNotice& notice, uint32_t epoch);

// kAbort, both ways: an error for everybody. Cuts the text to kMaxTextBytes. From a process that
// has not registered: it cannot take part, and says why. With the flag, to a member that registers:
// an earlier job of the same processes has not ended yet, come again.
inline constexpr uint8_t kFlagAgain = 1;
std::string encode(const Status& why);
Status decode_abort(std::string_view payload, Status& why);

// kGoodbye. From a member: it leaves. To a member: understood, or one of these flags.
inline constexpr uint8_t kFlagEnd = 1;   // all workers are gone: servers end
inline constexpr uint8_t kFlagStop = 2;  // the rendezvous ends, though members remain

}  // namespace herring::control
