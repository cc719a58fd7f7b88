#include "node/local_bus.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace herring {
namespace {

// kAnnounce carries the descriptors of `region`, and its size in `bytes`.
constexpr uint8_t kAnnounce = kFirstReservedKind;
constexpr uint8_t kRelease = kFirstReservedKind + 1;
constexpr uint8_t kGoodbye = kFirstReservedKind + 2;

constexpr size_t kControlBytes = CMSG_SPACE(SharedRegion::kMostFiles * sizeof(int));

// Returns the descriptors that came with a packet; none if the kernel had to drop any.
std::vector<UniqueFd> passed_fds(msghdr* header) {
  std::vector<UniqueFd> passed;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
      passed.emplace_back(fd);
    }
  }
  if ((header->msg_flags & MSG_CTRUNC) != 0) passed.clear();
  return passed;
}

}  // namespace

struct LocalBus::ReadBuffers {
  // One byte more than the longest packet, so that a longer one is noticed.
  static constexpr size_t kBytes = kMessagesPerPacket * sizeof(LocalMessage) + 1;
  std::array<std::array<char, kBytes>, kPacketsPerRead> data;
  std::array<std::array<char, kControlBytes>, kPacketsPerRead> control;
  std::array<iovec, kPacketsPerRead> parts;
  std::array<mmsghdr, kPacketsPerRead> headers;

  void prepare() {
    for (size_t i = 0; i < kPacketsPerRead; ++i) {
      parts[i] = {data[i].data(), kBytes};
      headers[i] = {};
      headers[i].msg_hdr.msg_iov = &parts[i];
      headers[i].msg_hdr.msg_iovlen = 1;
      headers[i].msg_hdr.msg_control = control[i].data();
      headers[i].msg_hdr.msg_controllen = kControlBytes;
    }
  }
};

LocalBus::LocalBus(LocalListener listener)
    : listener_(std::move(listener)), read_(std::make_unique<ReadBuffers>()) {}

LocalBus::~LocalBus() { close(); }

Result<std::unique_ptr<LocalBus>> LocalBus::listen() {
  HERRING_ASSIGN_OR_RETURN(auto& listener, LocalListener::open());
  return std::unique_ptr<LocalBus>(new LocalBus(std::move(listener)));
}

Status LocalBus::connect(uint32_t local_rank, const std::vector<LocalAddress>& peers,
                         Nanos deadline, const std::function<Status()>& given_up) {
  HERRING_ASSIGN_OR_RETURN(auto& fds, listener_.connect_all(local_rank, peers, deadline, given_up));
  local_rank_ = local_rank;
  peers_ = std::vector<Peer>(peers.size());
  for (uint32_t r = 0; r < peers.size(); ++r) {
    if (r == local_rank) continue;
    peers_[r].fd = std::move(fds[r]);
    rank_of_fd_[peers_[r].fd.get()] = r;
  }
  for (const auto& [id, exported] : exports_) {
    if (auto region = exported.lock()) announce(region);
  }
  return Status();
}

void LocalBus::set_handler(MessageHandler on_message, ClosedHandler on_peer_closed) {
  on_message_ = std::move(on_message);
  on_peer_closed_ = std::move(on_peer_closed);
}

void LocalBus::set_interest_handler(InterestHandler on_interest) {
  on_interest_ = std::move(on_interest);
}

std::vector<int> LocalBus::fds() const {
  std::vector<int> out;
  for (const Peer& peer : peers_) {
    if (peer.fd) out.push_back(peer.fd.get());
  }
  return out;
}

int LocalBus::fd_of(uint32_t peer) const {
  return peer < peers_.size() ? peers_[peer].fd.get() : -1;
}

LocalBus::Peer* LocalBus::peer_of(int fd, uint32_t* rank) {
  auto found = rank_of_fd_.find(fd);
  if (found == rank_of_fd_.end()) return nullptr;
  *rank = found->second;
  return &peers_[found->second];
}

bool LocalBus::wants_write(int fd) const {
  auto found = rank_of_fd_.find(fd);
  return found != rank_of_fd_.end() && peers_[found->second].wants_write;
}

bool LocalBus::alive(uint32_t peer) const { return peers_[peer].fd && !peers_[peer].unreachable; }

Status LocalBus::lost(uint32_t rank) const {
  return Status(Code::kPeerLost, concat("node: local rank ", rank, " is gone: its connection with ",
                                        "local rank ", local_rank_, " was closed"));
}

// ---- sending ----

