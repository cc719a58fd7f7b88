#include "node/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "names.h"

namespace herring {
namespace {

// Returns the names in /dev/shm that contain "herring": other programs also create and delete files
// there.
std::set<std::string> left_in_shm() {
  std::set<std::string> names;
  for (const std::string& name : names_in("/dev/shm")) {
    if (name.find("herring") != std::string::npos) names.insert(name);
  }
  return names;
}

std::vector<UniqueFd> owned(int fd) {
  std::vector<UniqueFd> files;
  files.emplace_back(fd);
  return files;
}

std::vector<UniqueFd> copies(const std::vector<int>& fds) {
  std::vector<UniqueFd> files;
  for (const int fd : fds) files.emplace_back(::dup(fd));
  return files;
}

// Sets the limit of the size of files (ulimit -f) for the life of the object.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(SharedRegion, BothMappingsSeeTheSameBytes) {
  auto made = SharedRegion::create(5000);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  SharedRegion& mine = **made;
  EXPECT_EQ(mine.bytes() % 4096, 0u);
  EXPECT_GE(mine.bytes(), 5000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mine.data()) % 4096, 0u);
  EXPECT_EQ(mine.data()[4999], 0);
  auto theirs = SharedRegion::map(copies({mine.fds()[0]}), mine.bytes());
  ASSERT_TRUE(theirs.ok()) << theirs.status().to_string();
  std::memcpy(mine.data() + 100, "herring", 8);
  EXPECT_STREQ((*theirs)->data() + 100, "herring");
  (*theirs)->data()[100] = 'H';
  EXPECT_EQ(mine.data()[100], 'H');
  EXPECT_TRUE((*theirs)->fds().empty());
  EXPECT_EQ((*theirs)->id(), 0u);
  // The peer's mapping outlives the owner's region.
  made->reset();
  EXPECT_STREQ((*theirs)->data() + 100, "Herring");
}

