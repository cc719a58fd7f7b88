// Tests the node stage with the local ranks of a node in one process, on one loop.
#include "node/node_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/epoll_loop.h"

namespace herring {
namespace {

constexpr size_t kSegment = 1024, kSmall = 64;

// Servers that answer every push with the same bytes, and report `workers` contributing workers.
class Servers : public Pusher {
 public:
  Servers(transport::EventLoop& loop, uint32_t workers) : loop_(loop), workers_(workers) {}

  Status push(Transfer& transfer, std::shared_ptr<void> keeps) override {
    loop_.post([this, &transfer, keeps] {
      for (const plan::SegmentRun& run : transfer.runs) {
        const plan::Range range = plan::run_range(transfer.shards, kSegment, run);
        if (transfer.send == nullptr) std::memset(transfer.receive + range.offset, 0, range.bytes);
        transfer.workers = workers_;
        transfer.owner->on_result(transfer, range);
      }
      transfer.owner->on_transfer_done(transfer);
    });
    return {};
  }
  Nanos answered_at() const override { return 0; }

 private:
  transport::EventLoop& loop_;
  const uint32_t workers_;
};

// A device that is done adding when the test says so.
class Adder : public SliceAdder {
 public:
  void start(uint32_t active, double divisor) override {
    started = true;
    this->active = active;
    this->divisor = divisor;
  }
  void stop() override { stopped = true; }
  bool through() const override { return true; }

  bool started = false, stopped = false;
  uint32_t active = 0;
  double divisor = 0;
};

class NodeStageTest : public ::testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<SharedHeap> heap = std::make_unique<SharedHeap>(0);  // caches nothing
    std::unique_ptr<LocalBus> bus;
    std::unique_ptr<NodeStage> stage;
    std::vector<uint32_t> workers;  // contributing workers, per finished task
    std::vector<Status> failures;
    std::shared_ptr<LocalGroup> group;
  };

