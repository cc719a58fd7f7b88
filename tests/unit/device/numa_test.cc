// Tests where memory next to a device is, and how it is requested.
#include "device/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "node/shared_memory.h"

namespace herring::device {
namespace {

TEST(Numa, ListsAreRead) {
  EXPECT_EQ(parse_list("0"), std::vector<int>{0});
  EXPECT_EQ(parse_list("\t0-1"), (std::vector<int>{0, 1}));
  EXPECT_EQ(parse_list("0-2,5,63-64"), (std::vector<int>{0, 1, 2, 5, 63, 64}));
  for (const char* wrong : {"", " ", "x", "-1", "0-", "0,", "0,,1", "1-4294967296", "99999"}) {
    EXPECT_TRUE(parse_list(wrong).empty()) << wrong;
  }
}

TEST(Numa, ANodeIsPreferredWhereThereAreOthers) {
  EXPECT_FALSE(policy_for(0, {0}));        // the only node
  EXPECT_FALSE(policy_for(-1, {0, 1}));    // the node is unknown
  EXPECT_FALSE(policy_for(2, {0, 1}));     // this process may not use the node
  EXPECT_FALSE(policy_for(0, {}));
  for (const int node : {0, 1, 5, 63, 64, 130}) {
    const auto policy = policy_for(node, {0, 1, 5, 63, 64, 130});
    ASSERT_TRUE(policy);
    EXPECT_EQ(policy->mode, 1);  // MPOL_PREFERRED: when the node is full, memory comes from others
    int bits = 0;
    for (size_t i = 0; i < policy->nodes.size(); ++i) {
      for (int bit = 0; bit < 64; ++bit) {
        if ((policy->nodes[i] >> bit & 1) == 0) continue;
        ++bits;
        EXPECT_EQ(static_cast<int>(64 * i) + bit, node);
      }
    }
    EXPECT_EQ(bits, 1);
  }
}

TEST(Numa, TheSystemIsAskedWhereTheDriverDoesNotKnow) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("herring-numa-", ::getpid());
  std::filesystem::create_directories(folder / "0000:c1:00.0");
  Properties properties;
  properties.bus = "0000:C1:00.0";  // upper case, as drivers write it; the system uses lower case
  EXPECT_EQ(near_node(properties, folder), -1);
  std::ofstream(folder / "0000:c1:00.0" / "numa_node") << "1\n";
  EXPECT_EQ(near_node(properties, folder), 1);
  std::ofstream(folder / "0000:c1:00.0" / "numa_node") << "-1\n";
  EXPECT_EQ(near_node(properties, folder), -1);
  properties.numa_node = 3;
  EXPECT_EQ(near_node(properties, folder), 3);
  std::filesystem::remove_all(folder);
}

TEST(Numa, APolicyHoldsForMemoryThatIsSharedToo) {
  const size_t bytes = size_t{4} << 20;
  const auto policy = policy_for(0, {0, 1});  // pretends that there is a second node
  const int file = ::memfd_create("numa", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, bytes), 0);
  for (const int fd : {-1, file}) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    ASSERT_NE(memory, MAP_FAILED);
    const int error = apply(*policy, memory, bytes);
    if (error == EPERM || error == ENOSYS) GTEST_SKIP() << "mbind: " << std::strerror(error);
    ASSERT_EQ(error, 0) << std::strerror(error);
    std::memset(memory, 1, bytes);
    int mode = -1;
    unsigned long nodes[32] = {};
    constexpr unsigned long kOfAddress = 2;  // MPOL_F_ADDR
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof(nodes), memory, kOfAddress), 0);
    EXPECT_EQ(mode, 1);
    EXPECT_EQ(nodes[0], 1u);
    ::munmap(memory, bytes);
  }
  ::close(file);
}

// Whole pages that nobody has touched yet, shared as those of a node's workers are.
class Fresh {
 public:
  Fresh() {
    const int file = ::memfd_create("numa", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, kBytes), 0);
    data_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(data_, MAP_FAILED);
    ::close(file);
  }
  ~Fresh() { ::munmap(data_, kBytes); }

  void* data() const { return data_; }
  // Returns how many pages have been touched.
  ptrdiff_t touched() const {
    std::vector<unsigned char> there(kBytes / static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(::mincore(data_, kBytes, there.data()), 0);
    return std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; });
  }

  static constexpr size_t kBytes = size_t{1} << 20;

 private:
  void* data_ = MAP_FAILED;
};

int forbidden(const MemoryPolicy&, void*, size_t) { return EPERM; }

