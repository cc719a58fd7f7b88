// Payloads of control frames. Decoders check every length and index, so what they return can be
// used as it is.
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
inline constexpr size_t kMaxIdentityBytes = 1024;  // limit for host id, bus address and host name
inline constexpr size_t kMaxHostNameBytes = 255;
inline constexpr size_t kMaxTextBytes = 16384;     // limit for a message for people

// kRegister, member -> rendezvous.
struct Registration {
  std::variant<WorkerRegistration, ServerRegistration> what;
  int64_t pid = 0;
  Nanos patience = 0;  // how long this member will still wait for the others
  // What the member's system calls itself, for people and metrics. Once decoded, it has letters,
  // digits, dots, underscores and hyphens only, or is empty.
  std::string host_name = {};
};
// Returns kConfiguration if the registration is larger than what the rendezvous accepts.
Status check_limits(const WorkerRegistration& registration);
std::string encode(const Registration& registration);
Result<Registration> decode_registration(std::string_view payload);

// kCluster (servers still missing) and kReady, rendezvous -> member. A receiver gets the local
// addresses of the workers of its own node; those of other workers stay empty.
struct ClusterMessage {
  bool start_server = false;  // kCluster: this worker must start its node's server
  uint32_t index = 0;         // the receiver's rank or server index
  Cluster cluster;
  std::vector<Loss> gone;     // before the receiver came, as a replacement; without texts
};
// What differs between receivers comes first, so that the rest is encoded once for all. `ranks` are
// the workers whose local addresses the receiver gets.
std::string encode_own(bool start_server, uint32_t index, const Cluster& cluster,
                       const std::vector<uint32_t>& ranks, const std::vector<Loss>& gone = {});
std::string encode_common(const Cluster& cluster);
std::string encode(const ClusterMessage& message);  // both parts, with all local addresses
Result<ClusterMessage> decode_cluster(std::string_view payload);

// kHeartbeat, rendezvous -> member: how often the rendezvous wants to hear from the member, and
// when it gives up. With the last three times, the member compares the clocks of both processes.
struct Rhythm {
  Nanos interval = 0, timeout = 0;
  Nanos echo = 0;      // `sent` of the member's latest heartbeat; 0: none yet
  Nanos received = 0;  // when that heartbeat came, in the clock of the rendezvous
  Nanos sent = 0;      // when this message was sent, in the clock of the rendezvous
};
Status check_rhythm(const Rhythm& rhythm);
std::string encode(const Rhythm& rhythm);
Result<Rhythm> decode_rhythm(std::string_view payload);

// kHeartbeat, member -> rendezvous.
struct Beat {
  Nanos sent = 0;  // in the member's clock
};
std::string encode(const Beat& beat);
Result<Beat> decode_beat(std::string_view payload);

// kPeerLost, rendezvous -> member. The text is empty for processes that have left, since there is
// nothing else to say. The epochs of the losses are not sent: they end with that of the notice.
struct LossNotice {
  uint32_t epoch = 0;  // of the membership without all of these
  std::vector<Loss> losses;
};
std::string encode(const LossNotice& notice);
Result<LossNotice> decode_losses(std::string_view payload);
// Checks that this is the next notice for a member that has heard of everything up to `epoch`: no
// notice is missing in between, and none is repeated.
Status check_next(const LossNotice& notice, uint32_t epoch);

// kServerNews, rendezvous -> member.
std::string encode(const Replacement& replacement);
Result<Replacement> decode_replacement(std::string_view payload);

// kServerNews, member -> rendezvous: whether the member can reach a dedicated server. A replacement
// says with it that it is ready to serve.
struct ServerReport {
  uint32_t server = 0;
  uint32_t number = 0;  // of the replacement; 0: the server of the job's start
  bool reachable = false;
  std::string text;     // if not: why
};
std::string encode(const ServerReport& report);
Result<ServerReport> decode_server_report(std::string_view payload);

// kAbort, both directions: an error for all processes. The text is cut to kMaxTextBytes. A process
// that has not registered says with it that it cannot take part, and why. With the flag, it tells a
// registering member to come again, because an earlier job of the same processes has not ended yet.
// Text that begins with kGivenUp is for one dedicated server, without which the job goes on. Text
// that begins with kDeadlock comes from no process: the rendezvous has found it.
// With the second flag, a worker says that only its own part of the job has ended: the others fail
// only if they need it.
inline constexpr uint8_t kFlagAgain = 1;
inline constexpr uint8_t kFlagPart = 2;
inline constexpr std::string_view kGivenUp =
    "this server is given up, and the job goes on without it: ";
inline constexpr std::string_view kDeadlock = "deadlock: ";
std::string encode(const Status& why);
Status decode_abort(std::string_view payload, Status& why);
// Returns the error of a process that is told to give up for this reason.
Status told_to_end(const Status& why);

// kRecord. From a member, with the first flag: nobody has asked, but it has failed. To a member,
// with the second flag: text that says where the record of all members is written.
inline constexpr uint8_t kFlagFailed = 1;
inline constexpr uint8_t kFlagPlace = 2;
// kTimeline, to a member: entries are wanted from now on; without the first flag, no more. From a
// member, with the second flag: these are its last ones.
inline constexpr uint8_t kFlagWanted = 1;
inline constexpr uint8_t kFlagLast = 2;

// kGoodbye. From a member: it leaves. To a member: an acknowledgement, or one of these flags.
inline constexpr uint8_t kFlagEnd = 1;   // all workers are gone, so servers end
inline constexpr uint8_t kFlagStop = 2;  // the rendezvous ends although members remain

}  // namespace herring::control
