#include "node/local_mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/interrupt.h"
#include "base/lists.h"

namespace herring {
namespace {

constexpr uint32_t kMagic = 0x4c475248;  // "HRGL"
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxWorkers = 1 << 16;
// Strangers of the same user may connect and send nothing. Beyond this number, the oldest is
// dropped.
constexpr size_t kMaxPending = 256;
constexpr int kRetryMs = 5;  // a full backlog gives no event to wait for

enum class Answer : uint32_t { kWelcome = 0, kVersion, kNode, kRefused };

// The first packet in either direction. Both ends run on one machine, so it has host byte order.
struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t local_size = 0;
  Answer answer = Answer::kWelcome;
  std::array<uint8_t, 16> token{};  // the receiver's
};
static_assert(sizeof(Hello) == 40);

bool same_token(const std::array<uint8_t, 16>& a, const std::array<uint8_t, 16>& b) {
  uint8_t difference = 0;  // looks at every byte, so that time does not reveal the first wrong one
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

Status system_error(std::string_view what) {
  return Status(Code::kInternal, concat("node: ", what, ": ", std::strerror(errno)));
}

bool fill_random(void* out, size_t bytes) {
  // Up to 256 bytes are returned in full and without interruption.
  return ::getrandom(out, bytes, 0) == static_cast<ssize_t>(bytes);
}

// Returns false if the name does not fit into an abstract address.
bool make_address(const std::string& name, sockaddr_un* address, socklen_t* length) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(address->sun_path)) return false;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return true;
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

bool send_hello(int fd, const Hello& hello) {
  ssize_t n;
  do {
    n = ::send(fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof(hello));
}

enum class Received { kHello, kNothingYet, kGarbage, kClosed };

Received receive_hello(int fd, Hello* hello) {
  ssize_t n;
  do {
    n = ::recv(fd, hello, sizeof(*hello), MSG_DONTWAIT | MSG_TRUNC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kNothingYet;
  if (n <= 0) return Received::kClosed;
  return n == static_cast<ssize_t>(sizeof(*hello)) && hello->magic == kMagic ? Received::kHello
                                                                             : Received::kGarbage;
}

// One call of connect_all(). Nothing here blocks except the poll in run().
class Mesh {
 public:
  Mesh(uint32_t local_rank, const std::vector<LocalAddress>& peers, int listener)
      : rank_(local_rank), peers_(peers), listener_(listener), connected_(peers.size()) {
    for (uint32_t r = 0; r < rank_; ++r) outgoing_.push_back({r, {}});
  }

  Result<std::vector<GuardedFd>> run(Nanos deadline, const std::function<Status()>& given_up) {
    const Nanos start = monotonic_now();
    for (;;) {
      bool retry = false;
      for (Outgoing& out : outgoing_) {
        if (!out.fd) HERRING_RETURN_IF_ERROR(dial(out));
        retry |= !out.fd;
      }
      if (missing_ == 0) return std::move(connected_);
      if (interrupted()) {
        return Status(Code::kShutdown, "node: connecting the local ranks was interrupted");
      }
      if (given_up) HERRING_RETURN_IF_ERROR(given_up());
      const Nanos left = deadline - monotonic_now();
      if (left <= 0) return timed_out(monotonic_now() - start);
      int wait_ms = static_cast<int>(
          (std::min(left, kInterruptInterval) + kMillisecond - 1) / kMillisecond);
      if (retry) wait_ms = std::min(wait_ms, kRetryMs);

      std::vector<pollfd> polled;
      polled.push_back({listener_, POLLIN, 0});
      for (const Outgoing& out : outgoing_) polled.push_back({out.fd.get(), POLLIN, 0});
      for (const GuardedFd& fd : pending_) polled.push_back({fd.get(), POLLIN, 0});
      if (::poll(polled.data(), polled.size(), wait_ms) < 0) {
        if (errno == EINTR) continue;
        return system_error("poll");
      }
      HERRING_RETURN_IF_ERROR(hear_outgoing());
      HERRING_RETURN_IF_ERROR(hear_pending());
      if (polled[0].revents != 0) HERRING_RETURN_IF_ERROR(accept_all());
    }
  }

 private:
  struct Outgoing {
    uint32_t to;
    GuardedFd fd;  // invalid until dialled
  };

  Hello hello_to(uint32_t peer) const {
    Hello hello;
    hello.from = rank_;
    hello.to = peer;
    hello.local_size = static_cast<uint32_t>(peers_.size());
    hello.token = peers_[peer].token;
    return hello;
  }

  Status dial(Outgoing& out) {
    sockaddr_un address;
    socklen_t length = 0;
    if (!make_address(peers_[out.to].name, &address, &length)) {
      return Status(Code::kInvalidArgument,
                    concat("node: local rank ", out.to, " published an unusable address"));
    }
    GuardedFd fd = GuardedFd::open(
        [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
    if (!fd) return system_error("socket");
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      if (errno == EAGAIN || errno == EINTR) return Status();  // the backlog is full: retry soon
      if (errno == ECONNREFUSED) {
        return Status(Code::kPeerLost,
                      concat("node: local rank ", out.to,
                             " does not listen: it has ended, or it runs in another network "
                             "namespace (then set another HERRING_HOST_ID there)"));
      }
      return system_error(concat("connecting to local rank ", out.to));
    }
    if (!same_user(fd.get())) {
      return Status(Code::kAuthentication,
                    concat("node: local rank ", out.to, " runs as another user"));
    }
    if (!send_hello(fd.get(), hello_to(out.to))) return lost(out.to);
    out.fd = std::move(fd);
    return Status();
  }

  Status refused(uint32_t peer) const {
    return Status(Code::kAuthentication,
                  concat("node: local ranks ", rank_, " and ", peer,
                         " do not know each other's published tokens"));
  }

  Status lost(uint32_t peer) const {
    return Status(Code::kPeerLost, concat("node: local rank ", peer,
                                          " closed its connection with local rank ", rank_,
                                          " while connecting"));
  }

  Status mismatch(uint32_t peer, const Hello& hello) const {
    if (hello.version != kVersion) {
      return Status(Code::kMismatch, concat("node: local rank ", peer, " speaks version ",
                                            hello.version, " of the node's protocol, local rank ",
                                            rank_, " version ", kVersion));
    }
    return Status(Code::kMismatch,
                  concat("node: local rank ", peer, " of ", peers_.size(), " says that it is ",
                         hello.from, " of ", hello.local_size));
  }

  Status hear_outgoing() {
    for (size_t i = 0; i < outgoing_.size();) {
      Outgoing& out = outgoing_[i];
      Hello hello;
      const Received what = out.fd ? receive_hello(out.fd.get(), &hello) : Received::kNothingYet;
      if (what == Received::kNothingYet) {
        ++i;
        continue;
      }
      if (what == Received::kClosed) return lost(out.to);
      if (what != Received::kHello || !same_token(hello.token, peers_[rank_].token)) {
        return refused(out.to);
      }
      if (hello.answer != Answer::kWelcome || hello.version != kVersion || hello.from != out.to ||
          hello.to != rank_ || hello.local_size != peers_.size()) {
        return mismatch(out.to, hello);
      }
      add(out.to, std::move(out.fd));
      outgoing_.erase(outgoing_.begin() + static_cast<ptrdiff_t>(i));
    }
    return Status();
  }

  Status hear_pending() {
    for (size_t i = 0; i < pending_.size();) {
      Hello hello;
      const Received what = receive_hello(pending_[i].get(), &hello);
      if (what == Received::kNothingYet) {
        ++i;
        continue;
      }
      GuardedFd fd = std::move(pending_[i]);
      pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
      // A stranger is dropped without effect on the others.
      if (what != Received::kHello) continue;
      if (!same_token(hello.token, peers_[rank_].token)) {
        Hello refusal;
        refusal.answer = Answer::kRefused;
        send_hello(fd.get(), refusal);
        continue;
      }
      const bool known = hello.from > rank_ && hello.from < peers_.size();
      Hello answer = hello_to(known ? hello.from : rank_);
      if (hello.version != kVersion) answer.answer = Answer::kVersion;
      if (!known || hello.to != rank_ || hello.local_size != peers_.size() ||
          connected_[hello.from]) {
        answer.answer = Answer::kNode;
      }
      const bool sent = send_hello(fd.get(), answer);
      if (answer.answer != Answer::kWelcome) return mismatch(hello.from, hello);
      if (!sent) return lost(hello.from);
      add(hello.from, std::move(fd));
    }
    return Status();
  }

  Status accept_all() {
    for (;;) {
      GuardedFd fd = GuardedFd::open([this] {
        return ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      });
      if (!fd) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return system_error("accept");
      }
      if (!same_user(fd.get())) continue;
      if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
      pending_.push_back(std::move(fd));
    }
  }

  void add(uint32_t peer, GuardedFd fd) {
    connected_[peer] = std::move(fd);
    --missing_;
  }

  Status timed_out(Nanos waited) const {
    std::vector<uint32_t> missing;
    for (uint32_t r = 0; r < peers_.size(); ++r) {
      if (r != rank_ && !connected_[r]) missing.push_back(r);
    }
    return Status(Code::kTimeout,
                  concat("node: local rank ", rank_, " waited ", in_seconds(waited),
                         " for a connection with local ranks ", list_numbers(missing), " of ",
                         peers_.size()));
  }

  const uint32_t rank_;
  const std::vector<LocalAddress>& peers_;
  const int listener_;
  std::vector<GuardedFd> connected_;
  std::vector<Outgoing> outgoing_;  // welcome not yet received
  std::vector<GuardedFd> pending_;  // accepted, hello not yet received
  size_t missing_ = peers_.size() - 1;
};

}  // namespace

Result<LocalListener> LocalListener::open() {
  LocalListener listener;
  std::array<uint8_t, 16> name;
  if (!fill_random(name.data(), name.size()) ||
      !fill_random(listener.address_.token.data(), listener.address_.token.size())) {
    return system_error("getrandom");
  }
  listener.address_.name = "herring-";
  for (uint8_t byte : name) {
    listener.address_.name += "0123456789abcdef"[byte >> 4];
    listener.address_.name += "0123456789abcdef"[byte & 15];
  }
  listener.fd_ = GuardedFd::open(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!listener.fd_) return system_error("socket");
  sockaddr_un address;
  socklen_t length = 0;
  make_address(listener.address_.name, &address, &length);
  if (::bind(listener.fd_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return system_error("bind");
  }
  if (::listen(listener.fd_.get(), SOMAXCONN) != 0) return system_error("listen");
  return listener;
}

Result<std::vector<GuardedFd>> LocalListener::connect_all(uint32_t local_rank,
                                                          const std::vector<LocalAddress>& peers,
                                                          Nanos deadline,
                                                          const std::function<Status()>& given_up) {
  GuardedFd listener = std::move(fd_);
  if (!listener) return defect("node: the listener was used before");
  if (peers.size() > kMaxWorkers || local_rank >= peers.size() ||
      peers[local_rank].name != address_.name) {
    return Status(Code::kInvalidArgument, concat("node: local rank ", local_rank, " of ",
                                                 peers.size(), " is not the place of this worker"));
  }
  return Mesh(local_rank, peers, listener.get()).run(deadline, given_up);
}

}  // namespace herring
