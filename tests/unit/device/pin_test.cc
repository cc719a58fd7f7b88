#include "device/pin.h"

#include "node/shared_memory.h"
#include "tests/unit/device/standin_driver.h"

namespace herring::device {
namespace {

size_t registrations() { return STANDIN(standin_registrations)(); }

TEST(Pin, MemoryForDevicesIsPinnedAndSharedWhateverTheHeap) {
  SharedHeap heap(SharedHeap::kDefaultCacheBytes, Sharing::kProcess);
  unmap_left();  // what other tests left
  const size_t before = registrations();
  for (const size_t bytes : {size_t{100}, size_t{3} << 20}) {
    char* const host = static_cast<char*>(*heap.allocate(bytes));
    char* const pinned = static_cast<char*>(*heap.allocate(bytes, Use::kDevices));
    const auto region_of = [&](char* p) { return heap.region(heap.locate(p, bytes)->region); };
    EXPECT_TRUE(region_of(host)->fds().empty());
    EXPECT_FALSE(region_of(pinned)->fds().empty());
    EXPECT_EQ((*platform())->query(reinterpret_cast<Address>(host))->kind, Kind::kHost);
    EXPECT_EQ((*platform())->query(reinterpret_cast<Address>(pinned))->kind, Kind::kPinned);
    // Neither kind of memory reuses blocks that the other has given back.
    heap.free(host);
    heap.free(pinned);
    EXPECT_EQ(*heap.allocate(bytes, Use::kDevices), pinned);
    EXPECT_EQ(*heap.allocate(bytes), host);
  }
  EXPECT_EQ(registrations(), before + 2);
}

TEST(Pin, MemoryStaysMappedUntilTheDriverHasLetGoOfIt) {
  SharedHeap heap(0);  // caches nothing
  unmap_left();  // what other tests left
  const size_t before = registrations();
  char* const pinned = static_cast<char*>(*heap.allocate(size_t{2} << 20, Use::kDevices));
  EXPECT_EQ(registrations(), before + 1);
  heap.free(pinned);
  EXPECT_TRUE(any_to_unmap());
  EXPECT_EQ(registrations(), before + 1);
  pinned[0] = 1;  // the memory is still mapped
  unmap_left();
  EXPECT_FALSE(any_to_unmap());
  EXPECT_EQ(registrations(), before);
}

TEST(Pin, WhereTheDriverRefusesItWorksOn) {
  SharedHeap heap(0);
  unmap_left();  // what other tests left
  const size_t before = registrations();
  STANDIN(standin_fail)("cuMemHostRegister", 1, 2, false);
  auto memory = heap.allocate(size_t{2} << 20, Use::kDevices);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(registrations(), before);
  heap.free(*memory);
  EXPECT_FALSE(any_to_unmap());
}

}  // namespace
}  // namespace herring::device
