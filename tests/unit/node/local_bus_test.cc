// Tests several buses in one process. Each bus stands for a worker, and one thread drives them all.
#include "node/local_bus.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "names.h"

namespace herring {
namespace {

struct Worker {
  std::unique_ptr<LocalBus> bus;
  std::vector<LocalMessage> messages;
  std::map<uint32_t, Status> closed;  // by local rank
  std::map<int, bool> interest;
};

Nanos in_seconds(double s) { return monotonic_now() + from_seconds(s); }

std::vector<std::unique_ptr<LocalBus>> listen_all(size_t n, std::vector<LocalAddress>* addresses) {
  std::vector<std::unique_ptr<LocalBus>> buses;
  for (size_t i = 0; i < n; ++i) {
    auto bus = LocalBus::listen();
    EXPECT_TRUE(bus.ok()) << bus.status().to_string();
    buses.push_back(std::move(*bus));
    addresses->push_back(buses.back()->address());
  }
  return buses;
}

// Connects all buses at the same time, each on a thread of its own.
std::vector<Status> connect_all(std::vector<std::unique_ptr<LocalBus>>& buses,
                                const std::vector<LocalAddress>& addresses) {
  std::vector<Status> results(buses.size());
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < buses.size(); ++r) {
    threads.emplace_back(
        [&, r] { results[r] = buses[r]->connect(r, addresses, in_seconds(600)); });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

class BusNode {
 public:
  explicit BusNode(size_t n) : workers_(n) {
    std::vector<LocalAddress> addresses;
    auto buses = listen_all(n, &addresses);
    for (const Status& status : connect_all(buses, addresses)) {
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    for (size_t r = 0; r < n; ++r) {
      Worker& w = workers_[r];
      w.bus = std::move(buses[r]);
      w.bus->set_handler([&w](const LocalMessage& m) { w.messages.push_back(m); },
                         [&w](uint32_t peer, const Status& status) {
                           EXPECT_EQ(w.closed.count(peer), 0u);
                           EXPECT_GE(w.bus->fd_of(peer), 0);
                           w.closed[peer] = status;
                         });
      w.bus->set_interest_handler([&w](int fd, bool wants) { w.interest[fd] = wants; });
    }
  }

  Worker& operator[](size_t r) { return workers_[r]; }

  // Drives the ranks in `who` (all of them if empty), as an epoll loop would, until `done`. Returns
  // false if nothing happens for a long time.
  bool drive(const std::function<bool()>& done, std::vector<size_t> who = {}) {
    if (who.empty()) {
      for (size_t r = 0; r < workers_.size(); ++r) who.push_back(r);
    }
    while (!done()) {
      std::vector<pollfd> polled;
      std::vector<LocalBus*> owners;
      for (size_t r : who) {
        LocalBus* bus = workers_[r].bus.get();
        if (bus == nullptr) continue;
        for (int fd : bus->fds()) {
          EXPECT_EQ(bus->wants_write(fd), workers_[r].interest[fd]);
          polled.push_back(
              {fd, static_cast<short>(bus->wants_write(fd) ? POLLIN | POLLOUT : POLLIN), 0});
          owners.push_back(bus);
        }
      }
      if (::poll(polled.data(), polled.size(), 600'000) <= 0) return false;
      for (size_t i = 0; i < polled.size(); ++i) {
        if (polled[i].revents & POLLOUT) owners[i]->on_writable(polled[i].fd);
        if (polled[i].revents & ~POLLOUT) owners[i]->on_readable(polled[i].fd);
      }
    }
    return true;
  }

 private:
  std::vector<Worker> workers_;
};

LocalMessage numbered(uint32_t round) {
  LocalMessage m;
  m.kind = 1;
  m.round = round;
  return m;
}

TEST(LocalBus, AddressesAreRandom) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  EXPECT_NE(addresses[0].name, addresses[1].name);
  EXPECT_NE(addresses[0].token, addresses[1].token);
  EXPECT_GE(addresses[0].name.size(), 32u);
}

TEST(LocalBus, ANodeOfOneNeedsNobody) {
  BusNode node(1);
  EXPECT_EQ(node[0].bus->local_size(), 1u);
  EXPECT_TRUE(node[0].bus->fds().empty());
  node[0].bus->send_to_all(numbered(1));
  auto region = SharedRegion::create(4096);
  ASSERT_TRUE(region.ok());
  const uint32_t id = node[0].bus->export_region(*region);
  EXPECT_EQ(node[0].bus->peer_memory(0, id, 10, 20)->get(), (*region)->data() + 10);
}

TEST(LocalBus, EveryFieldOfAMessageArrives) {
  BusNode node(3);
  LocalMessage m{7, 9, 55, 1, 2, 3, 4, 5, 6, 7};
  ASSERT_TRUE(node[2].bus->send(0, m).ok());
  node[1].bus->send_to_all(numbered(11));
  ASSERT_TRUE(node.drive(
      [&] { return node[0].messages.size() == 2 && node[2].messages.size() == 1; }));
  for (const LocalMessage& got : node[0].messages) {
    if (got.from == 1) continue;
    m.from = 2;  // the receiver fills this in, not the sender
    EXPECT_EQ(std::memcmp(&got, &m, sizeof(m)), 0);
  }
  EXPECT_EQ(node[2].messages[0].from, 1);
  EXPECT_EQ(node[2].messages[0].round, 11u);
  EXPECT_TRUE(node[1].messages.empty());
}

TEST(LocalBus, SendRefusesNonsense) {
  BusNode node(2);
  LocalMessage reserved;
  reserved.kind = kFirstReservedKind;
  EXPECT_EQ(node[0].bus->send(1, reserved).code(), Code::kInternal);
  EXPECT_EQ(node[0].bus->send(0, numbered(1)).code(), Code::kInternal);
  EXPECT_EQ(node[0].bus->send(2, numbered(1)).code(), Code::kInternal);
}

TEST(LocalBus, ARegionMayConsistOfAsManyFilesAsOneMessagePasses) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit one_page = {4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &one_page);
  constexpr size_t kBytes = 4096 * SharedRegion::kMostFiles;
  auto region = SharedRegion::create(kBytes);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_TRUE(region.ok()) << region.status().to_string();
  (*region)->data()[kBytes - 1] = 'z';
  BusNode node(2);
  const size_t fds = open_fds();
  const uint32_t id = node[0].bus->export_region(*region);
  ASSERT_TRUE(node[0].bus->send(1, numbered(1)).ok());
  ASSERT_TRUE(node.drive([&] { return node[1].messages.size() == 1; }));
  auto memory = node[1].bus->peer_memory(0, id, kBytes - 1, 1);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_EQ(*memory->get(), 'z');
  EXPECT_EQ(open_fds(), fds) << "the peer has closed what came";
}

TEST(LocalBus, RegionsAreSharedAndCheckedAndReleased) {
  BusNode node(2);
  auto region = SharedRegion::create(100000);
  ASSERT_TRUE(region.ok());
  std::strcpy((*region)->data() + 70000, "hello");
  LocalBus& bus = *node[0].bus;
  const uint32_t id = bus.export_region(*region);
  EXPECT_EQ(id, (*region)->id());
  EXPECT_EQ(bus.export_region(*region), id);
  ASSERT_TRUE(bus.send(1, numbered(1)).ok());
  ASSERT_TRUE(node.drive([&] { return node[1].messages.size() == 1; }));

  LocalBus& peer = *node[1].bus;
  const uint64_t size = (*region)->bytes();
  auto memory = peer.peer_memory(0, id, 70000, 6);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_STREQ(memory->get(), "hello");
  memory->get()[0] = 'j';
  EXPECT_STREQ((*region)->data() + 70000, "jello");
  EXPECT_TRUE(peer.peer_memory(0, id, size, 0).ok());
  EXPECT_TRUE(peer.peer_memory(0, id, 0, size).ok());
  EXPECT_FALSE(peer.peer_memory(0, id, 1, size).ok());
  EXPECT_FALSE(peer.peer_memory(0, id, size + 1, 0).ok());
  EXPECT_FALSE(peer.peer_memory(0, id, UINT64_MAX, 2).ok());
  EXPECT_FALSE(peer.peer_memory(0, id, 2, UINT64_MAX).ok());
  EXPECT_FALSE(peer.peer_memory(0, id + 1, 0, 1).ok());
  EXPECT_FALSE(peer.peer_memory(1, id, 0, 1).ok());
  EXPECT_FALSE(peer.peer_memory(2, id, 0, 1).ok());

  const std::weak_ptr<char> mapping = *memory;
  bus.release_region(id);
  bus.release_region(id);
  ASSERT_TRUE(bus.send(1, numbered(2)).ok());
  ASSERT_TRUE(node.drive([&] { return node[1].messages.size() == 2; }));
  EXPECT_FALSE(peer.peer_memory(0, id, 0, 1).ok());
  EXPECT_STREQ(memory->get(), "jello") << "who points into it keeps it mapped";
  memory->reset();
  EXPECT_TRUE(mapping.expired());
}

TEST(LocalBus, RegionsExportedBeforeConnectingAreAnnounced) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  auto region = SharedRegion::create(4096);
  ASSERT_TRUE(region.ok());
  const uint32_t id = buses[1]->export_region(*region);
  for (const Status& status : connect_all(buses, addresses)) ASSERT_TRUE(status.ok());
  pollfd readable{buses[0]->fd_of(1), POLLIN, 0};
  ASSERT_EQ(::poll(&readable, 1, 600'000), 1);
  buses[0]->on_readable(readable.fd);
  EXPECT_TRUE(buses[0]->peer_memory(1, id, 0, 4096).ok());
}

// Sends far more than a socket holds, with regions in between. Nothing may be lost, and the order
// must stay.
TEST(LocalBus, AFloodLosesNothingAndKeepsOrder) {
  BusNode node(3);
  constexpr uint32_t kMessages = 20000;
  auto region = SharedRegion::create(4096);
  ASSERT_TRUE(region.ok());
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < kMessages; ++i) {
    if (i % 1000 == 0) {
      auto extra = SharedRegion::create(4096);
      ASSERT_TRUE(extra.ok());
      *(*extra)->data() = static_cast<char>(i / 1000);
      ids.push_back(node[0].bus->export_region(*extra));  // released here while it is still queued
    }
    LocalMessage m = numbered(i);
    m.region = ids.back();
    node[0].bus->send_to_all(m);
    ASSERT_TRUE(node[1].bus->send(0, numbered(i)).ok());
  }
  EXPECT_GT(node[0].bus->queued(), kMessages) << "the sockets took everything; send more";
  EXPECT_TRUE(node[0].bus->wants_write(node[0].bus->fd_of(1)));
  uint32_t seen[3] = {};
  for (uint32_t r : {1u, 2u}) {
    LocalBus& bus = *node[r].bus;
    node[r].bus->set_handler(
        [&seen, &bus, r](const LocalMessage& m) {
          ASSERT_EQ(m.round, seen[r]++);
          auto memory = bus.peer_memory(0, m.region, 0, 1);
          ASSERT_TRUE(memory.ok()) << memory.status().to_string();
          ASSERT_EQ(*memory->get(), static_cast<char>(m.round / 1000));
        },
        nullptr);
  }
  ASSERT_TRUE(node.drive([&] {
    return seen[1] == kMessages && seen[2] == kMessages && node[0].messages.size() == kMessages;
  }));
  for (uint32_t i = 0; i < kMessages; ++i) ASSERT_EQ(node[0].messages[i].round, i);
  EXPECT_EQ(node[0].bus->queued(), 0u);
  EXPECT_FALSE(node[0].bus->wants_write(node[0].bus->fd_of(1)));
}

// The peer ends without having read what was sent to it. Its own last messages must still arrive.
TEST(LocalBus, LastWordsArriveBeforeTheEnd) {
  BusNode node(2);
  auto region = SharedRegion::create(4096);
  ASSERT_TRUE(region.ok());
  const uint32_t id = node[1].bus->export_region(*region);
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(node[0].bus->send(1, numbered(i)).ok());
    ASSERT_TRUE(node[1].bus->send(0, numbered(i)).ok());
  }
  *(*region)->data() = 'x';
  std::shared_ptr<char> memory_at_the_end;
  LocalBus& bus = *node[0].bus;
  Worker& w = node[0];
  bus.set_handler([&w](const LocalMessage& m) { w.messages.push_back(m); },
                  [&](uint32_t peer, const Status& status) {
                    w.closed[peer] = status;
                    auto memory = bus.peer_memory(1, id, 0, 4096);
                    if (memory.ok()) memory_at_the_end = *memory;
                  });
  ::shutdown(node[1].bus->fd_of(0), SHUT_RDWR);  // no goodbye gets through
  node[1].bus.reset();
  ASSERT_TRUE(node.drive([&] { return !w.closed.empty(); }, {0}));
  EXPECT_EQ(w.messages.size(), 100u);
  EXPECT_EQ(w.closed[1].code(), Code::kPeerLost);
  EXPECT_NE(w.closed[1].message().find("local rank 1"), std::string::npos);
  ASSERT_NE(memory_at_the_end, nullptr);
  region->reset();
  EXPECT_EQ(*memory_at_the_end, 'x') << "still mapped for work in progress";
  EXPECT_EQ(bus.peer_memory(1, id, 0, 1).status().code(), Code::kPeerLost);
  EXPECT_EQ(bus.send(1, numbered(0)).code(), Code::kPeerLost);
  bus.send_to_all(numbered(0));
  EXPECT_EQ(bus.fd_of(1), -1);
  EXPECT_TRUE(bus.fds().empty());
}

TEST(LocalBus, SendingToADeadPeerFailsAndTheLoopIsTold) {
  BusNode node(3);
  node[2].bus.reset();
  while (node[0].bus->send(2, numbered(1)).ok()) {
  }
  EXPECT_TRUE(node[0].closed.empty()) << "handlers run from the loop only";
  node[0].bus->send_to_all(numbered(5));
  ASSERT_TRUE(node.drive([&] { return node[0].closed.size() == 1 && node[1].closed.size() == 1; }));
  EXPECT_TRUE(node.drive([&] { return node[1].messages.size() == 1; }));
}

TEST(LocalBus, GoodbyeIsNotDeath) {
  BusNode node(3);
  ASSERT_TRUE(node[2].bus->send(0, numbered(1)).ok());
  node[2].bus->close();
  EXPECT_EQ(node[2].bus->local_size(), 0u);
  ASSERT_TRUE(node.drive([&] { return node[0].closed.size() == 1 && node[1].closed.size() == 1; }));
  EXPECT_EQ(node[0].messages.size(), 1u);
  EXPECT_EQ(node[0].closed[2].code(), Code::kShutdown);
  EXPECT_EQ(node[1].closed[2].code(), Code::kShutdown);
}

// ---- a peer that sends invalid packets ----

// Sends a raw packet, with a descriptor if `fd` is not -1, past the bus of `from`.
void send_raw(LocalBus& from, uint32_t to, const void* data, size_t bytes, int fd = -1) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  }
  ASSERT_EQ(::sendmsg(from.fd_of(to), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

LocalMessage announcement(uint32_t region, uint64_t bytes) {
  LocalMessage m;
  m.kind = kFirstReservedKind;
  m.region = region;
  m.bytes = bytes;
  return m;
}

TEST(LocalBus, MalformedPacketsEndTheConnectionAndNoOther) {
  std::vector<std::vector<char>> packets = {
      std::vector<char>(1), std::vector<char>(47), std::vector<char>(49), std::vector<char>(95),
      std::vector<char>(33 * 48), std::vector<char>(100000)};
  for (uint8_t kind = kFirstReservedKind; kind != 0; ++kind) {
    if (kind == kFirstReservedKind + 1 || kind == kFirstReservedKind + 2) continue;
    packets.emplace_back(48, 0);  // one of them is an announcement of region 0
    packets.back()[0] = static_cast<char>(kind);
  }
  for (const auto& packet : packets) {
    BusNode node(3);
    send_raw(*node[1].bus, 0, packet.data(), packet.size());
    ASSERT_TRUE(node[2].bus->send(0, numbered(1)).ok());
    ASSERT_TRUE(node.drive(
        [&] { return node[0].closed.size() == 1 && node[0].messages.size() == 1; }));
    EXPECT_EQ(node[0].closed[1].code(), Code::kProtocol) << packet.size();
    EXPECT_NE(node[0].closed[1].message().find("local rank 1"), std::string::npos);
  }
}

TEST(LocalBus, LyingAnnouncementsAreNotMapped) {
  BusNode node(2);
  LocalBus& liar = *node[1].bus;
  auto region = SharedRegion::create(8192);
  ASSERT_TRUE(region.ok());
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  const size_t fds = open_fds();
  struct Lie {
    uint64_t bytes;
    int fd;
  };
  const int sealed = (*region)->fds()[0];
  const Lie lies[] = {{1u << 30, sealed}, {0, sealed}, {8192, unsealed.get()},
                      {8192, STDERR_FILENO}, {8192, -1}};
  uint32_t id = 100;
  for (const Lie& lie : lies) {
    const LocalMessage m = announcement(++id, lie.bytes);
    send_raw(liar, 0, &m, sizeof(m), lie.fd);
  }
  const LocalMessage honest = announcement(++id, 8192);
  send_raw(liar, 0, &honest, sizeof(honest), (*region)->fds()[0]);
  // A descriptor that arrives with an ordinary message is closed.
  const LocalMessage ordinary = numbered(3);
  send_raw(liar, 0, &ordinary, sizeof(ordinary), STDERR_FILENO);
  ASSERT_TRUE(node.drive([&] { return node[0].messages.size() == 1; }));
  for (uint32_t r = 101; r < id; ++r) {
    auto memory = node[0].bus->peer_memory(1, r, 0, 1);
    ASSERT_FALSE(memory.ok()) << r;
    EXPECT_NE(memory.status().message().find(concat("region ", r)), std::string::npos);
  }
  EXPECT_TRUE(node[0].bus->peer_memory(1, id, 0, 8192).ok());
  EXPECT_EQ(open_fds(), fds);
  // Announcing the same region twice closes the connection.
  send_raw(liar, 0, &honest, sizeof(honest), (*region)->fds()[0]);
  ASSERT_TRUE(node.drive([&] { return node[0].closed.size() == 1; }));
  EXPECT_EQ(open_fds(), fds - 1) << "the connection, and no more";
}

// ---- connecting ----

TEST(LocalMesh, ATimeoutNamesTheMissingRanks) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(4, &addresses);
  const Status status = buses[1]->connect(1, addresses, in_seconds(0.05));
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("local ranks 0, 2-3 of 4"), std::string::npos)
      << status.message();
}

TEST(LocalMesh, WhoGivesUpEndsTheWait) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  int asked = 0;
  const Status status = buses[0]->connect(0, addresses, in_seconds(600), [&] {
    return ++asked < 3 ? Status() : Status(Code::kPeerLost, "rank 1 is lost");
  });
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(), "rank 1 is lost");
}

