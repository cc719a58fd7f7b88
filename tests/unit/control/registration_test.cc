// Tests registration end to end: which process gets which description or which error.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>

#include "control/messages.h"
#include "job.h"
#include "tests/unit/text.h"
#include "transport/tcp/connector.h"

namespace herring::control {
namespace {

using testing::Job;
using testing::kPatience;

TEST(Registration, OneWorkerStartsAServerForCoordination) {
  Job job(1);
  auto joined = job.join(job.worker(0)).get();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  const Cluster& cluster = (*joined)->cluster();
  EXPECT_EQ(cluster.size, 1u);
  EXPECT_EQ(cluster.nodes, 1u);
  ASSERT_EQ(cluster.servers.size(), 1u);
  EXPECT_FALSE(cluster.servers[0].dedicated);
  EXPECT_EQ(cluster.servers[0].node, 0u);
  EXPECT_EQ(cluster.servers[0].address, "127.0.0.1:5000");
  EXPECT_EQ(cluster.servers[0].weight, 1.0);
  EXPECT_EQ((*joined)->local_address(), "127.0.0.1");
  auto server = job.colocated().at(0).get();
  ASSERT_TRUE(server.ok());
  EXPECT_EQ((*server)->server_index(), 0u);
  (*joined)->goodbye();
  (*server)->goodbye();
}

TEST(Registration, EverybodyGetsTheSameCluster) {
  Job job(4, 1);
  std::vector<std::future<Job::Joined>> joining;
  for (uint32_t rank : {3u, 1u, 0u, 2u}) {
    joining.push_back(job.join(job.worker(rank, rank % 2 == 0 ? "even" : "odd")));
  }
  ServerRegistration dedicated;
  dedicated.port = 7000;
  dedicated.host = "10.1.2.3";
  joining.push_back(job.join(dedicated));
  std::vector<std::unique_ptr<Member>> members;
  for (auto& one : joining) {
    auto joined = one.get();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    members.push_back(std::move(*joined));
  }
  ASSERT_EQ(job.colocated().size(), 2u);
  for (auto& one : job.colocated()) {
    auto joined = one.get();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    const uint32_t index = (*joined)->server_index();
    EXPECT_EQ(index, 1 + (*joined)->cluster().servers.at(index).node);
    members.push_back(std::move(*joined));
  }
  for (size_t i = 0; i < 4; ++i) {
    // A member sees the local addresses of its own node only.
    const bool odd = i < 2;  // ranks 3 and 1 joined first
    EXPECT_EQ(members[i]->cluster().workers[3].bus, odd ? "bus 3" : "");
    EXPECT_EQ(members[i]->cluster().workers[2].bus, odd ? "" : "bus 2");
  }
  for (const auto& member : members) {
    const Cluster& cluster = member->cluster();
    EXPECT_EQ(cluster.size, 4u);
    EXPECT_EQ(cluster.nodes, 2u);
    EXPECT_EQ(cluster.ranks_of(0), (std::vector<uint32_t>{0, 2}));
    EXPECT_EQ(cluster.ranks_of(1), (std::vector<uint32_t>{1, 3}));
    EXPECT_EQ(cluster.settings.at("from"), "0");
    ASSERT_EQ(cluster.servers.size(), 3u);
    EXPECT_EQ(cluster.servers[0].address, "10.1.2.3:7000");
    EXPECT_TRUE(cluster.servers[0].dedicated);
    EXPECT_EQ(cluster.servers[1].address, "127.0.0.1:5000");
    EXPECT_EQ(cluster.servers[2].address, "127.0.0.1:5001");
    // The weights are 2(n-1) and n-k over n^2+kn-2k, with n = 2 and k = 1.
    EXPECT_DOUBLE_EQ(cluster.servers[0].weight, 0.5);
    EXPECT_DOUBLE_EQ(cluster.servers[1].weight, 0.25);
    EXPECT_EQ(cluster.describe_rank(1), concat("rank 1 (127.0.0.1, pid ", getpid(), ")"));
  }
  for (auto& member : members) member->goodbye();
}

TEST(Registration, DedicatedServersCountByAddress) {
  Job job(1, 3);
  std::vector<std::future<Job::Joined>> joining;
  // The hosts are not in order: the order of servers must not depend on who comes first.
  for (const char* host : {"10.0.0.16", "10.0.0.9", "9.0.0.100"}) {
    ServerRegistration server;
    server.port = 7000;
    server.host = host;
    joining.push_back(job.join(server));
  }
  joining.push_back(job.join(job.worker(0)));
  std::vector<std::unique_ptr<Member>> members;
  for (auto& one : joining) {
    auto joined = one.get();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    members.push_back(std::move(*joined));
  }
  EXPECT_EQ(members[0]->server_index(), 2u);
  EXPECT_EQ(members[1]->server_index(), 1u);
  EXPECT_EQ(members[2]->server_index(), 0u);
  const Cluster& cluster = members[3]->cluster();
  EXPECT_EQ(cluster.servers[0].address, "9.0.0.100:7000");
  EXPECT_EQ(cluster.servers[1].address, "10.0.0.9:7000");
  EXPECT_EQ(cluster.servers[2].address, "10.0.0.16:7000");
  for (auto& member : members) member->goodbye();
}

TEST(Registration, ManyMembersMeet) {
  constexpr uint32_t kSize = 40, kHosts = 10, kServers = 4;
  Job job(kSize, kServers);
  std::vector<std::future<Job::Joined>> joining;
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    joining.push_back(job.join(job.worker(rank, "host " + std::to_string(rank % kHosts))));
  }
  for (uint32_t i = 0; i < kServers; ++i) {
    ServerRegistration server;
    server.port = static_cast<uint16_t>(7000 + i);
    joining.push_back(job.join(server));
  }
  std::vector<std::unique_ptr<Member>> members;
  for (auto& one : joining) {
    auto joined = one.get();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    members.push_back(std::move(*joined));
  }
  std::set<uint32_t> indices;
  for (const auto& member : members) {
    EXPECT_EQ(member->cluster().nodes, kHosts);
    EXPECT_EQ(member->cluster().servers.size(), kServers + kHosts);
    EXPECT_EQ(encode_common(member->cluster()), encode_common(members[0]->cluster()));
  }
  for (size_t i = kSize; i < members.size(); ++i) indices.insert(members[i]->server_index());
  EXPECT_EQ(indices, (std::set<uint32_t>{0, 1, 2, 3}));
}

// Joins all processes and expects the same error in each of them.
void expect_everywhere(Job& job, const std::vector<WorkerRegistration>& workers, Code code,
                       const std::vector<std::string>& parts, size_t servers = 0) {
  std::vector<std::future<Job::Joined>> joining;
  for (const WorkerRegistration& worker : workers) joining.push_back(job.join(worker));
  for (size_t i = 0; i < servers; ++i) {
    ServerRegistration server;
    server.port = 7000;
    joining.push_back(job.join(server));
  }
  std::string first;
  for (auto& one : joining) {
    auto joined = one.get();
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.status().code(), code) << joined.status().to_string();
    for (const std::string& part : parts) {
      EXPECT_TRUE(contains(joined.status().message(), part))
          << "'" << part << "' is not in: " << joined.status().message();
    }
    if (first.empty()) first = joined.status().message();
    EXPECT_EQ(joined.status().message(), first);
  }
}

