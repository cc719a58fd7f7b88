#include "base/lane_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

namespace herring {
namespace {

TEST(LanePool, LanesDoNotOverlapAndWholePagesBeginAtOne) {
  for (size_t bytes : {size_t{64}, size_t{1000}, size_t{8192}, size_t{5 << 20}}) {
    LanePool pool(bytes);
    std::set<char*> lanes{pool.take()};
    const size_t slab = pool.allocated();
    while (lanes.size() <= slab) {  // one more than the slab holds
      char* lane = pool.take();
      std::memset(lane, 0x5a, bytes);  // beyond the end of a slab there may be no memory
      EXPECT_EQ(reinterpret_cast<uintptr_t>(lane) % (bytes % 4096 == 0 ? 4096 : 64), 0u) << bytes;
      EXPECT_TRUE(lanes.insert(lane).second);
    }
    char* before = nullptr;
    for (char* lane : lanes) {
      EXPECT_TRUE(before == nullptr || lane - before >= static_cast<ptrdiff_t>(bytes)) << bytes;
      before = lane;
    }
  }
}

TEST(LanePool, GivesTheLastReturnedFirstAndGrowsOnlyWhenEmpty) {
  LanePool pool(8192);
  char* first = pool.take();
  char* second = pool.take();
  pool.give(first);
  pool.give(second);
  EXPECT_EQ(pool.take(), second);
  EXPECT_EQ(pool.take(), first);
  const size_t allocated = pool.allocated();
  std::vector<char*> all{first, second};
  while (all.size() < allocated) all.push_back(pool.take());
  EXPECT_EQ(pool.allocated(), allocated);
  pool.take();
  EXPECT_GT(pool.allocated(), allocated);
}

}  // namespace
}  // namespace herring