TEST(LocalMesh, AnInterruptEndsTheWait) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  const Interruptible interrupt([] { return true; });
  EXPECT_EQ(buses[0]->connect(0, addresses, in_seconds(600)).code(), Code::kShutdown);
}

TEST(LocalMesh, AListenerThatIsGoneIsALostPeer) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  buses[0].reset();
  const Status status = buses[1]->connect(1, addresses, in_seconds(600));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("local rank 0"), std::string::npos);
}

TEST(LocalMesh, WithoutDescriptorsItSaysWhatFailed) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto another = LocalBus::listen();
  const Status dialled = buses[1]->connect(1, addresses, in_seconds(600));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const Status& status : {another.status(), dialled}) {
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_EQ(status.message(), "node: socket: Too many open files");
  }
}

TEST(LocalMesh, OnesOwnPlaceIsChecked) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  EXPECT_EQ(buses[0]->connect(1, addresses, in_seconds(600)).code(), Code::kInvalidArgument);
  EXPECT_EQ(buses[1]->connect(2, addresses, in_seconds(600)).code(), Code::kInvalidArgument);
}

TEST(LocalMesh, AWrongTokenIsRefused) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  auto wrong = addresses;
  wrong[0].token[15] ^= 1;
  Status good;
  std::thread acceptor([&] { good = buses[0]->connect(0, addresses, in_seconds(0.5)); });
  const Status bad = buses[1]->connect(1, wrong, in_seconds(600));
  acceptor.join();
  EXPECT_EQ(bad.code(), Code::kAuthentication);
  EXPECT_EQ(good.code(), Code::kTimeout) << "the stranger does not count";
}