  void make(uint32_t size, uint32_t nodes, uint32_t adders = 1) {
    ranks = std::vector<Rank>(size);
    std::vector<LocalAddress> addresses;
    for (Rank& rank : ranks) {
      auto bus = LocalBus::listen();
      ASSERT_TRUE(bus.ok());
      rank.bus = std::move(*bus);
      addresses.push_back(rank.bus->address());
    }
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        const Nanos deadline = monotonic_now() + 30 * kSecond;
        EXPECT_TRUE(ranks[r].bus->connect(r, addresses, deadline).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    cluster.nodes = nodes;
    cluster.size = nodes * size;
    for (uint32_t r = 0; r < cluster.size; ++r) {
      cluster.workers.push_back({r, r / size, r % size, "10.0.0.1", 100 + r, ""});
    }
    cluster.servers.push_back({0, true, ~0u, "10.0.0.2:7000", 1.0});
    for (uint32_t r = 0; r < size; ++r) {
      Rank& rank = ranks[r];
      rank.group = std::make_shared<LocalGroup>(cluster, control::Group(cluster), r);
      NodeStage::Options stage;
      stage.local_rank = r;
      stage.threads = adders;
      stage.segment_bytes = kSegment;
      for (uint32_t other = 0; other < size; ++other) {
        stage.names.push_back(size > 2 ? concat("rank ", 10 + other) : "a rank");
        stage.ranks.push_back(10 + other);
      }
      stage.states = &states;
      rank.stage = std::make_unique<NodeStage>(
          loop, *rank.bus, *rank.heap, servers, stage,
          [&rank](const Status& why) { rank.failures.push_back(why); });
      rank.stage->attach();
    }
  }

  char* allocate(uint32_t r, size_t bytes) {
    auto memory = ranks[r].heap->allocate(bytes);
    EXPECT_TRUE(memory.ok());
    return static_cast<char*>(*memory);
  }

  void post(uint32_t r, char* data, size_t bytes, uint32_t round = 0, bool active = true,
            std::shared_ptr<SliceAdder> adder = nullptr, observe::Mark mark = {}) {
    NodeTask task;
    task.group = ranks[r].group;
    task.key = {3, round, 0};
    task.name = "test";
    task.data = data;
    task.bytes = bytes;
    task.reduction.op = adder ? ReduceOp::kAverage : ReduceOp::kSum;
    task.adder = std::move(adder);
    task.active = active;
    task.deadline = deadline;
    task.mark = mark;
    task.shards = {{0, 0, bytes}};
    task.on_done = [this, r](uint32_t workers) { ranks[r].workers.push_back(workers); };
    ranks[r].stage->post(std::move(task));
  }

  // Exchanges: `data` is what local rank `r` posts, and `pieces` is what it takes from the others.
  void exchange(uint32_t r, char* data, size_t bytes, std::vector<NodePiece> pieces, void* out,
                uint32_t round = 0) {
    NodeTask task;
    task.group = ranks[r].group;
    task.key = {4, round, 0};
    task.name = "exchange";
    task.data = data;
    task.bytes = bytes;
    task.reduction.op = ReduceOp::kSum;
    task.deadline = {60'000, 60'000, 60'000};
    task.exchanges = true;
    task.pieces = std::move(pieces);
    task.out = static_cast<char*>(out);
    task.on_done = [this, r](uint32_t workers) { ranks[r].workers.push_back(workers); };
    ranks[r].stage->post(std::move(task));
  }

  using Step = std::function<void()>;
  // Runs each step on the loop once the effects of the previous step are over. Everything runs in
  // this thread, so a fixed number of turns is enough.
  void run(std::vector<Step> steps) {
    constexpr int kTurns = 200;
    int turns = 0;
    size_t next = 0;
    Step turn = [&] {
      if (turns++ % kTurns == 0) {
        if (next == steps.size()) return loop.stop();
        steps[next++]();
      }
      loop.post(turn);
    };
    loop.post(turn);
    loop.run();
  }

  void run_until(const std::function<bool()>& over) {
    const Nanos end = monotonic_now() + 60 * kSecond;
    Step turn = [&] {
      if (over() || monotonic_now() > end) return loop.stop();
      loop.post(turn);
    };
    loop.post(turn);
    loop.run();
    EXPECT_TRUE(over());
  }

  transport::EpollLoop loop;
  observe::RankStates states;
  Deadline deadline{60'000, 60'000, 60'000};
  Servers servers{loop, 5};
  control::Cluster cluster;
  std::vector<Rank> ranks;
};

TEST_F(NodeStageTest, MarksWhenTheSliceOfARankIsCombined) {
  constexpr size_t kBytes = 2 * kSegment;
  make(2, 2);
  observe::Recorder recorder;
  const observe::Mark mark{&recorder, recorder.begin({})};
  const auto reduced = [&] { return recorder.latest(1).front().when(observe::Moment::kReduced); };
  char* const mine = allocate(0, kBytes);
  char* const theirs = allocate(1, kBytes);
  std::memset(mine, 0, kBytes);
  std::memset(theirs, 0, kBytes);
  const Nanos start = loop.now();
  run({[&] { post(0, mine, kBytes, 0, true, nullptr, mark); },
       [&] {
         EXPECT_EQ(reduced(), 0);
         post(1, theirs, kBytes);
       }});
  EXPECT_GE(reduced(), start);
  EXPECT_EQ(ranks[0].workers, std::vector<uint32_t>{5});
}

TEST_F(NodeStageTest, OneRankSpeaksForTheNode) {
  make(4, 1);
  deadline = {3600'000, 3600'000, 60'000};
  std::vector<char*> data;
  for (uint32_t r = 0; r < 4; ++r) {
    data.push_back(allocate(r, kSmall));
    std::memset(data[r], 0, kSmall);
  }
  const Nanos start = loop.now();
  const auto speakers = [&](Nanos after) {
    std::vector<uint32_t> who;
    for (uint32_t r = 0; r < 4; ++r) {
      testing::internal::CaptureStderr();
      ranks[r].stage->check_deadlines(start + after, 0);
      const std::string text = testing::internal::GetCapturedStderr();
      if (text.find("which did not submit it") != std::string::npos) who.push_back(r);
    }
    return who;
  };
  const auto nobody = std::vector<uint32_t>{};
  run({[&] { for (const uint32_t r : {1u, 2u, 3u}) post(r, data[r], kSmall); },
       [&] {
         // Rank 0 is missing, so the next one speaks.
         EXPECT_EQ(speakers(50 * kSecond), nobody);
         EXPECT_EQ(speakers(70 * kSecond), std::vector<uint32_t>{1});
         EXPECT_EQ(speakers(110 * kSecond), nobody);
         // Had rank 1 been stopped, nobody would have spoken yet.
         EXPECT_EQ(speakers(130 * kSecond), std::vector<uint32_t>{2});
         EXPECT_EQ(speakers(250 * kSecond), std::vector<uint32_t>{3});
         EXPECT_EQ(speakers(1000 * kSecond), nobody);
         post(0, data[0], kSmall);
       }});
  for (const Rank& rank : ranks) EXPECT_EQ(rank.workers.size(), 1u);
}

// A neighbour may close its plan, free its array or end its process. What it has posted stays
// readable and writable as long as somebody may use it.
TEST_F(NodeStageTest, ANeighboursMemoryStaysWhileItIsUsed) {
  constexpr size_t kBytes = 2 * SharedHeap::kLargeBytes;
  make(2, 1);
  char* const mine = allocate(0, kBytes);
  char* const gone = allocate(1, kBytes);
  for (size_t i = 0; i < kBytes / 4; ++i) {
    reinterpret_cast<float*>(mine)[i] = 2;
    reinterpret_cast<float*>(gone)[i] = 3;
  }
  run({[&] {
         post(1, gone, kBytes);
         ranks[1].stage->clear();  // rank 1's job has failed
         ASSERT_TRUE(ranks[1].heap->free(gone));
         ranks[1].stage->release_regions();
       },
       [&] { post(0, mine, kBytes); }});
  // Rank 0 has reduced its half, and waits for the other half.
  EXPECT_TRUE(ranks[0].failures.empty());
  EXPECT_TRUE(ranks[0].workers.empty());
  EXPECT_TRUE(ranks[0].stage->busy(0));
  EXPECT_EQ(reinterpret_cast<float*>(mine)[kBytes / 8 - 1], 5);
  EXPECT_EQ(reinterpret_cast<float*>(mine)[kBytes / 8], 2);
}

TEST_F(NodeStageTest, AllLocalRanksKnowWhoIsInASmallResult) {
  make(3, 2);
  std::vector<char*> data;
  for (uint32_t r = 0; r < 3; ++r) {
    data.push_back(allocate(r, kSmall));
    std::memset(data[r], 0, kSmall);
  }
  // The buffer has one segment, which local rank 0 pushes. In the second round no rank has anything
  // to add.
  std::vector<Step> rounds;
  for (const uint32_t round : {0u, 1u}) {
    rounds.push_back([&, round] {
      for (uint32_t r = 0; r < 3; ++r) post(r, data[r], kSmall, round, round == 0 && r != 1);
    });
  }
  run(rounds);
  for (const Rank& rank : ranks) EXPECT_EQ(rank.workers, (std::vector<uint32_t>{5, 5}));
}

// The ranks take more than the stage moves before it looks at its events. They take from the middle
// of a buffer, and from the offset in the buffer's first eight bytes.
TEST_F(NodeStageTest, RanksTakeFromEachOthersBuffersWhatTheyGet) {
  constexpr size_t kFloats = 300'000, kBytes = kFloats * sizeof(float);
  make(3, 1);
  float* data[2] = {reinterpret_cast<float*>(allocate(0, kBytes)),
                    reinterpret_cast<float*>(allocate(1, kBytes))};
  for (size_t i = 0; i < kFloats; ++i) {
    data[0][i] = static_cast<float>(i);
    data[1][i] = -static_cast<float>(i);
  }
  const uint64_t begins = kBytes / 2;
  std::memcpy(data[1], &begins, sizeof(begins));
  std::vector<float> out(kFloats);
  run({[&] { exchange(0, reinterpret_cast<char*>(data[0]), kBytes, {}, nullptr); },
       [&] { exchange(1, reinterpret_cast<char*>(data[1]), kBytes, {}, nullptr); },
       [&] {
         exchange(2, nullptr, 0,
                  {{0, sizeof(float), false, 0, kBytes / 2}, {1, 0, true, kBytes / 2, kBytes / 2}},
                  out.data());
       }});
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers.size(), 1u);
  }
  for (size_t i = 0; i < kFloats / 2; ++i) {
    ASSERT_EQ(out[i], data[0][i + 1]);
    ASSERT_EQ(out[kFloats / 2 + i], data[1][kFloats / 2 + i]);
  }
}

TEST_F(NodeStageTest, ARankGetsTheSumOfItsPart) {
  constexpr size_t kFloats = 200'000, kBytes = kFloats * sizeof(float);
  make(2, 1);
  std::vector<float> out[2] = {std::vector<float>(kFloats / 2), std::vector<float>(kFloats / 2)};
  for (uint32_t r = 0; r < 2; ++r) {
    auto* const data = reinterpret_cast<float*>(allocate(r, kBytes));
    for (size_t i = 0; i < kFloats; ++i) data[i] = static_cast<float>((r + 1) * i);
    exchange(r, reinterpret_cast<char*>(data), kBytes,
             {{NodePiece::kAll, r * kBytes / 2, false, 0, kBytes / 2}}, out[r].data());
  }
  run({[] {}});
  for (size_t i = 0; i < kFloats; ++i) {
    ASSERT_EQ(out[2 * i / kFloats][i % (kFloats / 2)], static_cast<float>(3 * i));
  }
}

// Large and small buffers alternate, and there are more of them than fit into one turn of the loop.
TEST_F(NodeStageTest, SeveralThreadsOfARankAdd) {
  constexpr uint32_t kRounds = 6, kRanks = 3;
  const auto floats = [](uint32_t round) { return round % 2 == 0 ? 900'000 + 7 * round : 1000; };
  make(kRanks, 1, 3);
  std::vector<float*> data[kRanks];
  for (uint32_t r = 0; r < kRanks; ++r) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      const size_t count = floats(round);
      data[r].push_back(reinterpret_cast<float*>(allocate(r, count * sizeof(float))));
      for (size_t i = 0; i < count; ++i) data[r][round][i] = static_cast<float>((r + 1) * i);
    }
  }
  const auto over = [&] {
    return std::ranges::all_of(ranks,
                               [](const Rank& one) { return one.workers.size() == kRounds; });
  };
  loop.post([&] {
    for (uint32_t round = 0; round < kRounds; ++round) {
      for (uint32_t r = 0; r < kRanks; ++r) {
        post(r, reinterpret_cast<char*>(data[r][round]), floats(round) * sizeof(float), round);
      }
    }
  });
  run_until(over);
  for (const Rank& rank : ranks) EXPECT_TRUE(rank.failures.empty());
  for (uint32_t r = 0; r < kRanks; ++r) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < floats(round); ++i) {
        ASSERT_EQ(data[r][round][i], static_cast<float>(6 * i)) << r << ", " << round;
      }
    }
  }
}