TEST(Registration, DifferentSizesAreToldToEverybody) {
  Job job(3);
  WorkerRegistration odd = job.worker(2);
  odd.size = 4;
  expect_everywhere(job, {job.worker(0), job.worker(1), odd}, Code::kConfiguration,
                    {"HERRING_SIZE", "3 (ranks 0-1)", "4 (rank 2)", "the rendezvous expects 3"});
}

TEST(Registration, DifferentServerCountsAreToldToEverybody) {
  Job job(2, 1);
  WorkerRegistration odd = job.worker(1);
  odd.dedicated_servers = 2;
  expect_everywhere(job, {job.worker(0), odd}, Code::kConfiguration,
                    {"HERRING_SERVERS", "1 (rank 0)", "2 (rank 1)"}, 1);
}

TEST(Registration, DifferentWaysToSendObjectsAreToldToEverybody) {
  Job job(3);
  WorkerRegistration odd = job.worker(2);
  odd.settings["objects"] = "json";
  expect_everywhere(job, {job.worker(0), job.worker(1), odd}, Code::kConfiguration,
                    {"HERRING_OBJECTS", "json (rank 2)", "pickle (ranks 0-1)"});
}

TEST(Registration, ARankTwiceIsToldToEverybody) {
  Job job(3);
  expect_everywhere(job, {job.worker(0), job.worker(1), job.worker(1)}, Code::kConfiguration,
                    {"rank 1 has registered twice", concat("pid ", getpid()), "HERRING_RANK"});
}

TEST(Registration, ATooLargeRankIsToldEvenWhenOthersAreMissing) {
  Job job(4);
  expect_everywhere(job, {job.worker(0), job.worker(7)}, Code::kConfiguration,
                    {"rank 7", "job of 4 workers"});
}

TEST(Registration, ContradictingLocalRanksAreToldToEverybody) {
  Job job(3);
  WorkerRegistration first = job.worker(0), second = job.worker(1);
  first.local_rank = second.local_rank = 1;
  expect_everywhere(job, {first, second, job.worker(2)}, Code::kConfiguration,
                    {"twice", "rank 0 has local rank 1", "rank 1 has local rank 1",
                     "rank 2 has local rank unset", "HERRING_LOCAL_RANK"});
}

