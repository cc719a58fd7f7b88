#include "collective/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "algorithms.h"
#include "cluster.h"

namespace herring::collective {
namespace {

TEST(Run, SumsWhateverArrivesFirst) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 1; size <= 9; ++size) {
      for (const uint64_t count : {0u, 1u, 3u, 8u, 1000u, 100'003u, 400'001u}) {
        SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count));
        std::vector<std::vector<int32_t>> arrays(size);
        std::vector<int32_t> expected(count);
        for (uint32_t rank = 0; rank < size; ++rank) {
          for (uint64_t i = 0; i < count; ++i) {
            arrays[rank].push_back(static_cast<int32_t>(rank * 31 + i % 1009));
            expected[i] += arrays[rank][i];
          }
        }
        std::vector<char*> places;
        for (auto& array : arrays) places.push_back(reinterpret_cast<char*>(array.data()));
        Task task;
        task.name = "x";
        task.algorithm = algorithm;
        task.count = count;
        task.dtype = DType::kInt32;
        Cluster cluster(task, places, static_cast<unsigned>(size * 1000 + count));
        ASSERT_TRUE(cluster.play());
        for (uint32_t rank = 0; rank < size; ++rank) ASSERT_EQ(arrays[rank], expected) << rank;
      }
    }
  }
}

// These sums depend on the order of addition. Their bits must be equal on all ranks and in every
// run.
TEST(Run, FloatSumsHaveTheSameBitsWhateverArrivesFirst) {
  constexpr uint64_t kCount = 200'001;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const uint32_t size : {3u, 8u}) {
      std::vector<float> first;
      for (unsigned seed = 0; seed < 4; ++seed) {
        std::vector<std::vector<float>> arrays(size);
        std::mt19937 values(7);
        for (auto& array : arrays) {
          for (uint64_t i = 0; i < kCount; ++i) {
            array.push_back(std::ldexp(static_cast<float>(values()), int(values() % 60) - 60));
          }
        }
        std::vector<char*> places;
        for (auto& array : arrays) places.push_back(reinterpret_cast<char*>(array.data()));
        Task task;
        task.algorithm = algorithm;
        task.count = kCount;
        task.reduction.op = ReduceOp::kAverage;
        Cluster cluster(task, places, seed);
        ASSERT_TRUE(cluster.play());
        if (seed == 0) first = arrays[0];
        for (const auto& array : arrays) {
          ASSERT_EQ(std::memcmp(array.data(), first.data(), kCount * sizeof(float)), 0)
              << wire::name_of(algorithm) << ", " << size << " ranks";
        }
      }
    }
  }
}

TEST(Run, ScalesEachContributionOnceAndTheResultOnce) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint32_t size = 1; size <= 6; ++size) {
      std::vector<std::vector<float>> arrays(size, std::vector<float>(11, 2.0f));
      std::vector<char*> places;
      for (auto& array : arrays) places.push_back(reinterpret_cast<char*>(array.data()));
      Task task;
      task.algorithm = algorithm;
      task.count = 11;
      task.reduction.op = ReduceOp::kAverage;
      task.reduction.prescale = 0.5;
      task.reduction.postscale = 8.0;
      Cluster cluster(task, places, 1);
      ASSERT_TRUE(cluster.play());
      for (const auto& array : arrays) EXPECT_EQ(array, std::vector<float>(11, 8.0f));
    }
  }
}

Task task_of(Algorithm algorithm, uint32_t size, uint64_t count) {
  Task task;
  task.name = "x";
  task.algorithm = algorithm;
  task.count = count;
  task.reduction = {ReduceOp::kAverage, size % 2 ? 1.0 : 0.7, size % 3 ? 1.0 : 1.3};
  return task;
}