Status LocalBus::send(uint32_t peer, const LocalMessage& message) {
  if (peer >= peers_.size() || peer == local_rank_ || message.kind >= kFirstReservedKind) {
    return defect("node: message of kind ", int{message.kind}, " to local rank ", peer, " of ",
                  peers_.size());
  }
  Peer& to = peers_[peer];
  if (!alive(peer)) return lost(peer);
  if (to.queue.empty()) {
    ssize_t n;
    do {
      n = ::send(to.fd.get(), &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n == static_cast<ssize_t>(sizeof(message))) return Status();
  }
  // The socket is full or has failed; flush() finds out which.
  return send_queued(peer, Queued{message, nullptr});
}

Status LocalBus::send_queued(uint32_t peer, Queued item) {
  Peer& to = peers_[peer];
  to.queue.push_back(std::move(item));
  return to.queue.size() == 1 ? flush(peer) : Status();
}

void LocalBus::send_to_all(const LocalMessage& message) {
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != local_rank_ && alive(r)) (void)send(r, message);
  }
}

size_t LocalBus::queued() const {
  size_t sum = 0;
  for (const Peer& peer : peers_) sum += peer.queue.size();
  return sum;
}

// Sends from the queue until the socket is full. A packet has several messages, or one that passes
// descriptors.
Status LocalBus::flush(uint32_t peer) {
  Peer& to = peers_[peer];
  while (!to.queue.empty()) {
    std::array<iovec, kMessagesPerPacket> parts;
    alignas(cmsghdr) std::array<char, kControlBytes> control{};
    msghdr header{};
    size_t count = 0;
    for (; count < std::min(to.queue.size(), kMessagesPerPacket); ++count) {
      Queued& item = to.queue[count];
      if (item.region != nullptr && count > 0) break;
      parts[count] = {&item.message, sizeof(LocalMessage)};
      if (item.region == nullptr) continue;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      const std::vector<int> fds = item.region->fds();
      const size_t length = fds.size() * sizeof(int);
      c->cmsg_len = CMSG_LEN(length);
      header.msg_controllen = CMSG_SPACE(length);
      std::memcpy(CMSG_DATA(c), fds.data(), length);
      ++count;
      break;
    }
    header.msg_iov = parts.data();
    header.msg_iovlen = count;
    const ssize_t n = ::sendmsg(to.fd.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      to.queue.erase(to.queue.begin(), to.queue.begin() + static_cast<ptrdiff_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM ||
        errno == ETOOMANYREFS) {
      break;  // try again later; the last three are rare, and on_writable slows down for them
    }
    // Data that the peer sent before may still wait here and is read first; then both sides see the
    // end.
    ::shutdown(to.fd.get(), SHUT_RDWR);
    to.unreachable = true;
    to.queue.clear();
    update_interest(to);
    return lost(peer);
  }
  update_interest(to);
  return Status();
}

void LocalBus::update_interest(Peer& peer) {
  const bool wanted = !peer.queue.empty();
  if (wanted == peer.wants_write) return;
  peer.wants_write = wanted;
  if (on_interest_) on_interest_(peer.fd.get(), wanted);
}

void LocalBus::on_writable(int fd) {
  uint32_t rank;
  Peer* peer = peer_of(fd, &rank);
  if (peer == nullptr || peer->queue.empty()) return;
  const size_t before = peer->queue.size();
  (void)flush(rank);  // on_readable reports a loss
  // The socket is writable, yet nothing could be sent: the kernel is short of memory or of
  // descriptors in flight. There is no event to wait for, so this pause keeps the loop from
  // spinning.
  if (peer->queue.size() == before) ::poll(nullptr, 0, 1);
}

// ---- receiving ----

void LocalBus::on_readable(int fd) {
  uint32_t rank;
  Peer* peer = peer_of(fd, &rank);
  if (peer == nullptr) return;
  for (;;) {
    read_->prepare();
    const int n = ::recvmmsg(fd, read_->headers.data(), kPacketsPerRead,
                             MSG_DONTWAIT | MSG_CMSG_CLOEXEC, nullptr);
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // ECONNRESET is reported once, before the data still to be read, if a peer ended without
      // reading everything that was sent to it.
      if (errno == EINTR || errno == ECONNRESET) continue;
      return fail(rank, Status(Code::kInternal, concat("node: receiving from local rank ", rank,
                                                       ": ", std::strerror(errno))));
    }
    std::optional<Status> end;
    for (int i = 0; i < n; ++i) {
      msghdr& header = read_->headers[i].msg_hdr;
      std::vector<UniqueFd> passed = passed_fds(&header);
      if (end.has_value()) continue;  // the descriptors must still be closed
      const size_t bytes = read_->headers[i].msg_len;
      if (bytes == 0) {
        end = peer->left ? Status(Code::kShutdown, concat("node: local rank ", rank, " has left"))
                         : lost(rank);
      } else {
        end = take_packet(rank, read_->data[i].data(), bytes, std::move(passed));
      }
    }
    if (end.has_value()) fail(rank, *end);
    return;  // if there is more, the loop returns here after it has served the others
  }
}

