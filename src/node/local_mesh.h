// Connects the workers of one node. Every worker listens on a socket with a random abstract name,
// which is not in the file system. It passes its name and a token through the rendezvous and
// connects to every lower local rank. A connecting worker presents the listener's token to prove
// that it was told. The listener answers with the token of the connecting worker. Both must run as
// the same user.
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

// The address that one worker publishes. The token gives access to its node's shared memory, so it
// must be passed on only over authenticated connections.
struct LocalAddress {
  std::string name;  // without the leading NUL of abstract addresses
  std::array<uint8_t, 16> token{};
};

class LocalListener {
 public:
  static Result<LocalListener> open();

  const LocalAddress& address() const { return address_; }

  // Returns one connected, non-blocking SOCK_SEQPACKET socket per peer, by local rank (none for
  // this worker). `peers` holds the addresses of all workers on the node, including this one at
  // `local_rank`. Blocks until the mesh is complete, `deadline` (monotonic_now()) passes, the
  // thread is interrupted (base/interrupt.h), or `given_up` returns an error. Closes the listener
  // in any case.
  // Errors: kTimeout names the missing ranks. kAuthentication: another user, or a wrong token.
  // kPeerLost: a listener is gone. kMismatch: a peer expects another node or speaks another
  // version.
  Result<std::vector<GuardedFd>> connect_all(uint32_t local_rank,
                                             const std::vector<LocalAddress>& peers,
                                             Nanos deadline,
                                             const std::function<Status()>& given_up = {});

 private:
  LocalAddress address_;
  GuardedFd fd_;
};

}  // namespace herring
