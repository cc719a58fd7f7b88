// Tests threads that help with the node stage's sums: the bits are the same, and nothing is touched
// afterwards.
#include "node/adders.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <tuple>

namespace {

// While this is set, memory allocations fail on every thread but this one.
std::atomic<std::thread::id> only_one_with_memory{};

}  // namespace

void* operator new(size_t bytes) {
  const std::thread::id one = only_one_with_memory.load(std::memory_order_relaxed);
  const bool fails = one != std::thread::id() && one != std::this_thread::get_id();
  void* const memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer brings its own, whose memory free() may not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace herring {
namespace {

constexpr size_t kSegment = 8192;

// Memory in pages of its own. Touching it after it was unmapped or forbidden faults.
struct Pages {
  explicit Pages(size_t bytes)
      : bytes((bytes + 4095) / 4096 * 4096 + 4096),
        data(static_cast<char*>(::mmap(nullptr, this->bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  Pages(const Pages&) = delete;
  ~Pages() { ::munmap(data, bytes); }
  void forbid() { ASSERT_EQ(::mprotect(data, bytes, PROT_NONE), 0); }
  const size_t bytes;
  char* const data;
};

// A buffer of the local ranks of one node, as `rank` sees it. All ranks are in this process.
struct Node {
  Node(uint32_t ranks, uint32_t nodes, uint32_t rank, size_t bytes, DType dtype,
       Reduction reduction, DType wire, bool zeros = false) {
    cluster.nodes = nodes;
    cluster.size = nodes * ranks;
    for (uint32_t r = 0; r < cluster.size; ++r) {
      cluster.workers.push_back({r, r / ranks, r % ranks, "10.0.0.1", 100 + r, ""});
    }
    options.local_rank = rank;
    options.segment_bytes = kSegment;
    options.names.assign(ranks, "a rank");
    work = std::make_shared<NodeWork>(options, wire::Key{3, 0, 0}, ranks, 0);
    const size_t elements = bytes / size_of(dtype), wire_bytes = bytes_for(elements, wire);
    for (uint32_t r = 0; r < ranks; ++r) {
      memory.push_back(std::make_unique<Pages>(bytes));
      if (!zeros) fill(memory[r]->data, elements, dtype, r);
      work->ranks[r].here = true;
      work->ranks[r].data = {std::shared_ptr<void>(), memory[r]->data};
      work->ranks[r].bytes = bytes;
    }
    staging = std::make_unique<Pages>(wire_bytes);
    NodeTask& task = work->task;
    task.group = std::make_shared<LocalGroup>(cluster, control::Group(cluster), rank);
    task.name = "test";
    task.data = memory[rank]->data;
    task.bytes = bytes;
    task.dtype = dtype;
    task.wire = wire;
    task.staging = staging->data;
    task.reduction = reduction;
    task.shards = {{0, 0, wire_bytes}};
  }

  static void fill(char* to, size_t elements, DType dtype, uint32_t seed) {
    static const std::vector<float> pattern = [] {
      std::minstd_rand random(1);
      std::vector<float> floats(10'007);
      for (float& one : floats) one = static_cast<float>(random() % 4001) / 1000.0f - 2.0f;
      return floats;
    }();
    std::vector<float> floats;
    floats.insert(floats.end(), pattern.begin() + 1000 * seed, pattern.end());
    while (floats.size() < elements) floats.insert(floats.end(), pattern.begin(), pattern.end());
    if (dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat64) {
      reduce::convert(floats.data(), DType::kFloat32, to, dtype, elements, 1.0);
    } else {
      std::memcpy(to, floats.data(), elements * size_of(dtype));
    }
  }

  // Returns what the ranks have now, and what is to be sent.
  std::string bytes() const {
    std::string all;
    for (const auto& one : memory) all.append(one->data, one->bytes);
    return all.append(staging->data, staging->bytes);
  }

  control::Cluster cluster;
  NodeStageOptions options;
  std::vector<std::unique_ptr<Pages>> memory;
  std::unique_ptr<Pages> staging;
  std::shared_ptr<NodeWork> work;
};

std::string alone(Node&& node) {
  EXPECT_TRUE(node.work->begin().ok());
  node.work->work(node.work->slice.bytes);
  return node.bytes();
}

std::string together(Node&& node, uint32_t threads, size_t budget) {
  Adders adders(threads);
  NodeWork& work = *node.work;
  EXPECT_TRUE(work.begin().ok());
  while (work.worked < work.slice.bytes) {
    const bool helps = adders.helps(work);
    EXPECT_EQ(helps, threads > 1 && work.slice.bytes >= Adders::kLeastBytes);
    helps ? void(adders.add(node.work, budget)) : work.work(work.slice.bytes);
  }
  return node.bytes();
}

TEST(Adders, BitsDoNotDependOnTheThreads) {
  const std::tuple<DType, ReduceOp> kinds[] = {
      {DType::kFloat32, ReduceOp::kSum},     {DType::kFloat32, ReduceOp::kAverage},
      {DType::kFloat64, ReduceOp::kAverage}, {DType::kFloat16, ReduceOp::kSum},
      {DType::kBFloat16, ReduceOp::kMax},    {DType::kInt32, ReduceOp::kProduct},
      {DType::kInt8, ReduceOp::kMin}};
  constexpr size_t kLeast = Adders::kLeastBytes;
  uint32_t ranks = 2;
  for (const auto& [dtype, op] : kinds) {
    ranks = 5 - ranks;  // alternates between 3 and 2
    for (const size_t slice : {kLeast - 8, kLeast + 8 * 4093}) {
      const auto make = [&, dtype = dtype, op = op] {
        return Node(ranks, 1, 1, ranks * slice, dtype, {op, 0.5, 1.5}, dtype);
      };
      const std::string expected = alone(make());
      for (uint32_t threads = 1; threads <= 4; ++threads) {
        ASSERT_EQ(together(make(), threads, size_t{512} << 10), expected)
            << name_of(dtype) << ", " << ranks << " ranks, " << slice << " bytes, " << threads;
      }
    }
  }
}

TEST(Adders, NarrowWhatGoesToServers) {
  for (const DType wire : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const uint32_t ranks : {1u, 3u}) {
      const auto make = [&] {
        return Node(ranks, 2, 0, ranks * (size_t{2} << 20) + 4 * 77, DType::kFloat32,
                    {ReduceOp::kAverage, 1.0, 1.0}, wire);
      };
      if (ranks == 1 && wire == DType::kFloat32) {  // there is nothing to do for helpers
        Node node = make();
        ASSERT_TRUE(node.work->begin().ok());
        EXPECT_FALSE(Adders(2).helps(*node.work));
        continue;
      }
      ASSERT_EQ(together(make(), 3, kSegment), alone(make())) << name_of(wire) << ", " << ranks;
    }
  }
}

// Few bytes travel there, but finding them takes as long as adding all.
TEST(Adders, FindTheLargestNumbers) {
  constexpr size_t kPacks = 40;
  for (const uint32_t ranks : {1u, 3u}) {
    const auto make = [&] {
      const size_t numbers = kPacks * ranks * pack_numbers(kFirstSparse) - 77;
      return Node(ranks, 2, 0, 4 * numbers, DType::kFloat32, {ReduceOp::kSum}, kFirstSparse);
    };
    Node node = make();
    Adders adders(3);
    ASSERT_TRUE(node.work->begin().ok());
    while (node.work->worked < node.work->slice.bytes) {
      ASSERT_TRUE(adders.helps(*node.work));
      EXPECT_LE(adders.add(node.work, 1), kPackBytes);
    }
    EXPECT_EQ(node.bytes(), alone(make())) << ranks;
  }
}

TEST(Adders, TakePiecesOfAnExchange) {
  constexpr size_t kPart = (size_t{1} << 20) + 4 * 33;
  std::vector<float> out[2];
  for (std::vector<float>& to : out) {
    Node node(2, 1, 1, 3 * kPart, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0}, DType::kFloat32);
    to.resize(3 * kPart / sizeof(float));
    NodeTask& task = node.work->task;
    task.exchanges = true;
    task.out = reinterpret_cast<char*>(to.data());
    task.pieces = {{0, 8, false, 0, kPart},
                   {NodePiece::kAll, kPart, false, kPart, kPart},
                   {1, 0, false, 2 * kPart, kPart}};
    if (&to == out) {
      alone(std::move(node));
    } else {
      together(std::move(node), 4, kSegment);
    }
  }
  EXPECT_EQ(out[0], out[1]);
}

TEST(Adders, StartWithTheFirstLargeBuffer) {
  Adders adders(3);
  EXPECT_EQ(adders.helpers(), 0u);
  for (const size_t bytes : {size_t{4096}, 2 * Adders::kLeastBytes}) {
    Node node(2, 1, 0, bytes, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0}, DType::kFloat32);
    ASSERT_TRUE(node.work->begin().ok());
    EXPECT_EQ(adders.helps(*node.work), bytes > 4096);
    EXPECT_EQ(adders.helpers(), bytes > 4096 ? 2u : 0u);
  }
}

// A thread that reads or writes what was called off crashes this process.
TEST(Adders, TouchNothingOfWhatWasCalledOff) {
  Adders adders(4);
  int in_the_middle = 0;
  for (int i = 0; i < 10; ++i) {
    Node node(2, 1, 0, size_t{128} << 20, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0},
              DType::kFloat32, true);
    ASSERT_TRUE(node.work->begin().ok());
    ASSERT_TRUE(adders.helps(*node.work));
    adders.add(node.work, Adders::kBlockBytes);
    adders.call_off(7);  // another group
    const bool goes_on = node.work->worked < node.work->slice.bytes;
    EXPECT_EQ(node.work.use_count(), goes_on ? 2 : 1);
    in_the_middle += goes_on;
    i % 2 == 0 ? adders.call_off(0) : adders.call_off();
    EXPECT_EQ(node.work.use_count(), 1);
    for (const auto& one : node.memory) one->forbid();
    std::this_thread::yield();
  }
  EXPECT_GT(in_the_middle, 0);  // each buffer takes some tens of milliseconds
}

TEST(Adders, EndWithABufferInHand) {
  Node node(2, 1, 0, size_t{64} << 20, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0},
            DType::kFloat32, true);
  ASSERT_TRUE(node.work->begin().ok());
  Adders adders(3);
  ASSERT_TRUE(adders.helps(*node.work));
  adders.add(node.work, Adders::kBlockBytes);
  EXPECT_EQ(adders.helpers(), 2u);
  adders.end();
  for (const auto& one : node.memory) one->forbid();
  EXPECT_EQ(node.work.use_count(), 1);
  EXPECT_EQ(adders.helpers(), 0u);
  EXPECT_FALSE(adders.helps(*node.work));
}

// A forked child destroys a job that it inherited in the same way.
TEST(Adders, AForkedChildHasNoHelpersToWaitFor) {
  Node node(2, 1, 0, size_t{16} << 20, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0},
            DType::kFloat32);
  ASSERT_TRUE(node.work->begin().ok());
  auto adders = std::make_unique<Adders>(3);
  ASSERT_TRUE(adders->helps(*node.work));
  adders->add(node.work, Adders::kBlockBytes);  // the helpers are busy
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    adders.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The engine reports the exception to the job (EventLoop::on_exhausted). The process must not end,
// and no thread may hang.
TEST(Adders, WhatAHelperThrowsIsThrownByAdd) {
  Adders adders(2);
  bool thrown = false;
  for (int i = 0; i < 1000 && !thrown; ++i) {
    Node node(2, 1, 0, size_t{4} << 20, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0},
              DType::kFloat32);
    ASSERT_TRUE(node.work->begin().ok());
    ASSERT_TRUE(adders.helps(*node.work));
    only_one_with_memory = std::this_thread::get_id();
    try {
      while (node.work->worked < node.work->slice.bytes) {
        adders.add(node.work, Adders::kBlockBytes);
        std::this_thread::yield();
      }
    } catch (const std::bad_alloc&) {
      thrown = true;
      EXPECT_EQ(node.work.use_count(), 1);
    }
    only_one_with_memory = std::thread::id();
  }
  EXPECT_TRUE(thrown) << "no helper has taken a block in 1000 buffers";
  // The adders work normally afterwards.
  const auto make = [] {
    return Node(2, 1, 0, size_t{4} << 20, DType::kFloat32, {ReduceOp::kSum, 1.0, 1.0},
                DType::kFloat32);
  };
  EXPECT_EQ(together(make(), 2, kSegment), alone(make()));
}

}  // namespace
}  // namespace herring
