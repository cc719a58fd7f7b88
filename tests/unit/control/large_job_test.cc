// Tests a rendezvous in its own process with thousands of members that only speak the protocol.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "control/channel.h"
#include "control/messages.h"
#include "control/rendezvous.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/transport.h"

namespace herring::control {
namespace {

using wire::FrameType;

constexpr uint32_t kRanks = 4096, kPerNode = 8, kServers = kRanks / kPerNode;

transport::Credentials credentials() { return {"a test's secret", wire::job_id("test")}; }

// Runs a rendezvous until the pipe `end` is closed. Writes the rendezvous' port to `say`.
[[noreturn]] void host(int say, int end) {
  auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 1024);
  if (!listener.ok()) _exit(1);
  const uint16_t port = transport::tcp::local_address(listener->get())->port;
  RendezvousOptions hosting;
  hosting.credentials = credentials();
  hosting.size = kRanks;
  hosting.dedicated_servers = kServers;
  hosting.heartbeat_timeout = 600 * kSecond;  // one thread plays all members, so each may be late
  auto started = Rendezvous::start(std::move(*listener), hosting);
  if (!started.ok()) _exit(2);
  if (write(say, &port, sizeof(port)) != sizeof(port)) _exit(3);
  char nothing;
  while (read(end, &nothing, 1) > 0) continue;
  (*started)->stop();
  _exit(0);
}

// All members of the job, on one loop.
class AllMembers : public Channel::Owner {
 public:
  // `connections` has the connections of all ranks, in order, and then those of the servers.
  explicit AllMembers(std::vector<transport::tcp::Socket> connections) {
    for (transport::tcp::Socket& fd : connections) {
      const auto connection = transport::tcp::make_connection(std::move(fd), "rendezvous");
      channels_.push_back(
          std::make_unique<Channel>(loop_, *connection, wire::kMaxControlPayload, *this));
    }
    for (uint32_t i = 0; i < channels_.size(); ++i) {
      channels_[i]->user = reinterpret_cast<void*>(uintptr_t{i});
      Registration registration{{}, 1000 + i, 600 * kSecond};
      if (i < kRanks) {
        WorkerRegistration worker;
        worker.rank = i;
        worker.size = kRanks;
        worker.dedicated_servers = kServers;
        worker.host_id = concat("node ", i / kPerNode);
        worker.bus = concat("bus of rank ", i, std::string(60, 'x'));
        registration.what = worker;
      } else {
        ServerRegistration server;
        server.host = concat("10.0.", (i - kRanks) / 256, ".", (i - kRanks) % 256);
        server.port = 7000;
        registration.what = server;
      }
      channels_[i]->send(FrameType::kRegister, encode(registration));
    }
    beat();
  }

  void run() { loop_.run(); }

  uint32_t ready = 0, goodbyes = 0, ends = 0;
  uint64_t notices = 0, losses = 0;
  size_t description = 0;  // bytes

 private:
  void beat() {
    for (auto& channel : channels_) {
      if (!channel->closed()) channel->send(FrameType::kHeartbeat, encode(Beat{loop_.now()}));
    }
    loop_.call_after(kSecond, [this] { beat(); });
  }

  Status on_message(Channel& channel, FrameType type, uint8_t flags,
                    std::string_view payload) override {
    const auto i = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(channel.user));
    switch (type) {
      case FrameType::kReady: on_ready(i, payload); break;
      case FrameType::kPeerLost: {
        ++notices;
        const auto told = decode_losses(payload);
        EXPECT_TRUE(told.ok());
        if (!told.ok()) break;
        EXPECT_TRUE(check_next(*told, epochs_[i]).ok());
        epochs_[i] = told->epoch;
        losses += told->losses.size();
        break;
      }
      case FrameType::kGoodbye:
        if (flags == 0) {
          channel.close();
          ++goodbyes;
        } else {
          EXPECT_EQ(flags, kFlagEnd);
          EXPECT_GE(i, kRanks) << "servers are told of the end";
          ++ends;
          channel.send(FrameType::kGoodbye);
        }
        if (goodbyes == channels_.size()) loop_.stop();
        break;
      case FrameType::kHeartbeat:
      case FrameType::kRankTexts:
      case FrameType::kWarning: break;  // on a busy machine, ranks are late
      default: ADD_FAILURE() << wire::name_of(type) << " " << payload;
    }
    return {};
  }

