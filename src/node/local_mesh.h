// How the workers of one node find each other: every worker listens on a socket with a random
// abstract name (nothing in the file system), passes name and token through the rendezvous, and
// connects to every lower local rank. A connector proves that it was told by presenting the
// listener's token, the listener answers with the connector's; both must run as the same user.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/status.h"

namespace herring {

// What one worker publishes. The token admits to its node's shared memory: pass it on over
// authenticated connections only.
struct LocalAddress {
  std::string name;  // without the leading NUL of abstract addresses
  std::array<uint8_t, 16> token{};
};

class LocalListener {
 public:
  static Result<LocalListener> open();

  const LocalAddress& address() const { return address_; }

  // One connected SOCK_SEQPACKET socket per peer, non-blocking, by local rank (none at our own).
  // `peers` holds every address of the node, ours at `local_rank`. Blocks until the mesh is
  // complete, `deadline` (monotonic_now()) passes, the thread is interrupted (base/interrupt.h), or
  // `given_up` has an error. Closes the listener in any case.
  // kTimeout names the missing ranks; kAuthentication: another user, or a wrong token; kPeerLost: a
  // listener is gone; kMismatch: a peer believes in another node or speaks another version.
  Result<std::vector<GuardedFd>> connect_all(uint32_t local_rank,
                                             const std::vector<LocalAddress>& peers,
                                             Nanos deadline,
                                             const std::function<Status()>& given_up = {});

 private:
  LocalAddress address_;
  GuardedFd fd_;
};

}  // namespace herring
