#include "transport/tcp/flow.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "transport/tcp/page_pipe.h"

namespace herring::transport::tcp {
namespace {

msghdr message_of(const iovec* pieces, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = count;
  return message;
}

}  // namespace

TcpFlow::TcpFlow(DescriptorLoop& loop, GuardedFd fd, FlowHandler& handler, std::string peer)
    : StreamFlow(loop, handler, std::move(peer)),
      fd_(std::move(fd)),
      number_(fd_.get()),
      loop_(loop),
      interest_(kForReading) {
  loop_.add(number_, interest_, this);
}

TcpFlow::~TcpFlow() {
  if (fd_.valid()) loop_.remove(number_);
}

void TcpFlow::on_ready(uint32_t readiness) {
  if (readiness & kForWriting) on_writable();
  if (readiness & kForReading) on_readable();
}

ssize_t TcpFlow::read(const iovec* pieces, int count) {
  msghdr message = message_of(pieces, count);
  return recvmsg(number_, &message, MSG_DONTWAIT);
}

ssize_t TcpFlow::write(const iovec* pieces, int count) {
  const msghdr message = message_of(pieces, count);
  return sendmsg(number_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t TcpFlow::write_more(const char* data, size_t bytes) {
  return ::send(number_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
}

ssize_t TcpFlow::write_lent(iovec* pieces, int count, bool more_follows) {
  thread_local PagePipe pipe;
  return pipe.send(number_, pieces, count, more_follows);
}

void TcpFlow::want_writable(bool wanted) {
  const uint32_t interest = kForReading | (wanted ? kForWriting : 0u);
  if (std::exchange(interest_, interest) != interest) loop_.modify(number_, interest);
}

bool TcpFlow::end_writing() { return shutdown(number_, SHUT_WR) == 0; }

void TcpFlow::shut(bool drop) {
  if (drop) {
    // Otherwise the system would go on sending lent pages, whatever they contain by then.
    const linger at_once{1, 0};
    setsockopt(number_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  loop_.remove(number_);
  fd_.reset();
}

PathInfo TcpFlow::path_info() const {
  tcp_info info{};
  socklen_t length = sizeof(info);
  PathInfo path;
  if (closed() || getsockopt(number_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return path;
  path.retransmits = info.tcpi_total_retrans;
  path.spurious = info.tcpi_dsack_dups;
  path.rtt = static_cast<Nanos>(info.tcpi_rtt) * kMicrosecond;
  path.min_rtt = static_cast<Nanos>(info.tcpi_min_rtt) * kMicrosecond;
  // If the local link is down, no packet is on its way, but unsent bytes wait for the link.
  path.unacknowledged = info.tcpi_unacked + (info.tcpi_notsent_bytes > 0 ? 1 : 0);
  path.acknowledged_ago = static_cast<Nanos>(info.tcpi_last_ack_recv) * kMillisecond;
  return path;
}

}  // namespace herring::transport::tcp
