#include "tests/connections/faulty.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "transport/tcp/flow.h"
#include "transport/tcp/socket.h"

namespace herring::connections_test {

using transport::DescriptorLoop;
using transport::EventLoop;
using transport::tcp::Socket;

namespace {

// A socket that takes nothing for this long holds up the test.
constexpr int kPatienceMs = 10'000;

class FaultyFlow final : public transport::tcp::TcpFlow {
 public:
  FaultyFlow(DescriptorLoop& loop, Socket socket, transport::FlowHandler& handler,
             std::string peer, std::shared_ptr<Track> track, Sockets& sockets)
      : TcpFlow(loop, std::move(socket), handler, std::move(peer)),
        loop_(loop), track_(std::move(track)), sockets_(sockets) {
    sockets_.add(number());
  }
  ~FaultyFlow() override {
    if (timer_ != 0) loop_.cancel(timer_);
    if (!closed()) sockets_.remove(number());
  }

 private:
  ssize_t write(const iovec* pieces, int count) override {
    return pass(pieces, count, [this](const iovec* some, int n) {
      return TcpFlow::write(some, n);
    });
  }
  ssize_t write_more(const char* data, size_t bytes) override {
    const iovec piece{const_cast<char*>(data), bytes};
    return pass(&piece, 1, [this](const iovec* some, int n) {
      ssize_t sent = 0;
      for (int i = 0; i < n; ++i) {
        const ssize_t one =
            TcpFlow::write_more(static_cast<const char*>(some[i].iov_base), some[i].iov_len);
        if (one < 0) return sent > 0 ? sent : one;
        sent += one;
        if (static_cast<size_t>(one) < some[i].iov_len) break;
      }
      return sent;
    });
  }
  ssize_t write_lent(iovec* pieces, int count, bool more_follows) override {
    return pass(pieces, count, [&](const iovec* some, int n) {
      std::vector<iovec> own(some, some + n);
      return TcpFlow::write_lent(own.data(), n, more_follows);
    });
  }
  void want_writable(bool wanted) override {
    wanted_ = wanted;
    TcpFlow::want_writable(wanted && timer_ == 0);
  }
  void shut(bool drop) override {
    if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
    sockets_.remove(number());
    TcpFlow::shut(drop);
  }

  // Writes frame by frame, so that the fault meets exactly one of them.
  template <typename Send>
  ssize_t pass(const iovec* pieces, int count, const Send& send) {
    size_t total = 0, all = 0;
    for (int i = 0; i < count; ++i) all += pieces[i].iov_len;
    while (total < all) {
      if (timer_ != 0) break;
      if (at_ == 0) begin(pieces, count, total);
      if (timer_ != 0) break;
      const size_t most = std::min(all - total, limit() - at_);
      const ssize_t sent = most == 0 ? 0 : send_part(pieces, count, total, most, send);
      if (sent < 0) return total > 0 ? static_cast<ssize_t>(total) : sent;
      total += static_cast<size_t>(sent);
      at_ += static_cast<size_t>(sent);
      const bool whole = at_ == limit();
      if (whole) end();
      if (!whole && static_cast<size_t>(sent) < most) break;
    }
    if (total > 0 || all == 0) return static_cast<ssize_t>(total);
    errno = EAGAIN;
    return -1;
  }

  // Returns how much of the current frame is written.
  size_t limit() const {
    const bool cut = struck_ && track_->fault.kind == Kind::kTruncate;
    return cut ? std::min(size_ - 1, 1 + track_->fault.cut_at % (size_ - 1)) : size_;
  }

  // A frame begins with the bytes at `offset`, its header at least.
  void begin(const iovec* pieces, int count, size_t offset) {
    if (!passed_) {
      int i = 0;
      for (; i < count && offset >= pieces[i].iov_len; ++i) offset -= pieces[i].iov_len;
      std::memcpy(&header_, static_cast<const char*>(pieces[i].iov_base) + offset,
                  sizeof(header_));
      size_ = sizeof(header_) + header_.payload;
      struck_ = ++track_->frames == track_->fault.frame;
      if (struck_) strike();
    }
    passed_ = false;
  }

  void strike() {
    {
      std::lock_guard lock(track_->mutex);
      track_->what = concat(wire::name_of(header_.type), " frame ", track_->fault.frame, " of ",
                            header_.payload, " bytes");
    }
    track_->struck = monotonic_now();
    switch (track_->fault.kind) {
      case Kind::kDrop: ::shutdown(number(), SHUT_RDWR); break;
      case Kind::kReset: {
        const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
        ::connect(number(), &none, sizeof(none));
        break;
      }
      case Kind::kDelay:
        passed_ = true;  // the next time
        timer_ = loop_.call_after(track_->fault.delay, [this] {
          timer_ = 0;
          if (wanted_) TcpFlow::want_writable(true);
          on_writable();
        });
        break;
      case Kind::kCorrupt: {
        const size_t bit = track_->fault.bit % (8 * sizeof(header_));
        reinterpret_cast<char*>(&header_)[bit / 8] ^= static_cast<char>(1 << bit % 8);
        break;
      }
      case Kind::kCut: sockets_.silence(number()); break;
      case Kind::kTruncate:
      case Kind::kDuplicate: break;
    }
  }