TEST(Registration, BadServerWeightsAreToldToEverybody) {
  Job job(2, 1);
  WorkerRegistration first = job.worker(0);
  first.settings["server_weights"] = "1,2";
  expect_everywhere(job, {first, job.worker(1)}, Code::kConfiguration,
                    {"server_weights is '1,2'", "it has 2 numbers", "it needs 1 comma"}, 1);
}

TEST(Registration, MissingRanksAndServersAreListed) {
  Job job(6, 2, 700 * kMillisecond);
  job.options().connect_timeout = kPatience;  // so the rendezvous' timeout comes first
  expect_everywhere(job, {job.worker(0), job.worker(2)}, Code::kTimeout,
                    {"ranks 1, 3-5 of 6", "1 of 2 dedicated servers"}, 1);
}

TEST(Registration, TheMostImpatientMemberGetsTheListInTime) {
  Job job(2);
  job.options().connect_timeout = 600 * kMillisecond;
  expect_everywhere(job, {job.worker(1)}, Code::kTimeout, {"missing rank 0 of 2"});
}

TEST(Registration, AColocatedServerThatNeverComesIsNamed) {
  Job job(2, 0, 6 * kSecond);
  const auto nothing = [](const Cluster&, uint32_t) { return Status(); };
  auto second = std::async(std::launch::async, [&] {
    return Member::join(job.options(), job.worker(1, "b"), nothing);
  });
  auto first = Member::join(job.options(), job.worker(0, "a"), nothing);
  for (const Status& status : {first.status(), second.get().status()}) {
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_TRUE(contains(status.message(), "the colocated servers of nodes 0-1"))
        << status.message();
  }
}

TEST(Registration, AColocatedServerThatCannotStartIsToldToEverybody) {
  Job job(2, 0, 8 * kSecond);  // the other server asks for the next job for this long
  auto second = std::async(std::launch::async, [&] {
    const auto start = [](const Cluster& cluster, uint32_t node) {
      EXPECT_EQ(cluster.nodes, 2u);
      EXPECT_EQ(node, 1u);
      return Status(Code::kConfiguration, "no port is free");
    };
    return Member::join(job.options(), job.worker(1, "b"), start);
  });
  auto first = job.join(job.worker(0, "a")).get();
  EXPECT_EQ(first.status().code(), Code::kConfiguration);
  EXPECT_TRUE(contains(first.status().message(), "rank 1 (127.0.0.1")) << first.status().message();
  EXPECT_TRUE(contains(first.status().message(), "no port is free"));
  EXPECT_EQ(second.get().status().message(), "no port is free");
}

TEST(Registration, AMemberThatDiesBeforeTheStartIsToldToTheOthers) {
  Job job(3);
  auto waiting = job.join(job.worker(0));
  // Registers as rank 1, then drops the connection.
  auto fd = transport::tcp::connect_and_prove(job.options().rendezvous, "", {},
                                              testing::credentials(), monotonic_now() + kPatience);
  ASSERT_TRUE(fd.ok());
  testing::send_frame(fd->get(), wire::FrameType::kRegister,
                      encode(Registration{job.worker(1), 4711, kPatience}));
  fd->reset();
  auto joined = waiting.get();
  EXPECT_EQ(joined.status().code(), Code::kPeerLost);
  EXPECT_TRUE(contains(joined.status().message(), "rank 1 (127.0.0.1, pid 4711) is lost"))
      << joined.status().message();
  // A rank that comes later gets the same error.
  EXPECT_EQ(job.join(job.worker(2)).get().status().message(), joined.status().message());
}

TEST(Registration, ALateRankAndASurplusServerAreRefusedAlone) {
  Job job(1, 1, 8 * kSecond);  // the surplus server asks for the next job for this long
  ServerRegistration dedicated;
  dedicated.port = 7000;
  auto server = job.join(dedicated);
  auto worker = job.join(job.worker(0)).get();
  ASSERT_TRUE(worker.ok()) << worker.status().to_string();
  ASSERT_TRUE(server.get().ok());
  auto late = job.join(job.worker(0, "another host")).get();
  EXPECT_EQ(late.status().code(), Code::kConfiguration);
  EXPECT_TRUE(contains(late.status().message(), "rank 0 comes too late"))
      << late.status().message();
  auto surplus = job.join(dedicated).get();
  EXPECT_EQ(surplus.status().code(), Code::kConfiguration);
  EXPECT_TRUE(contains(surplus.status().message(), "expects 1 dedicated server "));
  ServerRegistration colocated;
  colocated.dedicated = false;
  colocated.node = 0;
  colocated.port = 7001;
  EXPECT_EQ(job.join(colocated).get().status().code(), Code::kConfiguration);
}