// The memory is freed as soon as the callers are told.
TEST_F(NodeStageTest, AGroupIsCalledOffWhileSeveralThreadsAdd) {
  constexpr size_t kBytes = size_t{64} << 20;
  make(2, 1, 3);
  char* data[] = {allocate(0, kBytes), allocate(1, kBytes)};
  const auto told = [this](uint32_t r) { return ranks[r].workers.size() == 1; };
  int turns = 0;
  Step turn = [&] {
    if (++turns == 6) {  // both ranks have begun
      for (Rank& rank : ranks) rank.stage->call_off(rank.group);
    }
    for (const uint32_t r : {0u, 1u}) {
      if (told(r) && data[r] != nullptr) ranks[r].heap->free(std::exchange(data[r], nullptr));
    }
    if (!(told(0) && told(1))) loop.post(turn);
  };
  loop.post([&] {
    for (const uint32_t r : {0u, 1u}) post(r, data[r], kBytes);
    turn();
  });
  run_until([&] { return data[0] == nullptr && data[1] == nullptr; });
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty());
    EXPECT_EQ(rank.workers, std::vector<uint32_t>{0});
    EXPECT_FALSE(rank.stage->busy(0));
  }
}

// A rank whose job fails has its memory back when its neighbours have failed, too, whatever they
// have posted.
TEST_F(NodeStageTest, MemoryIsSeenUntilAllNeighboursHaveStopped) {
  make(4, 1);
  char* data[4];
  for (uint32_t r = 0; r < 4; ++r) {
    data[r] = allocate(r, kSmall);
    std::memset(data[r], 0, kSmall);
  }
  const auto seen = [this] { return ranks[0].stage->is_seen(); };
  run({[&] {
         post(0, data[0], kSmall);
         post(1, data[1], kSmall);
       },
       [&] { ranks[0].stage->stop(); },
       [&] {
         EXPECT_TRUE(seen());
         ranks[1].stage->stop();
       },
       [&] {
         EXPECT_TRUE(seen());
         ranks[2].stage->stop();  // it knows of the buffer only from others
         ranks[3].stage->stop();
         ranks[3].stage->clear();
       },
       [&] {
         EXPECT_FALSE(seen());
         EXPECT_FALSE(ranks[1].stage->is_seen());
         post(2, data[2], kSmall);
         post(3, data[3], kSmall);
       }});
  for (const Rank& rank : ranks) {
    EXPECT_TRUE(rank.failures.empty() && rank.workers.empty());
  }
}

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

