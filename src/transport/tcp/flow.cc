#include "transport/tcp/flow.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "transport/tcp/page_pipe.h"

namespace herring::transport::tcp {

TcpFlow::TcpFlow(DescriptorLoop& loop, Socket socket, FlowHandler& handler, std::string peer)
    : StreamFlow(loop, handler, std::move(peer)),
      socket_(std::move(socket)),
      number_(socket_.get()),
      loop_(loop),
      interest_(kForReading) {
  loop_.add(number_, interest_, this);
  read_again_if_held();
}

TcpFlow::~TcpFlow() {
  if (again_ != 0) loop_.cancel(again_);
  if (socket_.valid()) loop_.remove(number_);
}

void TcpFlow::on_ready(uint32_t readiness) {
  if (readiness & kForWriting) on_writable();
  if (readiness & kForReading) {
    on_readable();
    read_again_if_held();
  }
}

// The loop does not report what TLS has taken from the system ahead of its use.
void TcpFlow::read_again_if_held() {
  if (!socket_.holds() || again_ != 0) return;
  again_ = loop_.call_after(0, [this] {
    again_ = 0;
    on_ready(kForReading);
  });
}

ssize_t TcpFlow::read(const iovec* pieces, int count) { return socket_.read(pieces, count); }

ssize_t TcpFlow::write(const iovec* pieces, int count) { return socket_.write(pieces, count); }

std::string TcpFlow::describe(int error) const {
  if (error != EBADMSG || socket_.tls() == nullptr) return StreamFlow::describe(error);
  return concat("what arrived is not what was sent (TLS: ", socket_.tls()->reason(), ")");
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

bool TcpFlow::end_writing() { return socket_.end_writing(); }

void TcpFlow::shut(bool drop) {
  if (drop) {
    // Otherwise the system would go on sending lent pages, whatever they contain by then.
    const linger at_once{1, 0};
    setsockopt(number_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  } else if (socket_.tls() != nullptr) {
    socket_.tls()->finish();
  }
  if (again_ != 0) loop_.cancel(std::exchange(again_, 0));
  loop_.remove(number_);
  socket_.reset();
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