  void on_ready(uint32_t i, std::string_view payload) {
    if (i % 509 == 0) {
      const auto message = decode_cluster(payload);
      ASSERT_TRUE(message.ok());
      EXPECT_EQ(message->cluster.size, kRanks);
      EXPECT_EQ(message->cluster.nodes, kRanks / kPerNode);
      EXPECT_EQ(message->cluster.servers.size(), kServers);
      if (i < kRanks) {
        EXPECT_EQ(message->index, i);
      }
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const bool neighbour = i < kRanks && rank / kPerNode == i / kPerNode;
        EXPECT_EQ(!message->cluster.workers[rank].bus.empty(), neighbour);
      }
    }
    description = std::max(description, payload.size());
    if (++ready < channels_.size()) return;
    for (uint32_t rank = 0; rank < kRanks; ++rank) channels_[rank]->send(FrameType::kGoodbye);
  }

  void on_dropped(Channel&, const Status& why) override { ADD_FAILURE() << why.message(); }

  transport::EpollLoop loop_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<uint32_t> epochs_ = std::vector<uint32_t>(kRanks + kServers, kFirstEpoch);
};

TEST(LargeJob, FourThousandRanksMeetAndLeave) {
  if (!transport::tcp::want_descriptors(2 * (kRanks + kServers)).ok()) {
    GTEST_SKIP() << "too few open files are allowed";
  }
  int port_pipe[2], end_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  ASSERT_EQ(pipe(end_pipe), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(end_pipe[1]);
    host(port_pipe[1], end_pipe[0]);
  }
  close(end_pipe[0]);
  uint16_t port = 0;
  ASSERT_EQ(read(port_pipe[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));

  const Nanos start = monotonic_now();
  std::vector<transport::tcp::Wanted> wanted;
  for (uint32_t i = 0; i < kRanks + kServers; ++i) {
    const bool server = i >= kRanks;
    wanted.push_back({{"127.0.0.1", port},
                      {server ? wire::Role::kServer : wire::Role::kWorker, server ? ~0u : i}});
  }
  auto connected =
      transport::tcp::connect_all(wanted, "", credentials(), monotonic_now() + 600 * kSecond);
  ASSERT_TRUE(connected.ok()) << connected.status().message();
  AllMembers members(std::move(*connected));
  members.run();
  const Nanos took = monotonic_now() - start;

  EXPECT_EQ(members.ready, kRanks + kServers);
  EXPECT_EQ(members.goodbyes, kRanks + kServers);
  EXPECT_EQ(members.ends, kServers);
  // Servers hear of each rank that leaves. No member gets one message per other member.
  EXPECT_GE(members.losses, uint64_t{kServers} * kRanks);
  EXPECT_LE(members.notices, uint64_t{kRanks + kServers} * 1000);
  close(end_pipe[1]);
  int status = 0;
  rusage used{};
  ASSERT_EQ(wait4(child, &status, 0, &used), child);
  EXPECT_EQ(status, 0);
  const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec * 1e-6; };
  const double processor = seconds(used.ru_utime) + seconds(used.ru_stime);
  printf("%u ranks and %u servers in %.2f s; the rendezvous took %.2f s of a processor and %ld MB, "
         "described the cluster in %zu bytes and sent %lu notices with %lu losses\n",
         kRanks, kServers, static_cast<double>(took) / kSecond, processor, used.ru_maxrss / 1024,
         members.description, members.notices, members.losses);
}

}  // namespace
}  // namespace herring::control