// The listener must also prove that it published the address.
TEST(LocalMesh, AWrongTokenInTheAnswerIsRefused) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(2, &addresses);
  auto wrong = addresses;
  wrong[1].token[0] ^= 1;
  std::thread acceptor([&] { (void)buses[0]->connect(0, wrong, in_seconds(600)); });
  const Status bad = buses[1]->connect(1, addresses, in_seconds(600));
  acceptor.join();
  EXPECT_EQ(bad.code(), Code::kAuthentication);
}

TEST(LocalMesh, NodesOfDifferentSizeAreAMismatch) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(3, &addresses);
  std::vector<LocalAddress> two(addresses.begin(), addresses.begin() + 2);
  Status first;
  std::thread acceptor([&] { first = buses[0]->connect(0, addresses, in_seconds(600)); });
  const Status second = buses[1]->connect(1, two, in_seconds(600));
  acceptor.join();
  EXPECT_EQ(first.code(), Code::kMismatch);
  EXPECT_EQ(second.code(), Code::kMismatch);
  EXPECT_NE(first.message().find("1 of 2"), std::string::npos) << first.message();
}

UniqueFd connect_raw(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  return fd;
}

// Strangers that are silent or send garbage do not keep the node from forming, even if more come
// than are kept.
TEST(LocalMesh, StrangersDoNotDisturb) {
  std::vector<LocalAddress> addresses;
  auto buses = listen_all(3, &addresses);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connect_raw(addresses[static_cast<size_t>(i % 3)].name));
    if (i % 5 == 1) ::send(strangers.back().get(), "garbage", 7, MSG_NOSIGNAL);
    const std::vector<char> zeros(40);
    if (i % 5 == 2) ::send(strangers.back().get(), zeros.data(), zeros.size(), MSG_NOSIGNAL);
    if (i % 5 == 3) strangers.back().reset();
  }
  for (const Status& status : connect_all(buses, addresses)) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(LocalMesh, DescriptorsAreClosedOnExec) {
  BusNode node(3);
  for (size_t r = 0; r < 3; ++r) {
    ASSERT_EQ(node[r].bus->fds().size(), 2u);
    for (int fd : node[r].bus->fds()) {
      EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
      EXPECT_TRUE(::fcntl(fd, F_GETFL) & O_NONBLOCK);
    }
  }
}

}  // namespace
}  // namespace herring
