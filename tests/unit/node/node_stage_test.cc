// Tests the node stage with the local ranks of a node in one process, on one loop.
#include "node_stage_fixture.h"

#include <algorithm>

#include "tests/unit/text.h"

namespace herring {
namespace {

using namespace node_stage_test;

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

TEST_F(NodeStageTest, StandsStillUntilANeighbourPosts) {
  constexpr size_t kBytes = size_t{16} << 20;  // many turns of the loop
  make(2, 1);
  char* data[] = {allocate(0, kBytes), allocate(1, kBytes)};
  for (char* one : data) std::memset(one, 0, kBytes);
  bool worked = false;
  Step look = [&] {
    worked |= !ranks[0].stage->stands_still();
    if (ranks[0].workers.empty()) loop.post(look);
  };
  run({[&] { post(0, data[0], kBytes); },
       [&] {
         EXPECT_TRUE(ranks[0].stage->stands_still());
         post(1, data[1], kBytes);
         look();
       }});
  EXPECT_TRUE(worked);
  EXPECT_TRUE(ranks[0].stage->stands_still());
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
    // On a busy machine threads may have added everything before the loop takes its sixth turn.
    ASSERT_EQ(rank.workers.size(), 1u);
    EXPECT_TRUE(rank.workers[0] == 0 || rank.workers[0] == 2) << rank.workers[0];
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
