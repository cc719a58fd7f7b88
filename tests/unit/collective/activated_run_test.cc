#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "algorithms.h"
#include "cluster.h"
#include "collective/activation.h"
#include "collective/run.h"

namespace herring::collective {
namespace {

// Ranks whose caller has come before they are active contribute a value, the others nothing. All
// get the same result, which has what each has contributed, once.
TEST(ActivatedRun, ActivatedRanksContributeWhatTheyHaveWhoeverInitiates) {
  std::mt19937 lot(4);
  uint32_t without = 0;
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 1; size <= 9; ++size) {
      for (const uint64_t count : {1u, 7u, 100'003u}) {
        SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count));
        std::vector<std::vector<int32_t>> arrays(size, std::vector<int32_t>(count, -99));
        std::vector<char*> places;
        for (auto& array : arrays) places.push_back(reinterpret_cast<char*>(array.data()));
        std::vector<int32_t> have(size), given(size);
        std::vector<int> asked(size);
        std::vector<Activated> all;
        for (uint32_t rank = 0; rank < size; ++rank) {
          all.push_back(activate(rank, size, make_schedule(algorithm, rank, size, count, 4)));
        }
        Task task;
        task.name = "x";
        task.count = count;
        task.dtype = DType::kInt32;
        task.reduction.op = ReduceOp::kSum;
        Cluster cluster(task, places, static_cast<unsigned>(size + count), {}, {},
                        [&](uint32_t rank, Task& own) {
                          own.schedule = all[rank].schedule;
                          own.active = all[rank].active;
                          own.contribute = [&, rank] {
                            ++asked[rank];
                            given[rank] = have[rank];
                            for (auto& one : arrays[rank]) {
                              ASSERT_EQ(one, -99) << "touched before the rank was active";
                              one = given[rank];
                            }
                          };
                        });
        const uint32_t first = lot() % size;
        for (uint32_t rank = 0; rank < size; ++rank) {
          if (rank != first && lot() % 2) continue;
          cluster.will_fire(rank, all[rank].initiate,
                            [&, rank] { have[rank] = static_cast<int32_t>(rank * 1000 + 1); });
        }
        ASSERT_TRUE(cluster.play());
        int32_t sum = 0;
        for (uint32_t rank = 0; rank < size; ++rank) {
          EXPECT_EQ(asked[rank], 1);
          sum += given[rank];
          without += given[rank] == 0;
        }
        for (const auto& array : arrays) ASSERT_EQ(array, std::vector<int32_t>(count, sum));
      }
    }
  }
  EXPECT_GT(without, 100u);
}

TEST(ActivatedRun, RefusesSignalsThatDoNotExistOrComeTwice) {
  class Signals final : public Run::Wire {
   public:
    bool ready_for_grant(uint32_t) override { return ready; }
    bool ready_for_block(uint32_t) override { return true; }
    void grant(uint32_t, uint32_t, uint32_t) override { ++grants; }
    void block(uint32_t, uint32_t, uint32_t, const char*, size_t, uint32_t) override {}
    void signal(uint32_t to, uint32_t) override { sent.push_back(to); }
    bool ready = false;
    int grants = 0;
    std::vector<uint32_t> sent;
  };
  const Activated one = activate(1, 4, make_schedule(Algorithm::kRing, 1, 4, 8, 4));
  float array[8] = {};
  Task task;
  task.name = "x";
  task.data = reinterpret_cast<char*>(array);
  task.count = 8;
  task.schedule = one.schedule;
  task.active = one.active;
  Signals wire;
  collective::Run run(task, 1, 4, wire);
  run.start();
  EXPECT_FALSE(run.done());
  EXPECT_FALSE(run.on_signal(2, 0).ok()) << "no tree goes from rank 2 to rank 1";
  EXPECT_FALSE(run.on_signal(9, 0).ok());
  EXPECT_FALSE(run.on_signal(0, 1).ok());
  EXPECT_TRUE(run.on_signal(0, 0).ok());
  EXPECT_FALSE(run.on_signal(0, 0).ok()) << "twice";
  run.advance();
  EXPECT_TRUE(wire.sent.empty()) << "there is no connection yet";
  wire.ready = true;
  run.advance();
  EXPECT_EQ(wire.sent, std::vector<uint32_t>{3}) << "rank 0 tells rank 2, and rank 1 rank 3";
  EXPECT_GT(wire.grants, 0);
  EXPECT_EQ(run.missing(), std::vector<uint32_t>{0}) << "the ring's message, not a signal";
  run.fire(one.initiate);
  EXPECT_EQ(wire.sent, (std::vector<uint32_t>{3, 0})) << "each signal once";
}

}  // namespace
}  // namespace herring::collective
