// Sends memory over a socket without copying it. Its pages go into a pipe (vmsplice) and from there
// into the socket's queue (splice). Unlike MSG_ZEROCOPY, this also saves the copy between network
// namespaces of one machine. Nobody has to be told when the pages are free again.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

#include "base/fork_guard.h"

namespace herring::transport::tcp {

// For use by one thread. The pipe is empty between calls, so one pipe serves any number of sockets.
// SIGPIPE must be blocked, because splice() has no MSG_NOSIGNAL.
class PagePipe {
 public:
  // Like sendmsg(): returns how many bytes of the pieces were sent, or -1 with errno. The memory
  // must not change until the other side is known to have read it. Copies if pages cannot be lent.
  // `more` says that something follows at once.
  ssize_t send(int socket, iovec* pieces, int count, bool more);

 private:
  bool ready();

  GuardedFd out_, in_;
  bool usable_ = true;
};

}  // namespace herring::transport::tcp
