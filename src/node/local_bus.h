// Lets the workers of one node signal each other and share memory. A full mesh of SOCK_SEQPACKET
// sockets carries small messages. Payload lies in shared regions that the messages name. Nothing
// spins: the sockets wake the engine's epoll loop (level-triggered). A closed connection shows a
// death at once, because forked children do not keep these sockets.
//
// Not thread-safe: all calls come from the engine thread, and handlers run on it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "node/imported_regions.h"
#include "node/local_mesh.h"
#include "node/shared_memory.h"

namespace herring {

// One message. The engine defines the meaning of the fields, with two exceptions. The receiving bus
// fills in `from`, and kinds from kFirstReservedKind on belong to the bus.
struct LocalMessage {
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint16_t from = 0;  // local rank
  uint32_t stream = 0;
  uint32_t round = 0;
  uint32_t buffer = 0;
  uint32_t region = 0;  // of the sender, as export_region() named it; 0 for none
  uint32_t workers = 0;  // contributors to the subject of the message; 0: unknown
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t group = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(LocalMessage) == 48 && std::is_trivially_copyable_v<LocalMessage>);

inline constexpr uint8_t kFirstReservedKind = 0xf0;

class LocalBus {
 public:
  using MessageHandler = std::function<void(const LocalMessage&)>;
  // kShutdown: the peer said goodbye. kPeerLost: it died. kProtocol: it sent an invalid message.
  using ClosedHandler = std::function<void(uint32_t local_rank, const Status&)>;
  using InterestHandler = std::function<void(int fd, bool wants_write)>;

  static Result<std::unique_ptr<LocalBus>> listen();
  ~LocalBus();
  LocalBus(const LocalBus&) = delete;
  LocalBus& operator=(const LocalBus&) = delete;

  LocalAddress address() const { return listener_.address(); }

  // Connects all workers of the node; see LocalListener::connect_all. On a node with one worker, it
  // returns at once.
  Status connect(uint32_t local_rank, const std::vector<LocalAddress>& peers, Nanos deadline,
                 const std::function<Status()>& given_up = {});

  // `on_peer_closed` runs once per peer, after all messages of that peer. The peer's descriptor is
  // still open then, so that it can be removed from the loop. Handlers may call anything except
  // on_readable, on_writable, close and the destructor.
  void set_handler(MessageHandler on_message, ClosedHandler on_peer_closed);
  // `on_interest` is called whenever wants_write(fd) changes.
  void set_interest_handler(InterestHandler on_interest);

  uint32_t local_rank() const { return local_rank_; }
  uint32_t local_size() const { return static_cast<uint32_t>(peers_.size()); }

  // Returns the descriptors of the living peers. Watch them for reading and, as long as
  // wants_write() holds, for writing. Errors and hang-ups go to on_readable().
  std::vector<int> fds() const;
  int fd_of(uint32_t peer) const;  // -1 once it is closed
  void on_readable(int fd);
  void on_writable(int fd);
  bool wants_write(int fd) const;

  // Sends a message without blocking or dropping it: what the socket does not accept is queued.
  // Messages to one peer arrive in order. Returns kPeerLost if the peer is gone, which
  // on_peer_closed also reports.
  Status send(uint32_t peer, const LocalMessage& message);
  // Sends a message to every living peer.
  void send_to_all(const LocalMessage& message);
  // Returns the number of messages queued to all peers.
  size_t queued() const;

  // Lets every peer map `region`. The announcement precedes all later messages; for regions
  // exported before connect(), it is sent there. Returns SharedRegion::id(). Repeated calls are
  // cheap. The bus does not keep the region alive here, but the mappings of the peers keep its
  // memory.
  uint32_t export_region(const std::shared_ptr<SharedRegion>& region);
  // Makes the peers unmap the region once they have seen all earlier messages. Anything that still
  // points into it keeps it mapped. Unknown IDs are ignored.
  void release_region(uint32_t region);

  // Returns the address of `bytes` bytes at `offset` of a region that `peer` exported. `peer` may
  // be this worker while the region is alive. The result owns a share of the mapping, so it stays
  // valid whatever the peer does. Checks the region's bounds. Returns kPeerLost once the peer is
  // gone.
  Result<std::shared_ptr<char>> peer_memory(uint32_t peer, uint32_t region, uint64_t offset,
                                            uint64_t bytes) const;

  // Returns the region itself, as mapped here.
  Result<std::shared_ptr<SharedRegion>> peer_region(uint32_t peer, uint32_t region) const;

  // Lets every peer read what was sent, and then the end without a goodbye. Nothing more is sent.
  void end_sending();

  // Closes everything, even if queued messages could not be sent. Says goodbye first if this rank
  // `leaves`, so that peers can tell that from failing and dying. No handler runs.
  void close(bool leaves = true);

 private:
  static constexpr size_t kMessagesPerPacket = 32;
  static constexpr size_t kPacketsPerRead = 8;

  struct Queued {
    LocalMessage message;
    std::shared_ptr<SharedRegion> region;  // whose descriptors travel along, if any
  };
  struct Peer {
    GuardedFd fd;
    bool unreachable = false;  // sending failed; the end is still to be read
    bool left = false;  // said goodbye
    bool wants_write = false;
    std::deque<Queued> queue;
    ImportedRegions imports;
  };
  struct ReadBuffers;

  explicit LocalBus(LocalListener listener);

  Peer* peer_of(int fd, uint32_t* rank);
  bool alive(uint32_t peer) const;
  Status send_queued(uint32_t peer, Queued item);
  Status flush(uint32_t peer);
  void update_interest(Peer& peer);
  void announce(const std::shared_ptr<SharedRegion>& region);
  // These return nullopt to continue reading.
  std::optional<Status> take_packet(uint32_t rank, const char* data, size_t bytes,
                                    std::vector<UniqueFd> passed);
  std::optional<Status> take_reserved(uint32_t rank, const LocalMessage& message,
                                      std::vector<UniqueFd> passed);
  void fail(uint32_t rank, const Status& status);
  Status lost(uint32_t rank) const;

  LocalListener listener_;
  uint32_t local_rank_ = 0;
  std::vector<Peer> peers_;  // by local rank; never resized once connected
  std::unordered_map<int, uint32_t> rank_of_fd_;
  std::unordered_map<uint32_t, std::weak_ptr<SharedRegion>> exports_;
  std::unique_ptr<ReadBuffers> read_;
  MessageHandler on_message_;
  ClosedHandler on_peer_closed_;
  InterestHandler on_interest_;
};

}  // namespace herring
