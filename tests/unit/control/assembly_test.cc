// Tests of assemble(), the pure function from registrations to the cluster.
#include "control/assembly.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/unit/text.h"

namespace herring::control {
namespace {

RegisteredWorker worker(uint32_t rank, const std::string& host, int local_rank = -1,
                        int local_size = -1) {
  RegisteredWorker one;
  one.registration.rank = rank;
  one.registration.size = 4;
  one.registration.host_id = host;
  one.registration.local_rank = local_rank;
  one.registration.local_size = local_size;
  one.host = "10.0.0." + std::to_string(rank);
  one.pid = 100 + rank;
  return one;
}

TEST(Assembly, NodesAreNumberedByTheirLowestRank) {
  auto cluster = assemble({worker(3, "x"), worker(2, "y"), worker(1, "x"), worker(0, "z")});
  ASSERT_TRUE(cluster.ok());
  EXPECT_EQ(cluster->nodes, 3u);
  EXPECT_EQ(cluster->ranks_of(0), (std::vector<uint32_t>{0}));
  EXPECT_EQ(cluster->ranks_of(1), (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(cluster->ranks_of(2), (std::vector<uint32_t>{2}));
  EXPECT_EQ(cluster->local_size(1), 2u);
}

TEST(Assembly, GivenLocalRanksStayAndOthersFillUp) {
  auto cluster =
      assemble({worker(0, "x", 2, 4), worker(1, "x"), worker(2, "x", 0), worker(3, "x")});
  ASSERT_TRUE(cluster.ok()) << cluster.status().to_string();
  EXPECT_EQ(cluster->ranks_of(0), (std::vector<uint32_t>{2, 1, 0, 3}));
}

TEST(Assembly, LocalContradictionsNameRanksAndValues) {
  Status status = assemble({worker(0, "x", 0, 2), worker(1, "y", 1, 2)}).status();
  EXPECT_EQ(status.code(), Code::kConfiguration);
  EXPECT_TRUE(contains(status.message(), "rank 0 has local rank 0 of 2")) << status.message();
  EXPECT_TRUE(contains(status.message(), "HERRING_HOST_ID"));
  status = assemble({worker(0, "x", 0, 2), worker(1, "x", 2)}).status();
  EXPECT_TRUE(contains(status.message(), "too large")) << status.message();
  EXPECT_TRUE(contains(status.message(), "rank 1 has local rank 2 of unset")) << status.message();
  status = assemble({worker(0, "x", 1, 2), worker(1, "x", 1, 2)}).status();
  EXPECT_TRUE(contains(status.message(), "twice")) << status.message();
}

TEST(Assembly, LocalRanksAreAlwaysAPermutation) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint32_t size = 1 + random() % 12, hosts = 1 + random() % 4;
    std::vector<RegisteredWorker> workers;
    std::vector<std::vector<int>> free_ranks(hosts);
    std::vector<uint32_t> host_of(size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      host_of[rank] = random() % hosts;
      free_ranks[host_of[rank]].push_back(static_cast<int>(free_ranks[host_of[rank]].size()));
    }
    for (auto& ranks : free_ranks) std::shuffle(ranks.begin(), ranks.end(), random);
    for (uint32_t rank = 0; rank < size; ++rank) {
      const int local = free_ranks[host_of[rank]].back();
      free_ranks[host_of[rank]].pop_back();
      workers.push_back(worker(rank, "h" + std::to_string(host_of[rank]),
                               random() % 2 == 0 ? local : -1));
    }
    std::shuffle(workers.begin(), workers.end(), random);
    auto cluster = assemble(workers);
    ASSERT_TRUE(cluster.ok()) << cluster.status().to_string();
    uint32_t all = 0;
    for (uint32_t node = 0; node < cluster->nodes; ++node) {
      std::vector<uint32_t> local;
      for (const WorkerInfo& info : cluster->workers) {
        if (info.node == node) local.push_back(info.local_rank);
      }
      std::sort(local.begin(), local.end());
      std::vector<uint32_t> expected(local.size());
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(local, expected);
      all += static_cast<uint32_t>(local.size());
    }
    EXPECT_EQ(all, size);
    for (const RegisteredWorker& one : workers) {
      const int given = one.registration.local_rank;
      if (given >= 0) {
        EXPECT_EQ(cluster->workers[one.registration.rank].local_rank, static_cast<uint32_t>(given));
      }
    }
  }
}

TEST(Assembly, ColocatedServersRunWhereTheyMust) {
  EXPECT_EQ(colocated_nodes(1, 0), (std::vector<uint32_t>{0}));
  EXPECT_EQ(colocated_nodes(1, 1), (std::vector<uint32_t>{}));
  EXPECT_EQ(colocated_nodes(3, 0), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(colocated_nodes(3, 2), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(colocated_nodes(3, 3), (std::vector<uint32_t>{}));
  EXPECT_EQ(colocated_nodes(3, 5), (std::vector<uint32_t>{}));
}

TEST(Assembly, WeightsComeFromThePlanOrTheSetting) {
  EXPECT_EQ(*choose_weights({}, 1, 0), (std::vector<double>{1}));
  for (const char* none : {"", " "}) {
    EXPECT_EQ(*choose_weights({{"server_weights", none}}, 2, 2), (std::vector<double>{0.5, 0.5}));
  }
  EXPECT_EQ(*choose_weights({{"server_weights", "1, 0.5 ,0"}}, 2, 1),
            (std::vector<double>{1, 0.5, 0}));
  for (const char* bad : {"1,2", "1,2,3,4", "1,,2", "1,2,", "a,b,c", "-1,1,1", "nan,1,1", "inf,1,1",
                          "0,0,0", "1 2,3,4", ","}) {
    const Status status = choose_weights({{"server_weights", bad}}, 2, 1).status();
    EXPECT_EQ(status.code(), Code::kConfiguration) << bad;
    EXPECT_TRUE(contains(status.message(), concat("'", bad, "'"))) << status.message();
    EXPECT_TRUE(contains(status.message(), "it needs 3 comma-separated")) << status.message();
  }
}

TEST(Assembly, AddressesAreOrderedAsPeopleCount) {
  const std::vector<std::string> ordered = {"9.0.0.100:1",  "10.0.0.9:7000", "10.0.0.9:29400",
                                            "10.0.0.10:80", "10.0.0.010:81", "[fe80::1]:1",
                                            "host2:1",      "host10:1",      "host10:1a"};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(address_before(ordered[i], ordered[j]), i < j) << ordered[i] << " " << ordered[j];
    }
  }
}

TEST(Assembly, ARosterSeesEveryContradiction) {
  const auto sound = [](std::vector<WorkerRegistration> workers) {
    Roster roster(4, 1);
    std::vector<RegisteredWorker> registered;
    for (const WorkerRegistration& worker : workers) {
      roster.add(worker);
      registered.push_back({worker, "host", 1});
    }
    EXPECT_EQ(roster.sound(), find_contradiction(registered, 4, 1).ok());
    return roster.sound();
  };
  const auto worker = [](uint32_t rank, uint32_t size = 4, uint32_t servers = 1) {
    WorkerRegistration one;
    one.rank = rank;
    one.size = size;
    one.dedicated_servers = servers;
    return one;
  };
  const auto sends = [&](uint32_t rank, const char* objects) {
    WorkerRegistration one = worker(rank);
    one.settings["objects"] = objects;
    return one;
  };
  EXPECT_TRUE(sound({sends(1, "json"), sends(0, "json")}));
  EXPECT_TRUE(sound({sends(1, "pickle"), worker(0)})) << "the default";
  EXPECT_FALSE(sound({sends(1, "json"), worker(0)}));
  EXPECT_FALSE(sound({sends(1, "json"), sends(2, "json"), sends(0, "none")}));
  EXPECT_TRUE(sound({}));
  EXPECT_TRUE(sound({worker(3), worker(0), worker(2)}));
  EXPECT_FALSE(sound({worker(3), worker(0), worker(3)}));
  EXPECT_FALSE(sound({worker(4)}));
  EXPECT_FALSE(sound({worker(1, 5)}));
  EXPECT_FALSE(sound({worker(1, 4, 0), worker(2)}));
}

TEST(Assembly, ServersCountByTheNumbersThatTheyAskForAndByTheirAddresses) {
  constexpr uint32_t kAny = ~0u;
  EXPECT_EQ(
      number_servers({{kAny, "10.0.0.16:7000"}, {kAny, "10.0.0.9:7000"}, {kAny, "9.0.0.100:7000"}}),
      (std::vector<uint32_t>{2, 1, 0}));
  EXPECT_EQ(number_servers({{1, "10.0.0.1:1"}, {0, "10.0.0.2:1"}, {2, "10.0.0.0:1"}}),
            (std::vector<uint32_t>{1, 0, 2}));
  EXPECT_EQ(number_servers({{kAny, "10.0.0.1:1"}, {5, "10.0.0.9:1"}, {5, "10.0.0.3:1"}}),
            (std::vector<uint32_t>{2, 1, 0}));
  EXPECT_TRUE(number_servers({}).empty());
}

TEST(Assembly, RefusalsAreCountedAndTheFirstAreNamed) {
  Refusals refusals;
  EXPECT_EQ(refusals.text(), "");
  refusals.add("10.0.0.1", "a");
  EXPECT_EQ(refusals.text(), "; 1 connection was refused: 10.0.0.1 (a)");
  for (int i = 2; i < 6; ++i) refusals.add(concat("10.0.0.", i), "b");
  EXPECT_EQ(refusals.text(),
            "; 5 connections were refused: 10.0.0.1 (a), 10.0.0.2 (b), 10.0.0.3 (b)");
}

}  // namespace
}  // namespace herring::control