// Compares ranks whose arrays lie on devices with ranks on the host alone. `near` lists for each
// rank those that may read its memory on the device.
void compare(const Task& task, uint32_t size, const std::vector<std::vector<uint32_t>>& near) {
  const uint64_t count = task.count;
  std::mt19937 values(size);
  std::vector<std::vector<char>> arrays(size, std::vector<char>(count * sizeof(float)));
  std::vector<std::shared_ptr<FakeDevice>> devices(size);
  std::vector<std::vector<char>> hosts;
  std::vector<char*> places, images;
  for (uint32_t rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < count; ++i) {
      const float value = std::ldexp(static_cast<float>(values()), int(values() % 60) - 60);
      std::memcpy(arrays[rank].data() + i * sizeof(float), &value, sizeof value);
    }
    hosts.push_back(arrays[rank]);
    if (size > 3 && rank == 1) continue;  // its array lies on the host
    devices[rank] = std::make_shared<FakeDevice>(
        task, rank, size, arrays[rank], near.empty() ? std::vector<uint32_t>() : near[rank]);
  }
  for (uint32_t rank = 0; rank < size; ++rank) {
    places.push_back(hosts[rank].data());
    images.push_back(devices[rank] ? devices[rank]->image() : arrays[rank].data());
  }
  Cluster reference(task, places, size);
  ASSERT_TRUE(reference.play());
  Cluster cluster(task, images, static_cast<unsigned>(size * 1000 + count), devices, near);
  ASSERT_TRUE(cluster.play());
  for (uint32_t rank = 0; rank < size; ++rank) {
    const auto& found = devices[rank] ? devices[rank]->array() : arrays[rank];
    ASSERT_TRUE(found == hosts[rank]) << rank;
    const bool power = (size & (size - 1)) == 0;
    if (near.empty() && devices[rank] && task.algorithm == Algorithm::kButterfly && power) {
      ASSERT_EQ(devices[rank]->bytes_out(), found.size()) << rank;
    }
  }
}