// A system with two nodes, of which the second one has the CPUs of `list`.
class TwoNodes : public testing::Test {
 protected:
  TwoNodes() {
    CPU_ZERO(&before_);
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
  }
  ~TwoNodes() override {
    cpu_set_t after;
    CPU_ZERO(&after);
    EXPECT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before_, &after)) << "this thread may have to run elsewhere now";
    std::filesystem::remove_all(system_.folder);
  }
  void second_has(const std::string& list) {
    std::filesystem::create_directories(system_.folder + "/node1");
    std::ofstream(system_.folder + "/node1/cpulist") << list << "\n";
  }
  // Returns a CPU on which this thread may run.
  std::string own_cpu() const {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before_)) ++cpu;
    return std::to_string(cpu);
  }

  const Fresh memory_;
  cpu_set_t before_;
  NodeSystem system_{
      {0, 1},
      forbidden,
      std::filesystem::temp_directory_path() / concat("herring-nodes-", ::getpid())};
};

TEST_F(TwoNodes, ThePolicyIsEnoughIfTheSystemTakesIt) {
  system_.bind = [](const MemoryPolicy&, void*, size_t) { return 0; };
  second_has(own_cpu());
  EXPECT_EQ(place_near(1, memory_.data(), Fresh::kBytes, system_), Placed::kByPolicy);
  EXPECT_EQ(memory_.touched(), 0);
}

TEST_F(TwoNodes, AThreadOfTheNodeTouchesTheMemoryIfPoliciesAreForbidden) {
  second_has(own_cpu());
  EXPECT_EQ(place_near(1, memory_.data(), Fresh::kBytes, system_), Placed::kByTouch);
  EXPECT_EQ(memory_.touched(),
            static_cast<ptrdiff_t>(Fresh::kBytes) / ::sysconf(_SC_PAGESIZE));
  EXPECT_TRUE(std::ranges::all_of(
      static_cast<const char*>(memory_.data()),
      static_cast<const char*>(memory_.data()) + Fresh::kBytes, [](char c) { return c == 0; }));
}

TEST_F(TwoNodes, NothingIsTouchedWhereNoThreadMayRun) {
  for (const char* cpus : {"8191", "", "no list"}) {
    second_has(cpus);  // the first of them: a CPU that this machine does not have
    EXPECT_EQ(place_near(1, memory_.data(), Fresh::kBytes, system_), Placed::kAnywhere) << cpus;
  }
  std::filesystem::remove_all(system_.folder);  // the system does not tell its nodes
  EXPECT_EQ(place_near(1, memory_.data(), Fresh::kBytes, system_), Placed::kAnywhere);
  EXPECT_EQ(memory_.touched(), 0);
}

TEST_F(TwoNodes, NothingIsAskedWithoutAChoice) {
  second_has(own_cpu());
  for (const int node : {-1, 2}) {
    EXPECT_EQ(place_near(node, memory_.data(), Fresh::kBytes, system_), Placed::kAnywhere);
  }
  system_.allowed = {1};
  EXPECT_EQ(place_near(1, memory_.data(), Fresh::kBytes, system_), Placed::kAnywhere);
  EXPECT_EQ(memory_.touched(), 0);
}

TEST(Numa, AThreadThatMayNotRunThereSaysWhy) {
  EXPECT_EQ(touch_on({}, nullptr, 0), ENODEV);
  EXPECT_EQ(touch_on({8191}, nullptr, 0), EINVAL);
}

TEST(Numa, MemoryIsThereWhateverTheNode) {
  for (const int node : {-1, 0, 1, 1023, 1 << 30}) {
    auto region = SharedRegion::create(100'000, Sharing::kNode, node);
    ASSERT_TRUE(region.ok());
    std::memset((*region)->data(), 1, (*region)->bytes());
  }
}

// Memory on another node is not handed out again for a device that is not next to it.
TEST(Numa, EachNodeHasMemoryOfItsOwn) {
  for (const size_t bytes : {size_t{1000}, size_t{2} << 20}) {
    SharedHeap heap;
    void* const first = *heap.allocate(bytes, Use::devices_at(0));
    const size_t regions = heap.usage().regions;
    ASSERT_TRUE(heap.free(first));
    void* const second = *heap.allocate(bytes, Use::devices_at(1));
    EXPECT_NE(second, first);
    EXPECT_EQ(heap.usage().regions, regions + 1);
    EXPECT_EQ(*heap.allocate(bytes, Use::devices_at(0)), first);
    EXPECT_EQ(heap.usage().regions, regions + 1);
  }
}

}  // namespace
}  // namespace herring::device
