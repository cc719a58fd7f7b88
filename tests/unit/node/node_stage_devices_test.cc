// Tests the node stage with devices that add.
#include "node_stage_fixture.h"

#include <algorithm>

namespace herring {
namespace {

using namespace node_stage_test;

// A device can start only when all ranks have posted: the divisor and the contributors are not
// known before.
class NodesWithDevices : public NodeStageTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(NodesWithDevices, AddSlices) {
  constexpr size_t kBytes = 4 * kSegment;
  const uint32_t nodes = GetParam();
  make(3, nodes);
  std::vector<std::shared_ptr<Adder>> adders;
  for (uint32_t r = 0; r < 3; ++r) adders.push_back(std::make_shared<Adder>());
  const auto added = [&](uint32_t r) { ranks[r].stage->added({3, 0, 0}); };
  const auto nobody_has_it = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const Rank& rank) { return rank.workers.empty(); });
  };
  run({[&] {
         for (const uint32_t r : {0u, 2u}) {
           post(r, allocate(r, kBytes), kBytes, 0, true, adders[r]);
         }
       },
       [&] {
         EXPECT_FALSE(adders[0]->started);
         post(1, allocate(1, kBytes), kBytes, 0, false, adders[1]);
       },
       [&] {
         for (const auto& adder : adders) {
           EXPECT_TRUE(adder->started);
           EXPECT_EQ(adder->active, 0b101u);
           EXPECT_EQ(adder->divisor, nodes == 1 ? 2.0 : 1.0);  // on two nodes, the servers divide
         }
         added(2);
         added(0);
       },
       [&] {
         EXPECT_TRUE(nobody_has_it());
         added(1);
       }});
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{nodes == 1 ? 2u : 5u});
  }
}

INSTANTIATE_TEST_SUITE_P(OneAndTwo, NodesWithDevices, ::testing::Values(1u, 2u));

TEST_F(NodeStageTest, DevicesGiveResultsToTheirNeighbours) {
  constexpr size_t kBytes = 4 * kSegment;
  make(2, 2);
  const auto first = std::make_shared<Adder>(), second = std::make_shared<Adder>();
  first->gives_results = second->gives_results = true;
  const auto nobody_has_it = [&] { return ranks[0].workers.empty() && ranks[1].workers.empty(); };
  run({[&] {
         post(0, allocate(0, kBytes), kBytes, 0, true, first);
         post(1, allocate(1, kBytes), kBytes, 0, true, second);
       },
       [&] {
         EXPECT_FALSE(first->giving || second->giving);
         for (Rank& rank : ranks) rank.stage->added({3, 0, 0});
       },
       [&] {
         EXPECT_TRUE(first->giving && second->giving) << "servers have answered";
         EXPECT_TRUE(nobody_has_it());
         ranks[0].stage->given({3, 0, 0});
       },
       [&] {
         EXPECT_TRUE(nobody_has_it()) << "the slice of the second is not there";
         ranks[1].stage->given({3, 0, 0});
       }});
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{5});
  }
}

TEST_F(NodeStageTest, LaterBuffersArePushedWhileADeviceGivesAResult) {
  make(2, 2);
  const auto adder = std::make_shared<Adder>();
  adder->gives_results = true;
  run({[&] {
         for (const uint32_t r : {0u, 1u}) {
           for (const uint32_t buffer : {0u, 1u}) {
             post(r, allocate(r, 2 * kSegment), 2 * kSegment, 0, true, adder, {}, buffer);
           }
         }
       },
       [&] { ranks[0].stage->added({3, 0, 0}); },
       [&] {
         EXPECT_TRUE(adder->giving);
         ranks[0].stage->added({3, 0, 1});
       }});
  EXPECT_EQ(servers.pushed, (std::vector<uint32_t>{0, 1}));
}

// Until a device has stopped it may still touch a neighbour's memory.
TEST_F(NodeStageTest, AGroupIsCalledOffWhileADeviceGivesAResult) {
  constexpr size_t kBytes = 4 * kSegment;
  make(2, 2);
  const auto first = std::make_shared<Adder>(), second = std::make_shared<Adder>();
  first->gives_results = second->gives_results = true;
  run({[&] {
         post(0, allocate(0, kBytes), kBytes, 0, true, first);
         post(1, allocate(1, kBytes), kBytes, 0, true, second);
       },
       [&] {
         for (Rank& rank : ranks) rank.stage->added({3, 0, 0});
       },
       [&] {
         for (Rank& rank : ranks) rank.stage->call_off(rank.group);
       },
       [&] {
         EXPECT_TRUE(first->stopped && second->stopped);
         EXPECT_TRUE(ranks[0].workers.empty() && ranks[1].workers.empty());
         ranks[0].stage->given({3, 0, 0});
       },
       [&] {
         EXPECT_TRUE(ranks[0].workers.empty());  // its neighbour's device has not stopped
         ranks[1].stage->given({3, 0, 0});
       }});
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{0});
    EXPECT_FALSE(rank.stage->busy(0));
  }
}

