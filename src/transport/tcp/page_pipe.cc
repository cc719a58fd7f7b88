#include "transport/tcp/page_pipe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace herring::transport::tcp {
namespace {

// A larger pipe gains little, and an unprivileged user may have only 64 MiB of pipes in all.
constexpr int kPipeBytes = 256 << 10;

}  // namespace

bool PagePipe::ready() {
  if (!usable_ || out_.valid()) return usable_;
  ForkSection section;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return usable_ = false;
  out_ = GuardedFd(UniqueFd(ends[0]));
  in_ = GuardedFd(UniqueFd(ends[1]));
  fcntl(in_.get(), F_SETPIPE_SZ, kPipeBytes);  // a smaller pipe works, too
  return true;
}

ssize_t PagePipe::send(int socket, iovec* pieces, int count, bool more) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  const ssize_t lent = ready() ? vmsplice(in_.get(), pieces, count, SPLICE_F_NONBLOCK) : -1;
  if (lent <= 0) {  // there is no pipe, or the pages of this memory cannot be lent
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
  }
  const bool follows = more || static_cast<size_t>(lent) < bytes;
  ssize_t sent = splice(out_.get(), nullptr, socket, nullptr, static_cast<size_t>(lent),
                              SPLICE_F_NONBLOCK | (follows ? SPLICE_F_MORE : 0));
  if (sent < lent) {  // the socket is full or gone: drop what it did not take with the pipe
    const int error = sent < 0 ? errno : EAGAIN;
    if (sent == 0) sent = -1;
    out_.reset();
    in_.reset();
    errno = error;
  }
  return sent;
}

}  // namespace herring::transport::tcp