TEST(SharedRegion, SizesThatCannotBeAreRefused) {
  EXPECT_EQ(SharedRegion::create(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SharedRegion::create(SIZE_MAX).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(SharedRegion::create(SIZE_MAX / 5).ok());
}

// To grow a file beyond the limit would end this process by SIGXFSZ.
TEST(SharedRegion, ConsistsOfSeveralFilesWhereTheirSizeIsLimited) {
  const FileLimit limit(10'000);  // two pages
  auto made = SharedRegion::create(5 * 4096 - 1);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  SharedRegion& mine = **made;
  const std::vector<int> fds = mine.fds();
  ASSERT_EQ(fds.size(), 3u);
  EXPECT_EQ(mine.bytes(), 5u * 4096);
  for (size_t at = 0; at < mine.bytes(); ++at) mine.data()[at] = static_cast<char>(at / 1000);
  auto theirs = SharedRegion::map(copies(fds), mine.bytes());
  ASSERT_TRUE(theirs.ok()) << theirs.status().to_string();
  EXPECT_EQ(std::memcmp(mine.data(), (*theirs)->data(), mine.bytes()), 0);
  (*theirs)->data()[5 * 4096 - 1] = 'H';
  EXPECT_EQ(mine.data()[5 * 4096 - 1], 'H');

  const Status too_many = SharedRegion::create(8192 * SharedRegion::kMostFiles + 1).status();
  EXPECT_NE(too_many.message().find("'ulimit -f'"), std::string::npos) << too_many.to_string();
  EXPECT_TRUE(SharedRegion::create(8192 * SharedRegion::kMostFiles).ok());

  // Files that are too few or too many.
  const size_t bytes = mine.bytes();
  EXPECT_FALSE(SharedRegion::map(copies({fds[0], fds[1]}), bytes).ok());
  EXPECT_FALSE(SharedRegion::map(copies({fds[0], fds[1], fds[2], fds[2]}), bytes).ok());
  EXPECT_FALSE(SharedRegion::map({}, bytes).ok());
}

TEST(SharedRegion, IsNotPossibleWhereFilesMustBeTiny) {
  EXPECT_TRUE(SharedRegion::possible().ok());
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{1} << 20}) {
    const FileLimit limit(bytes);
    const Status refused = SharedRegion::possible();
    EXPECT_NE(refused.message().find("'ulimit -f'"), std::string::npos) << refused.to_string();
  }
  const FileLimit limit(rlim_t{16} << 20);
  EXPECT_TRUE(SharedRegion::possible().ok());
}

TEST(SharedRegion, IsSealed) {
  auto made = SharedRegion::create(1 << 20);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(::ftruncate((*made)->fds()[0], 4096), 0);
  EXPECT_NE(::ftruncate((*made)->fds()[0], 2 << 20), 0);
  EXPECT_NE(::fcntl((*made)->fds()[0], F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedRegion, RefusesWhatCouldRaiseSigbus) {
  auto sealed = SharedRegion::create(8192);
  ASSERT_TRUE(sealed.ok());
  const int fd = (*sealed)->fds()[0];
  for (size_t lie : {size_t{0}, size_t{4096}, size_t{8191}, size_t{8193}, size_t{1} << 40}) {
    EXPECT_EQ(SharedRegion::map(copies({fd}), lie).status().code(), Code::kProtocol)
        << lie;
  }
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  EXPECT_FALSE(SharedRegion::map(copies({unsealed.get()}), 8192).ok());
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(SharedRegion::map(copies({unsealed.get()}), 8192).ok());
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(SharedRegion::map(copies({unsealed.get()}), 8192).ok());

  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_FALSE(SharedRegion::map(owned(ends[0]), 4096).ok());
  EXPECT_FALSE(SharedRegion::map(owned(ends[1]), 4096).ok());
  EXPECT_FALSE(SharedRegion::map(owned(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096).ok());
  EXPECT_FALSE(SharedRegion::map(owned(::open("/proc/self/exe", O_RDONLY)), 4096).ok());
  EXPECT_FALSE(SharedRegion::map(owned(-1), 4096).ok());
}

TEST(SharedRegion, StaysMappedInAForkedChildWithoutItsDescriptor) {
  auto made = SharedRegion::create(4096);
  ASSERT_TRUE(made.ok());
  (*made)->data()[7] = 42;
  const int number = (*made)->fds()[0];
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool good = (*made)->data()[7] == 42 && (*made)->fds()[0] == -1 &&
                      ::fcntl(number, F_GETFD) < 0;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(SharedRegion, PrivateOnesHaveNoDescriptorAndAChildsWritesStayInTheChild) {
  const size_t before = open_fds();
  auto made = SharedRegion::create(5 << 20, Sharing::kProcess);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  SharedRegion& region = **made;
  EXPECT_TRUE(region.fds().empty());
  EXPECT_EQ(open_fds(), before);
  EXPECT_NE(region.id(), 0u);
  EXPECT_EQ(region.data()[(5 << 20) - 1], 0);
  region.data()[7] = 42;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool good = region.data()[7] == 42;
    region.data()[7] = 1;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(region.data()[7], 42);
}

TEST(SharedHeap, APrivateHeapLocatesAndReusesLikeAnyOther) {
  SharedHeap heap(8 << 20, Sharing::kProcess);
  auto block = heap.allocate(3 << 20);
  ASSERT_TRUE(block.ok());
  const auto at = heap.locate(*block, 3 << 20);
  ASSERT_TRUE(at);
  EXPECT_TRUE(heap.region(at->region)->fds().empty());
  EXPECT_TRUE(heap.free(*block));
  auto again = heap.allocate(3 << 20);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *block);
}

TEST(SharedHeap, SmallBlocksShareARegionLargeOnesDoNot) {
  SharedHeap heap;
  auto a = heap.allocate(100), b = heap.allocate(1), c = heap.allocate(0);
  auto large = heap.allocate(3 << 20);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok() && large.ok());
  EXPECT_EQ(heap.usage().regions, 2u);
  EXPECT_EQ(heap.usage().allocated, 128u + 64 + 64 + (3 << 20));
  auto at = heap.locate(*a, 100), bt = heap.locate(*b, 1), lt = heap.locate(*large, 3 << 20);
  ASSERT_TRUE(at && bt && lt);
  EXPECT_EQ(at->region, bt->region);
  EXPECT_NE(at->region, lt->region);
  EXPECT_EQ(lt->offset, 0u);
  EXPECT_EQ(heap.region(lt->region)->data(), *large);
  EXPECT_EQ(heap.region(at->region)->data() + at->offset, *a);
}

TEST(SharedHeap, LocateChecksBounds) {
  SharedHeap heap;
  auto block = heap.allocate(SharedHeap::kLargeBytes);
  ASSERT_TRUE(block.ok());
  char* p = static_cast<char*>(*block);
  const size_t n = SharedHeap::kLargeBytes;
  EXPECT_EQ(heap.locate(p + 5, n - 5)->offset, 5u);
  EXPECT_EQ(heap.locate(p + n - 1, 1)->offset, n - 1);
  EXPECT_FALSE(heap.locate(p + 1, n));
  EXPECT_FALSE(heap.locate(p - 1, 1));
  EXPECT_FALSE(heap.locate(p + n, 0));
  EXPECT_FALSE(heap.locate(p, SIZE_MAX));
  int local = 0;
  EXPECT_FALSE(heap.locate(&local, sizeof(local)));
  EXPECT_FALSE(heap.locate(nullptr, 0));
  EXPECT_EQ(heap.region(12345678), nullptr);
}

TEST(SharedHeap, FreeRefusesWhatItDidNotHandOut) {
  SharedHeap heap;
  auto block = heap.allocate(1000);
  ASSERT_TRUE(block.ok());
  int local = 0;
  EXPECT_FALSE(heap.free(nullptr));
  EXPECT_FALSE(heap.free(&local));
  EXPECT_FALSE(heap.free(static_cast<char*>(*block) + 64));
  EXPECT_TRUE(heap.free(*block));
  EXPECT_FALSE(heap.free(*block));
}

TEST(SharedHeap, ReusesAndEvictsTheOldest) {
  constexpr size_t kMiB = 1 << 20;
  SharedHeap heap(10 * kMiB);
  auto a = heap.allocate(4 * kMiB), b = heap.allocate(4 * kMiB), c = heap.allocate(4 * kMiB);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  const uint32_t id_a = heap.locate(*a, 1)->region;
  const uint32_t id_b = heap.locate(*b, 1)->region;
  heap.free(*a);
  heap.free(*b);
  EXPECT_TRUE(heap.take_released().empty());
  heap.free(*c);
  EXPECT_EQ(heap.take_released(), std::vector<uint32_t>{id_a});
  EXPECT_TRUE(heap.take_released().empty());
  EXPECT_EQ(heap.region(id_a), nullptr);
  EXPECT_EQ(heap.usage().cached, 8 * kMiB);
  auto small = heap.allocate(2 * kMiB);  // a cached region would be half wasted
  EXPECT_EQ(heap.usage().regions, 3u);
  auto again = heap.allocate(4 * kMiB - 5000);
  ASSERT_TRUE(small.ok() && again.ok());
  EXPECT_EQ(heap.usage().regions, 3u);
  EXPECT_EQ(heap.usage().cached, 4 * kMiB);
  heap.free(*small);
  heap.free(*again);
  EXPECT_EQ(heap.usage().cached, 10 * kMiB);
  auto huge = heap.allocate(64 * kMiB);  // larger than the cap: not cached, the others stay
  ASSERT_TRUE(huge.ok());
  const uint32_t id_huge = heap.locate(*huge, 1)->region;
  heap.free(*huge);
  EXPECT_EQ(heap.take_released(), std::vector<uint32_t>{id_huge});
  EXPECT_EQ(heap.usage().cached, 10 * kMiB);
  EXPECT_NE(heap.region(id_b), nullptr);
}

// This holds whether or not a driver here pins the memory.
TEST(SharedHeap, ARegionForDevicesTakesThePlaceOfKeptOnesOfAboutItsSize) {
  SharedHeap heap;
  const auto take_and_free = [&heap](size_t bytes, Use use) {
    auto block = heap.allocate(bytes, use);
    ASSERT_TRUE(block.ok());
    EXPECT_TRUE(heap.free(*block));
  };
  for (size_t i = 0; i < 50; ++i) {
    take_and_free((8 << 20) + (i << 16), Use::kDevices);
    EXPECT_EQ(heap.usage().regions, 1u);
  }
  take_and_free(64 << 20, Use::kDevices);  // a region of another size
  EXPECT_EQ(heap.usage().regions, 2u);
  for (size_t i = 0; i < 3; ++i) take_and_free((16 << 20) + (i << 16), Use::kHost);
  EXPECT_EQ(heap.usage().regions, 5u);
}

// Neighbours may still write to blocks that were handed out before, so nobody else gets them.
TEST(SharedHeap, NothingIsHandedOutAgainOnceAllIsRetired) {
  SharedHeap heap;
  const auto take = [&](size_t bytes) {
    auto block = heap.allocate(bytes);
    EXPECT_TRUE(block.ok());
    return *block;
  };
  const auto id_of = [&](void* block) { return heap.locate(block, 1)->region; };
  void* const small = take(64);
  void* const large = take(SharedHeap::kLargeBytes);
  void* const cached = take(2 * SharedHeap::kLargeBytes);
  const std::set<uint32_t> before{id_of(small), id_of(large), id_of(cached)};
  heap.free(cached);
  heap.retire_all();
  EXPECT_EQ(heap.take_released().size(), 1u) << "nobody uses it";
  heap.free(large);
  for (const size_t bytes : {size_t{64}, SharedHeap::kLargeBytes, 2 * SharedHeap::kLargeBytes}) {
    EXPECT_EQ(before.count(id_of(take(bytes))), 0u);
  }
  EXPECT_EQ(heap.take_released().size(), 1u);
  std::memset(small, 1, 64);  // its holder can still use it
  heap.free(small);
  EXPECT_EQ(heap.take_released().size(), 1u);
  EXPECT_EQ(heap.usage().cached, 0u);
}

// Neighbours may still read a retired block, so its content stays.
TEST(SharedHeap, ABlockThatIsRetiredIsNotHandedOutAgain) {
  SharedHeap heap;
  for (const size_t bytes : {size_t{64}, SharedHeap::kLargeBytes}) {
    auto block = heap.allocate(bytes);
    ASSERT_TRUE(block.ok());
    const uint32_t region = heap.locate(*block, 1)->region;
    heap.retire(*block);
    heap.free(*block);
    EXPECT_EQ(heap.take_released(), std::vector<uint32_t>{region});
    auto next = heap.allocate(bytes);
    ASSERT_TRUE(next.ok());
    EXPECT_NE(heap.locate(*next, 1)->region, region);
  }
  heap.retire(nullptr);
}

TEST(SharedHeap, NothingLeaks) {
  const auto shm = left_in_shm();
  const size_t before = open_fds();
  {
    SharedHeap heap(8 << 20);
    std::mt19937 random(1);
    for (int i = 0; i < 2000; ++i) {
      auto block = heap.allocate(std::uniform_int_distribution<size_t>(1, 12 << 20)(random));
      ASSERT_TRUE(block.ok()) << i;
      static_cast<char*>(*block)[0] = 1;
      ASSERT_TRUE(heap.free(*block));
    }
    EXPECT_EQ(heap.usage().allocated, 0u);
    EXPECT_LE(heap.usage().cached, size_t{8} << 20);
    EXPECT_LE(open_fds(), before + 10);
    EXPECT_EQ(left_in_shm(), shm);
  }
  EXPECT_EQ(open_fds(), before);
  EXPECT_EQ(left_in_shm(), shm);
}

// Random blocks never overlap and keep their content. Freed neighbours merge into one hole.
TEST(SharedHeap, RandomBlocksKeepTheirContent) {
  SharedHeap heap;
  std::mt19937 random(7);
  struct Block {
    char* data;
    size_t bytes;
    char mark;
  };
  std::vector<Block> blocks;
  auto intact = [](const Block& b) {
    return std::all_of(b.data, b.data + b.bytes, [&](char c) { return c == b.mark; });
  };
  for (int i = 0; i < 5000; ++i) {
    if (blocks.size() < 100 && random() % 2 == 0) {
      const size_t bytes = random() % 10 == 0 ? random() % (1 << 20) : random() % 5000;
      auto p = heap.allocate(bytes);
      ASSERT_TRUE(p.ok());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*p) % SharedHeap::kAlignment, 0u);
      ASSERT_TRUE(heap.locate(*p, bytes));
      blocks.push_back({static_cast<char*>(*p), bytes, static_cast<char>(i)});
      std::memset(*p, i, bytes);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_TRUE(intact(blocks.back())) << i;
      ASSERT_TRUE(heap.free(blocks.back().data));
      blocks.pop_back();
    }
  }
  for (const Block& b : blocks) {
    EXPECT_TRUE(intact(b));
    heap.free(b.data);
  }
  EXPECT_EQ(heap.usage().allocated, 0u);
  const size_t regions = heap.usage().regions;
  for (size_t i = 0; i < regions; ++i) {  // every slab is one hole again
    ASSERT_TRUE(heap.allocate(SharedHeap::kLargeBytes - SharedHeap::kAlignment).ok());
  }
  EXPECT_EQ(heap.usage().regions, regions);
}

TEST(SharedHeap, ThreadsMayAllocateWhileOthersFork) {
  SharedHeap heap(4 << 20);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      while (!stop.load(std::memory_order_relaxed)) {
        auto p = heap.allocate(random() % (2 << 20));
        if (!p.ok()) {
          ADD_FAILURE() << p.status().message();
          return;
        }
        EXPECT_TRUE(heap.locate(*p, 1));
        EXPECT_TRUE(heap.free(*p));
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(20);  // ends the child if it waits for a mutex that no thread can unlock
      auto p = heap.allocate(100);
      ::_exit(p.ok() && heap.free(*p) ? 0 : 1);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << i;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace herring
