// Registration end to end: who gets which description or which error.
#include <gtest/gtest.h>

#include "tests/unit/control/job.h"

namespace herring::control {
namespace {

using testing::Job;
using testing::kPatience;
using ::testing::Test;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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
    EXPECT_EQ((*joined)->server_index(), 1 + (*joined)->cluster().servers.at((*joined)->server_index()).node);
    members.push_back(std::move(*joined));
  }
  for (const auto& member : members) {
    const Cluster& cluster = member->cluster();
    EXPECT_EQ(cluster.size, 4u);
    EXPECT_EQ(cluster.nodes, 2u);
    EXPECT_EQ(cluster.ranks_of(0), (std::vector<uint32_t>{0, 2}));
    EXPECT_EQ(cluster.ranks_of(1), (std::vector<uint32_t>{1, 3}));
    EXPECT_EQ(cluster.settings.at("from"), "0");
    EXPECT_EQ(cluster.workers[3].bus, "bus 3");
    ASSERT_EQ(cluster.servers.size(), 3u);
    EXPECT_EQ(cluster.servers[0].address, "10.1.2.3:7000");
    EXPECT_TRUE(cluster.servers[0].dedicated);
    EXPECT_EQ(cluster.servers[1].address, "127.0.0.1:5000");
    EXPECT_EQ(cluster.servers[2].address, "127.0.0.1:5001");
    // 2(n-1) and n-k over n^2+kn-2k, with n = 2 and k = 1.
    EXPECT_DOUBLE_EQ(cluster.servers[0].weight, 0.5);
    EXPECT_DOUBLE_EQ(cluster.servers[1].weight, 0.25);
    EXPECT_EQ(cluster.describe_rank(1), concat("rank 1 (127.0.0.1, pid ", getpid(), ")"));
  }
  for (auto& member : members) member->goodbye();
}

}  // namespace
}  // namespace herring::control
