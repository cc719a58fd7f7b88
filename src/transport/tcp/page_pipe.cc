#include "transport/tcp/page_pipe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace herring::transport::tcp {
namespace {

// More gains little, and an unprivileged user may have 64 MiB of pipes in all.
constexpr int kPipeBytes = 256 << 10;

}  // namespace

bool PagePipe::ready() {
  if (!usable_ || out_.valid()) return usable_;
  ForkSection section;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return usable_ = false;
  out_ = GuardedFd(UniqueFd(ends[0]));
  in_ = GuardedFd(UniqueFd(ends[1]));
  fcntl(in_.get(), F_SETPIPE_SZ, kPipeBytes);  // a smaller pipe works too
  return true;
}

ssize_t PagePipe::send(int socket, const char* data, size_t bytes, bool more) {
  iovec piece{const_cast<char*>(data), bytes};
  const ssize_t lent = ready() ? vmsplice(in_.get(), &piece, 1, SPLICE_F_NONBLOCK) : -1;
  if (lent <= 0) {  // no pipe, or memory whose pages cannot be lent
    return ::send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
  }
  const bool follows = more || static_cast<size_t>(lent) < bytes;
  const ssize_t sent = splice(out_.get(), nullptr, socket, nullptr, static_cast<size_t>(lent),
                              SPLICE_F_NONBLOCK | (follows ? SPLICE_F_MORE : 0));
  if (sent < lent) {  // the socket is full or gone: what it did not take goes with the pipe
    const int error = errno;
    out_.reset();
    in_.reset();
    errno = error;
  }
  return sent;
}

}  // namespace herring::transport::tcp