// Other nodes, whose processors add, push the buffers of a round in order.
TEST_F(NodeStageTest, WhatProcessorsHaveAddedWaitsForEarlierBuffersThatADeviceAdds) {
  constexpr uint32_t kBuffers = 4;
  make(2, 2);
  const auto adder = std::make_shared<Adder>();
  run({[&] {
         for (uint32_t buffer = 0; buffer < kBuffers; ++buffer) {
           for (const uint32_t r : {0u, 1u}) {
             post(r, allocate(r, 2 * kSegment), 2 * kSegment, 0, true,
                  buffer % 2 == 0 ? adder : nullptr, {}, buffer);
           }
         }
       },
       [&] {
         EXPECT_TRUE(servers.pushed.empty());
         ranks[0].stage->added({3, 0, 2});  // not before buffer 0
       },
       [&] {
         EXPECT_TRUE(servers.pushed.empty());
         ranks[0].stage->added({3, 0, 0});
       },
       [&] {
         EXPECT_EQ(servers.pushed, (std::vector<uint32_t>{0, 1, 2, 3}));
         servers.pushed.clear();
         ranks[1].stage->added({3, 0, 0});
       },
       [&] {
         EXPECT_EQ(servers.pushed, (std::vector<uint32_t>{0, 1}));
         ranks[1].stage->added({3, 0, 2});
       }});
  EXPECT_EQ(servers.pushed, (std::vector<uint32_t>{0, 1, 2, 3}));
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers, std::vector<uint32_t>(kBuffers, 5));
  }
}

// Until a device has stopped it may still touch a neighbour's memory.
TEST_F(NodeStageTest, AGroupIsCalledOffWhileADeviceAdds) {
  constexpr size_t kBytes = 4 * kSegment;
  make(2, 1);
  const auto first = std::make_shared<Adder>(), second = std::make_shared<Adder>();
  run({[&] {
         post(0, allocate(0, kBytes), kBytes, 0, true, first);
         post(1, allocate(1, kBytes), kBytes, 0, true, second);
       },
       [&] {
         for (Rank& rank : ranks) rank.stage->call_off(rank.group);
       },
       [&] {
         EXPECT_TRUE(first->stopped && second->stopped);
         EXPECT_TRUE(ranks[0].workers.empty() && ranks[1].workers.empty());
         ranks[0].stage->added({3, 0, 0});
       },
       [&] {
         EXPECT_TRUE(ranks[0].workers.empty());  // its neighbour's device has not stopped
         EXPECT_EQ(ranks[1].workers.size(), 0u);
         ranks[1].stage->added({3, 0, 0});
       }});
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{0});
    EXPECT_FALSE(rank.stage->busy(0));
  }
}

TEST_F(NodeStageTest, WhatHasNotBegunToAddIsNotThrough) {
  make(2, 1);
  const auto adder = std::make_shared<SlowAdder>();
  run({[&] { post(0, allocate(0, kSmall), kSmall, 0, true, adder); },
       [&] { ranks[0].stage->added({3, 0, 0}); },  // as if the device had been stopped
       [&] { EXPECT_TRUE(ranks[0].workers.empty()); },
       [&] { post(1, allocate(1, kSmall), kSmall, 0, true, adder); },
       [&] {
         EXPECT_EQ(adder->started, 1) << "of a small buffer one rank has all";
         for (Rank& rank : ranks) rank.stage->added({3, 0, 0});
       }});
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{2});
  }
}

TEST_F(NodeStageTest, DevicesThatHangAreWaitedForOnce) {
  constexpr uint32_t kBuffers = 20;
  make(2, 1);
  const auto adder = std::make_shared<SlowAdder>();
  run({[&] {
    for (uint32_t round = 0; round < kBuffers; ++round) {
      for (const uint32_t r : {0u, 1u}) {
        post(r, allocate(r, 2 * kSegment), 2 * kSegment, round, true, adder);
      }
    }
  }});
  EXPECT_EQ(adder->started, 2 * kBuffers);
  const Nanos start = monotonic_now();
  ranks[0].stage->clear();
  // Not once for each buffer, however busy the machine is.
  EXPECT_LT(monotonic_now() - start, kBuffers / 2 * kSecond);
  EXPECT_EQ(adder->stopped, kBuffers);
}

}  // namespace
}  // namespace herring
