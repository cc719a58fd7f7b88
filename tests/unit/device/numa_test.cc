// Tests where memory next to a device is, and how it is requested.
#include "device/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "node/shared_memory.h"

namespace herring::device {
namespace {

TEST(Numa, ListsOfNodesAreRead) {
  EXPECT_EQ(parse_nodes("0"), std::vector<int>{0});
  EXPECT_EQ(parse_nodes("\t0-1"), (std::vector<int>{0, 1}));
  EXPECT_EQ(parse_nodes("0-2,5,63-64"), (std::vector<int>{0, 1, 2, 5, 63, 64}));
  for (const char* wrong : {"", " ", "x", "-1", "0-", "0,", "0,,1", "1-4294967296", "99999"}) {
    EXPECT_TRUE(parse_nodes(wrong).empty()) << wrong;
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
