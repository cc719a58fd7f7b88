// TCP connections that break. At one frame of one flow, something happens that a network, a system
// or a wrong peer may do. Everything else, hello included, is the real transport. The core does not
// know of this: a job takes its transport as an option.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "transport/tcp/transport.h"

namespace herring::connections_test {

// What happens to the frame.
enum class Kind {
  kDrop,       // the connection ends before it
  kReset,      // the same, without an orderly end
  kTruncate,   // the connection ends inside it
  kDelay,      // it comes later, and so does what follows
  kDuplicate,  // it comes twice
  kCorrupt,    // one bit of its header is another one
  kCut,        // from it on, neither side hears anything, an acknowledgement included
};
inline constexpr Kind kKinds[] = {Kind::kDrop,      Kind::kReset,   Kind::kTruncate, Kind::kDelay,
                                  Kind::kDuplicate, Kind::kCorrupt, Kind::kCut};
const char* name_of(Kind kind);

struct Fault {
  Kind kind = Kind::kDrop;
  uint64_t frame = 0;      // number of the frame that the sending side sends, from 1 on
  size_t cut_at = 1;       // kTruncate: bytes of it that arrive, modulo its length
  size_t bit = 0;          // kCorrupt: of the header
  Nanos delay = 0;         // kDelay
};

// A flow of a process, seen from the side that sends: the n-th that the process has made, or that
// of a rank which the process has accepted.
struct Line {
  bool accepted = false;
  uint32_t number = 0;
  auto operator<=>(const Line&) const = default;
};

// What is known of a line, over all connections that it ever has.
struct Track {
  std::atomic<uint64_t> frames{0};
  Fault fault;                   // none if its frame is 0
  std::atomic<Nanos> struck{0};  // when the fault happened
  std::mutex mutex;
  std::string what;              // of the frame that was struck; guarded by mutex
};

// The connected sockets of this process, both ends of which it has.
class Sockets {
 public:
  void add(int socket);
  void remove(int socket);
  // Drops all that arrives at this socket and at the other end of its connection.
  void silence(int socket);

 private:
  std::mutex mutex_;
  std::set<int> all_;
};

class FaultyTransport final : public transport::tcp::TcpTransport {
 public:
  explicit FaultyTransport(Sockets& sockets) : sockets_(sockets) {}
  std::shared_ptr<Track> track(Line line);

  Result<std::unique_ptr<transport::Listener>> listen(transport::EventLoop& loop,
                                                      const transport::Address& address,
                                                      transport::Credentials credentials,
                                                      Admit admit, Accepted accepted) override;
  std::unique_ptr<transport::Connection> make_connection(transport::tcp::Socket socket,
                                                         std::string peer,
                                                         const wire::Hello& hello) override;

 private:
  Sockets& sockets_;
  std::mutex mutex_;                               // guards the members below
  std::map<Line, std::shared_ptr<Track>> tracks_;
  std::set<uint16_t> ports_;                       // on which this transport listens
  uint32_t made_ = 0;
};

}  // namespace herring::connections_test