// An adder of a device that never finishes.
struct SlowAdder : SliceAdder {
  void start(uint32_t, double) override { ++started; }
  void stop() override { ++stopped; }
  bool through() const override { return false; }
  int started = 0, stopped = 0;
};

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
  EXPECT_LT(monotonic_now() - start, 2 * kSecond);
  EXPECT_EQ(adder->stopped, kBuffers);
}

TEST_F(NodeStageTest, APieceBeyondWhatWasPostedIsAnError) {
  make(2, 1);
  char out[2 * kSmall] = {};
  std::vector<Step> rounds;
  const std::vector<NodePiece> pieces = {{1, 8, false, 0, kSmall},
                                         {1, kSmall, true, 0, 1},
                                         {1, ~size_t{0} - 3, false, 0, 8},
                                         {NodePiece::kAll, 0, false, 0, kSmall + 1}};
  for (const NodePiece& piece : pieces) {
    const auto round = static_cast<uint32_t>(rounds.size());
    rounds.push_back([&, piece, round] {
      exchange(0, allocate(0, kSmall), kSmall, {piece}, out, round);
      exchange(1, allocate(1, kSmall), kSmall, {}, out, round);
    });
  }
  run(rounds);
  ASSERT_EQ(ranks[0].failures.size(), rounds.size());
  for (const Status& why : ranks[0].failures) EXPECT_EQ(why.code(), Code::kProtocol);
  EXPECT_TRUE(ranks[0].workers.empty());
}