TEST(Registration, AProcessThatComesAnewBeforeItsEndIsSeenIsToldToComeAgain) {
  Job job(1);
  auto worker = job.join(job.worker(0)).get();
  ASSERT_TRUE(worker.ok()) << worker.status().to_string();
  const auto answer_to = [&job](int64_t pid) {
    auto fd = transport::tcp::connect_and_prove(job.options().rendezvous, "", {},
                                                testing::credentials(),
                                                monotonic_now() + kPatience);
    EXPECT_TRUE(fd.ok());
    testing::send_frame(fd->get(), wire::FrameType::kRegister,
                        encode(Registration{job.worker(0), pid, kPatience}));
    const auto receive = [&fd](char* to, size_t bytes) {
      for (size_t have = 0; have < bytes;) {
        pollfd waiting{fd->get(), POLLIN, 0};
        ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
        const ssize_t more = ::recv(fd->get(), to + have, bytes - have, 0);
        ASSERT_GT(more, 0);
        have += static_cast<size_t>(more);
      }
    };
    wire::FrameHeader header;
    do {
      receive(reinterpret_cast<char*>(&header), sizeof(header));
      std::string payload(header.payload, '\0');
      receive(payload.data(), payload.size());
    } while (header.type != wire::FrameType::kAbort && !::testing::Test::HasFatalFailure());
    return header.flags;
  };
  EXPECT_EQ(answer_to(getpid()), kFlagAgain);
  EXPECT_EQ(answer_to(getpid() + 1), 0);
}

TEST(Registration, AWrongSecretFailsAtOnceAndIsMentionedToThoseWhoWait) {
  Job job(2, 0, 6 * kSecond);
  auto waiting = job.join(job.worker(0));
  Member::Options stranger = job.options();
  stranger.credentials = testing::credentials("another secret");
  auto refused = Member::join(stranger, job.worker(1), nullptr);
  EXPECT_EQ(refused.status().code(), Code::kAuthentication) << refused.status().to_string();
  EXPECT_TRUE(contains(refused.status().message(), job.options().rendezvous.to_string()));
  EXPECT_TRUE(contains(refused.status().message(), "HERRING_SECRET_FILE"));
  auto joined = waiting.get();
  EXPECT_EQ(joined.status().code(), Code::kTimeout);
  EXPECT_TRUE(contains(joined.status().message(), "missing rank 1 of 2; 1 connection was refused"))
      << joined.status().message();
}

TEST(Registration, WhoLooksForAServerOfAnotherStartIsToldSo) {
  Job job(1);
  // A server of an earlier start listened where the rendezvous listens now.
  const Status refused =
      transport::tcp::connect_and_prove(job.options().rendezvous, "",
                                        {wire::Role::kWorker, 0, 0, 77}, job.options().credentials,
                                        monotonic_now() + kPatience)
          .status();
  EXPECT_EQ(refused.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(refused.message(), "another start of the same job")) << refused.message();
}

TEST(Registration, AnotherJobIsNamed) {
  Job job(1);
  Member::Options other = job.options();
  other.credentials.job = wire::job_id("another");
  const Status status = Member::join(other, job.worker(0), nullptr).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "HERRING_JOB")) << status.message();
}

TEST(Registration, AnUnreachableRendezvousIsNamed) {
  Member::Options options;
  {
    auto listener = transport::tcp::listen_on({"127.0.0.1", 0}, 1);
    ASSERT_TRUE(listener.ok());
    options.rendezvous = *transport::tcp::local_address(listener->get());
  }
  options.credentials = testing::credentials();
  options.connect_timeout = 300 * kMillisecond;
  const Status status = Member::join(options, WorkerRegistration(), nullptr).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_TRUE(contains(status.message(), options.rendezvous.to_string())) << status.message();
  EXPECT_TRUE(contains(status.message(), "HERRING_RENDEZVOUS"));
  EXPECT_TRUE(contains(status.message(), "Connection refused"));
}

TEST(Registration, WhatCannotBeRegisteredIsRefusedHere) {
  Job job(1);
  WorkerRegistration large = job.worker(0);
  large.settings["long"] = std::string(kMaxSettingBytes + 1, 'x');
  Status status = Member::join(job.options(), large, nullptr).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "'long'")) << status.message();
  Member::Options open = job.options();
  open.credentials.secret.clear();
  status = Member::join(open, job.worker(0), nullptr).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "secret")) << status.message();
}

TEST(Registration, TheEndOfTheRendezvousEndsTheWaiting) {
  Job job(2);
  job.options().connect_timeout = 2 * kSecond;
  auto waiting = job.join(job.worker(0));
  job.rendezvous_pointer().reset();  // before or after the registration; neither may hang
  const Status status = waiting.get().status();
  EXPECT_TRUE(status.code() == Code::kPeerLost || status.code() == Code::kTimeout)
      << status.to_string();
}

}  // namespace
}  // namespace herring::control