// The bits must be those of the host alone, whatever arrives first and whichever ranks add on a
// device. In a butterfly of a power of two of ranks, a device gives each byte once.
TEST(Run, DevicesAddAsTheHostDoes) {
  for (const Algorithm algorithm : kAlgorithmsInPlace) {
    for (uint32_t size = 2; size <= 9; ++size) {
      for (const uint64_t count : {1u, 3u, 1000u, 40'003u, 1'400'001u}) {
        const bool large = count > 1'000'000;  // several pieces
        if (large && (size > 5 || algorithm != Algorithm::kButterfly)) continue;
        SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", size, " ranks, ", count));
        compare(task_of(algorithm, size, count), size, {});
      }
    }
  }
}

TEST(Run, DevicesReadWhatNearRanksShow) {
  for (uint32_t size = 2; size <= 9; ++size) {
    for (const uint64_t count : {1u, 3u, 1000u, 40'003u, 1'400'001u}) {
      for (const uint32_t per_node : {2u, 3u, 9u}) {
        if (count > 1'000'000 && (size > 5 || per_node == 2)) continue;
        SCOPED_TRACE(concat(size, " ranks, ", count, ", ", per_node, " per node"));
        std::vector<std::vector<uint32_t>> near(size);
        for (uint32_t a = 0; a < size; ++a) {
          for (uint32_t b = 0; b < size; ++b) {
            if (a != b && a / per_node == b / per_node) near[a].push_back(b);
          }
        }
        compare(task_of(Algorithm::kButterfly, size, count), size, near);
      }
    }
  }
}

class Silent : public Run::Wire {
 public:
  bool ready_for_grant(uint32_t) override { return true; }
  bool ready_for_block(uint32_t) override { return true; }
  void grant(uint32_t, uint32_t, uint32_t) override { ++grants; }
  void block(uint32_t, uint32_t, uint32_t, const char*, size_t, uint32_t) override { ++blocks; }
  int grants = 0, blocks = 0;
};

TEST(Run, RefusesWhatWasNotAgreed) {
  std::vector<float> array(150'000);  // three blocks of two frames
  std::vector<char> scratch(kFrameBytes);
  Task task;
  task.name = "x";
  task.data = reinterpret_cast<char*>(array.data());
  task.count = array.size();
  Silent wire;
  collective::Run run(task, 1, 3, wire);  // qualified: inside a test, Run is the test's own member
  run.start();
  EXPECT_EQ(wire.grants, 2) << "the third block has its place where the first is still to be sent";
  EXPECT_EQ(wire.blocks, 0);
  Destinations out;
  const auto block = [&](uint32_t from, uint32_t message, uint32_t frame, size_t bytes) {
    return run.on_block(from, message, frame, bytes, scratch.data(), out);
  };
  EXPECT_FALSE(block(2, 0, 0, kFrameBytes).ok()) << "the ring has another direction";
  EXPECT_FALSE(block(7, 0, 0, kFrameBytes).ok());
  EXPECT_FALSE(block(0, 1, 0, kFrameBytes).ok()) << "not the next message";
  EXPECT_FALSE(block(0, 9, 0, kFrameBytes).ok());
  EXPECT_FALSE(block(0, 0, 1, kFrameBytes).ok()) << "not the next frame";
  EXPECT_FALSE(block(0, 0, 0, kFrameBytes - 4).ok());
  EXPECT_FALSE(block(0, 0, 9, kFrameBytes).ok());
  EXPECT_EQ(out.count, 0);
  EXPECT_TRUE(block(0, 0, 0, kFrameBytes).ok());
  EXPECT_EQ(out.pieces[0].iov_base, scratch.data());
  EXPECT_FALSE(run.on_grant(0, 0, 1).ok()) << "nothing is sent there";
  EXPECT_FALSE(run.on_grant(2, 4, 1).ok());
  EXPECT_FALSE(run.on_grant(2, 0, 3).ok());
  EXPECT_FALSE(run.on_grant(2, 0, 0).ok());
  EXPECT_TRUE(run.on_grant(2, 0, 1).ok());
  EXPECT_FALSE(run.on_grant(2, 0, 1).ok()) << "twice";
  run.advance();
  EXPECT_EQ(wire.blocks, 1);
  EXPECT_EQ(run.missing(), std::vector<uint32_t>{0});
  EXPECT_TRUE(run.needs(0));
  EXPECT_TRUE(run.needs(2));
  EXPECT_FALSE(run.needs(1));
}

// A sum may need an operation on other bytes, which must be complete first.
TEST(Run, WhatIsSummedAtOnceIsNotGrantedBeforeTheSumMayRun) {
  using Kind = Operation::Kind;
  float array[2] = {};
  Task task;
  task.name = "x";
  task.data = reinterpret_cast<char*>(array);
  task.count = 2;
  const uint32_t send = task.schedule.add({.kind = Kind::kSend, .peer = 1, .range = {0, 4}});
  const uint32_t receive = task.schedule.add({.kind = Kind::kReceive, .peer = 1, .range = {4, 4}});
  task.schedule.add({.kind = Kind::kCompute, .half = receive, .range = {4, 4}}, {send});
  Silent wire;
  collective::Run run(task, 0, 2, wire);
  run.start();
  EXPECT_EQ(wire.grants, 0);
  EXPECT_TRUE(run.on_grant(1, 0, 1).ok());
  run.advance();
  EXPECT_EQ(wire.blocks, 1);
  EXPECT_EQ(wire.grants, 0);
  run.sent(send, 4);
  EXPECT_EQ(wire.grants, 1);
  EXPECT_FALSE(run.done());
}

// Says that every message is read where it is.
class Shows final : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  Result<Shown> meet(uint32_t, std::string_view) override { return Shown{true, true}; }
};

TEST(Run, RefusesWhatIsShownAgainstTheRules) {
  Task task;
  task.name = "x";
  task.algorithm = Algorithm::kButterfly;
  task.count = 100'000;  // halves of two frames
  auto device = std::make_shared<Shows>(task, 0, 2, std::vector<char>(400'000),
                                        std::vector<uint32_t>{1});
  task.elsewhere = device;
  task.data = device->image();
  task.near = {1};
  Silent wire;
  collective::Run run(task, 0, 2, wire);
  run.start();
  EXPECT_EQ(wire.grants, 0) << "the card of the other rank is missing";
  EXPECT_EQ(run.missing(), std::vector<uint32_t>{1});
  EXPECT_FALSE(run.waits_for_elsewhere());
  EXPECT_FALSE(run.on_shown(1, 0, 1).ok()) << "before the card";
  EXPECT_FALSE(run.on_card(2, "").ok());
  EXPECT_TRUE(run.on_card(1, "").ok());
  EXPECT_FALSE(run.on_card(1, "").ok()) << "twice";
  run.advance();
  EXPECT_EQ(wire.grants, 0);
  EXPECT_TRUE(run.waits_for_elsewhere());
  EXPECT_FALSE(run.on_shown(2, 0, 1).ok());
  EXPECT_FALSE(run.on_shown(1, 1, 1).ok()) << "not the next message";
  EXPECT_FALSE(run.on_shown(1, 0, 3).ok()) << "there are two frames";
  EXPECT_TRUE(run.on_shown(1, 0, 1).ok());
  EXPECT_FALSE(run.on_shown(1, 0, 1).ok()) << "twice";
  EXPECT_FALSE(run.on_shown(1, 0, 0).ok());
  EXPECT_TRUE(run.on_shown(1, 0, 2).ok());
  EXPECT_FALSE(run.on_read(1, 0).ok()) << "nothing is shown yet";
  EXPECT_FALSE(run.on_read(1, 9).ok());
  EXPECT_FALSE(run.on_read(2, 0).ok());
  Destinations out;
  EXPECT_FALSE(run.on_block(1, 1, 0, kFrameBytes, nullptr, out).ok());
}

}  // namespace
}  // namespace herring::collective