std::optional<Status> LocalBus::take_packet(uint32_t rank, const char* data, size_t bytes,
                                            std::vector<UniqueFd> passed) {
  const size_t count = bytes / sizeof(LocalMessage);
  if (bytes % sizeof(LocalMessage) != 0 || count > kMessagesPerPacket) {
    return breach("node: local rank ", rank, " sent a packet of ", bytes, " bytes");
  }
  for (size_t i = 0; i < count; ++i) {
    LocalMessage message;
    std::memcpy(&message, data + i * sizeof(message), sizeof(message));
    message.from = static_cast<uint16_t>(rank);
    if (message.kind < kFirstReservedKind) {
      if (on_message_) on_message_(message);
    } else if (auto end = take_reserved(rank, message, std::move(passed))) {
      return end;
    }
  }
  return std::nullopt;
}

std::optional<Status> LocalBus::take_reserved(uint32_t rank, const LocalMessage& message,
                                              std::vector<UniqueFd> passed) {
  Peer& peer = peers_[rank];
  switch (message.kind) {
    case kAnnounce:
      if (!peer.imports.add(message.region, message.bytes, std::move(passed))) break;
      return std::nullopt;
    case kRelease:
      peer.imports.remove(message.region);
      return std::nullopt;
    case kGoodbye:
      peer.left = true;
      return std::nullopt;
    default:
      break;
  }
  return breach("node: local rank ", rank, " sent a message of kind ", int{message.kind},
                " that is not valid here");
}

void LocalBus::fail(uint32_t rank, const Status& status) {
  Peer& peer = peers_[rank];
  peer.unreachable = true;
  peer.queue.clear();
  update_interest(peer);
  if (on_peer_closed_) on_peer_closed_(rank, status);
  rank_of_fd_.erase(peer.fd.get());
  peer.fd.reset();
  peer.imports.clear();  // work in progress owns shares of the mappings
}

// ---- regions ----

uint32_t LocalBus::export_region(const std::shared_ptr<SharedRegion>& region) {
  const uint32_t id = region->id();
  if (exports_.try_emplace(id, region).second) announce(region);
  return id;
}

void LocalBus::announce(const std::shared_ptr<SharedRegion>& region) {
  LocalMessage message;
  message.kind = kAnnounce;
  message.region = region->id();
  message.bytes = region->bytes();
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != local_rank_ && alive(r)) (void)send_queued(r, Queued{message, region});
  }
}

void LocalBus::release_region(uint32_t region) {
  if (exports_.erase(region) == 0) return;
  LocalMessage message;
  message.kind = kRelease;
  message.region = region;
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != local_rank_ && alive(r)) (void)send_queued(r, Queued{message, nullptr});
  }
}

Result<std::shared_ptr<SharedRegion>> LocalBus::peer_region(uint32_t peer, uint32_t region) const {
  if (peer == local_rank_) {
    auto found = exports_.find(region);
    if (found != exports_.end()) {
      if (auto mine = found->second.lock()) return mine;
    }
  } else if (peer < peers_.size()) {
    if (!peers_[peer].fd) return lost(peer);
    auto mapped = peers_[peer].imports.find(region);
    if (!mapped.ok()) {
      return Status(mapped.status().code(),
                    concat("node: region ", region, " of local rank ", peer, " is not usable: ",
                           mapped.status().message()));
    }
    if (*mapped != nullptr) return mapped;
  }
  return breach("node: local rank ", peer, " has not exported region ", region);
}

Result<std::shared_ptr<char>> LocalBus::peer_memory(uint32_t peer, uint32_t region,
                                                    uint64_t offset, uint64_t bytes) const {
  HERRING_ASSIGN_OR_RETURN(auto& mapped, peer_region(peer, region));
  const uint64_t size = mapped->bytes();
  if (offset > size || bytes > size - offset) {
    return breach("node: bytes ", offset, " + ", bytes, " of region ", region, " of local rank ",
                  peer, ", which has ", size);
  }
  char* const data = mapped->data() + offset;
  return std::shared_ptr<char>(std::move(mapped), data);
}

void LocalBus::end_sending() {
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != local_rank_ && alive(r)) ::shutdown(peers_[r].fd.get(), SHUT_WR);
  }
}

void LocalBus::close(bool leaves) {
  on_interest_ = nullptr;
  LocalMessage goodbye;
  goodbye.kind = kGoodbye;
  // Skips goodbyes for which there is no memory: everything must be closed in any case.
  static_cast<void>(without_exceptions([&] {
    for (uint32_t r = 0; r < peers_.size(); ++r) {
      if (r == local_rank_ || !alive(r) || !leaves) continue;
      peers_[r].queue.push_back(Queued{goodbye, nullptr});
      (void)flush(r);
    }
    return Status();
  }));
  rank_of_fd_.clear();
  exports_.clear();
  peers_.clear();
}

}  // namespace herring