// The rank that forgets a group first hears of the group again when another rank forgets it.
TEST_F(NodeStageTest, NothingIsKeptOfGroupsThatAllHaveForgotten) {
  make(3, 1);
  constexpr uint32_t kGroups = 20;
  std::vector<Step> steps;
  for (uint32_t id = 1; id <= kGroups; ++id) {
    for (const uint32_t r : {id % 3, (id + 1) % 3, (id + 2) % 3}) {
      steps.push_back([this, id, r] {
        const LocalGroup group(cluster, control::Group(id, cluster, {0, 1, 2}, "g"), r);
        ranks[r].stage->forget(group);
      });
    }
  }
  run(steps);
  for (const Rank& rank : ranks) EXPECT_EQ(rank.stage->known_groups(), 0u);
}

TEST_F(NodeStageTest, ABufferWaitsInVainForANeighbourThatHasEndedWithoutItsPart) {
  make(2, 1);
  run({[&] { post(0, allocate(0, kSmall), kSmall); },
       [&] {
         EXPECT_FALSE(ranks[0].stage->waits_for_gone(0));
         ranks[1].stage.reset();
         ranks[1].bus->close();
       }});
  EXPECT_TRUE(ranks[0].stage->waits_for_gone(0));
}

// Returns what the log says while `call` runs.
std::string logged(const std::function<void()>& call) {
  ::testing::internal::CaptureStderr();
  call();
  return ::testing::internal::GetCapturedStderr();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(NodeStageTest, AWarningSaysWhatTheNeighboursDoThatDidNotSubmit) {
  make(4, 1);
  states.set({{11, "has been computing for 12 s (train.py:40 in load)"},
              {12, ": its process is stopped"},
              {13, "is late"}});  // though it has submitted
  deadline.warn_ms = 5000;
  run({[&] {
    for (const uint32_t r : {0u, 3u}) post(r, allocate(r, kSmall), kSmall, 7);
  }});
  NodeStage& stage = *ranks[0].stage;
  const Nanos began = loop.now();
  EXPECT_EQ(logged([&] { stage.check_deadlines(began, 0); }), "");
  const std::string warning = logged([&] { stage.check_deadlines(began + 10 * kSecond, 0); });
  EXPECT_TRUE(contains(warning, "warning: 'test' (round 7, buffer 0) has waited 1")) << warning;
  EXPECT_TRUE(warning.ends_with(
      " for rank 11, rank 12, which did not submit it; rank 11 has been computing for 12 s "
      "(train.py:40 in load); rank 12: its process is stopped\n")) << warning;
  EXPECT_EQ(logged([&] { stage.check_deadlines(began + 20 * kSecond, 0); }), "") << "once";
  EXPECT_TRUE(ranks[0].failures.empty());
  states.set({});
  stage.check_deadlines(began + 70 * kSecond, 0);
  ASSERT_EQ(ranks[0].failures.size(), 1u);
  EXPECT_EQ(ranks[0].failures[0].code(), Code::kTimeout);
  const std::string& error = ranks[0].failures[0].message();
  EXPECT_TRUE(contains(error, "'test' (round 7, buffer 0) has waited 7")) << error;
  EXPECT_TRUE(contains(error, " s for rank 11, rank 12, ")) << error;
  EXPECT_TRUE(error.ends_with(", which did not submit it")) << "nothing is known any more";
}

// A neighbour that has submitted may wait for others in turn, so whatever is known of them counts.
TEST_F(NodeStageTest, AWarningAboutWhoDidNotFinishTellsOfAllRanksOfTheGroup) {
  make(2, 1);
  states.set({{0, ": its process is stopped"}, {1, "is in a debugger"}, {2, "is of no group"}});
  deadline.warn_ms = 5000;
  const auto hangs = std::make_shared<SlowAdder>();
  run({[&] {
    post(0, allocate(0, 2 * kSegment), 2 * kSegment);
    post(1, allocate(1, 2 * kSegment), 2 * kSegment, 0, true, hangs);
  }});
  const std::string warning =
      logged([&] { ranks[0].stage->check_deadlines(loop.now() + 10 * kSecond, 0); });
  EXPECT_TRUE(warning.ends_with(" for a rank, which did not finish it; rank 0: its process is "
                                "stopped; rank 1 is in a debugger\n")) << warning;
  EXPECT_TRUE(ranks[0].failures.empty());
}

}  // namespace
}  // namespace herring