  // Sends at most `most` bytes from `offset` on, all of the current frame.
  template <typename Send>
  ssize_t send_part(const iovec* pieces, int count, size_t offset, size_t most, const Send& send) {
    std::vector<iovec> part;
    if (struck_ && track_->fault.kind == Kind::kCorrupt && at_ < sizeof(header_)) {
      const size_t some = std::min(most, sizeof(header_) - at_);
      part.push_back({reinterpret_cast<char*>(&header_) + at_, some});
      offset += some;
      most -= some;
    }
    for (int i = 0; i < count && most > 0; ++i) {
      const size_t skipped = std::min(offset, pieces[i].iov_len);
      offset -= skipped;
      const size_t some = std::min(most, pieces[i].iov_len - skipped);
      if (some > 0) part.push_back({static_cast<char*>(pieces[i].iov_base) + skipped, some});
      most -= some;
    }
    const ssize_t sent = send(part.data(), static_cast<int>(part.size()));
    if (sent > 0 && struck_ && track_->fault.kind == Kind::kDuplicate) {
      size_t left = static_cast<size_t>(sent);
      for (const iovec& one : part) {
        const size_t some = std::min(left, one.iov_len);
        copy_.append(static_cast<const char*>(one.iov_base), some);
        left -= some;
      }
    }
    return sent;
  }

  // All of the frame that is to be written has been.
  void end() {
    if (struck_ && track_->fault.kind == Kind::kTruncate) ::shutdown(number(), SHUT_RDWR);
    if (struck_ && track_->fault.kind == Kind::kDuplicate) send_copy();
    if (at_ == size_) {
      at_ = 0;
      struck_ = false;
    } else {
      size_ = SIZE_MAX;  // whatever follows is refused by the system
      struck_ = false;
    }
  }

  void send_copy() {
    for (size_t done = 0; done < copy_.size();) {
      const iovec piece{copy_.data() + done, copy_.size() - done};
      const ssize_t sent = TcpFlow::write(&piece, 1);
      if (sent > 0) {
        done += static_cast<size_t>(sent);
        continue;
      }
      if (errno != EAGAIN && errno != EINTR) return;
      pollfd waits{number(), POLLOUT, 0};
      if (::poll(&waits, 1, kPatienceMs) == 0) return;
    }
  }

  DescriptorLoop& loop_;
  const std::shared_ptr<Track> track_;
  Sockets& sockets_;
  wire::FrameHeader header_;      // of the current frame, as it is sent
  size_t size_ = 0, at_ = 0;      // of the current frame: its bytes, and those that were written
  bool struck_ = false;           // the fault meets the current frame
  bool passed_ = false;           // the frame that begins was seen before
  std::string copy_;              // kDuplicate
  EventLoop::TimerId timer_ = 0;  // kDelay: nothing is written until then
  bool wanted_ = false;
};

class FaultyConnection final : public transport::Connection {
 public:
  FaultyConnection(Socket socket, std::string peer, std::shared_ptr<Track> track,
                   Sockets& sockets)
      : socket_(std::move(socket)), peer_(std::move(peer)), track_(std::move(track)),
        sockets_(sockets) {}
  std::unique_ptr<transport::Flow> open(EventLoop& loop, transport::FlowHandler& handler,
                                        transport::Traffic traffic) override {
    transport::tcp::prepare(socket_.get(), traffic);
    return std::make_unique<FaultyFlow>(DescriptorLoop::of(loop), std::move(socket_), handler,
                                        std::move(peer_), std::move(track_), sockets_);
  }

 private:
  Socket socket_;
  std::string peer_;
  std::shared_ptr<Track> track_;
  Sockets& sockets_;
};

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"drop",      "reset",   "truncate", "delay",
                                    "duplicate", "corrupt", "cut"};
  return kNames[static_cast<size_t>(kind)];
}

void Sockets::add(int socket) {
  std::lock_guard lock(mutex_);
  all_.insert(socket);
}

void Sockets::remove(int socket) {
  std::lock_guard lock(mutex_);
  all_.erase(socket);
}

// A filter that accepts nothing discards packets before their acknowledgements are read.
void Sockets::silence(int socket) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog filter{1, &nothing};
  const auto discard = [&filter](int one) {
    setsockopt(one, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
  };
  std::lock_guard lock(mutex_);
  const auto here = transport::tcp::local_address(socket);
  if (!here.ok()) return;
  for (const int other : all_) {
    const auto peer = transport::tcp::peer_address(other);
    if (peer.ok() && peer->to_string() == here->to_string()) discard(other);
  }
  discard(socket);
}

std::shared_ptr<Track> FaultyTransport::track(Line line) {
  std::lock_guard lock(mutex_);
  auto& track = tracks_[line];
  if (track == nullptr) track = std::make_shared<Track>();
  return track;
}

Result<std::unique_ptr<transport::Listener>> FaultyTransport::listen(
    EventLoop& loop, const transport::Address& address, transport::Credentials credentials,
    Admit admit, Accepted accepted) {
  auto listener = TcpTransport::listen(loop, address, std::move(credentials), std::move(admit),
                                       std::move(accepted));
  if (listener.ok()) {
    std::lock_guard lock(mutex_);
    ports_.insert((*listener)->address().port);
  }
  return listener;
}

std::unique_ptr<transport::Connection> FaultyTransport::make_connection(
    Socket socket, std::string peer, const wire::Hello& hello) {
  const auto here = transport::tcp::local_address(socket.get());
  Line line;
  {
    std::lock_guard lock(mutex_);
    line.accepted = here.ok() && ports_.contains(here->port);
    line.number = line.accepted ? hello.rank : made_++;
  }
  return std::make_unique<FaultyConnection>(std::move(socket), std::move(peer), track(line),
                                            sockets_);
}

}  // namespace herring::connections_test
