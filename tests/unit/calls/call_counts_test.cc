#include "calls/call_counts.h"

#include <gtest/gtest.h>

namespace herring::calls {
namespace {

TEST(CallCounts, CountTheCallsOfANameInItsGroup) {
  CallCounts counts;
  EXPECT_EQ(counts.next(0, "loss"), 1u);
  EXPECT_EQ(counts.next(0, "accuracy"), 1u);
  EXPECT_EQ(counts.next(0, "loss"), 2u);
  EXPECT_EQ(counts.next(1, "loss"), 1u);
  EXPECT_EQ(counts.next(0, "loss"), 3u);
}

TEST(CallCounts, NamesThatEndInANumberHaveNone) {
  CallCounts counts;
  for (const char* name : {"allreduce.7", "allreduce#2.7", "x.0"}) {
    EXPECT_EQ(counts.next(0, name), 0u) << name;
  }
  for (const char* name : {"x.", ".x", "7", "x.7b", ""}) {
    EXPECT_EQ(counts.next(0, name), 1u) << name;
  }
}

TEST(CallCounts, BeginAgainAfterAJoin) {
  CallCounts one, other;
  for (int i = 0; i < 5; ++i) one.next(0, "loss");
  for (int i = 0; i < 7; ++i) other.next(0, "loss");
  other.next(1, "loss");
  one.join(0);
  other.join(0);
  EXPECT_EQ(one.next(0, "loss"), 1u);
  EXPECT_EQ(other.next(0, "loss"), 1u);
  EXPECT_EQ(other.next(1, "loss"), 2u) << "another group";
}

TEST(CallCounts, ForgetsNamesThatNobodyUses) {
  CallCounts counts;
  counts.next(0, "first");
  counts.next(0, "again");
  for (size_t i = 0; i < CallCounts::kMost - 2; ++i) counts.next(0, concat("x", i));
  EXPECT_EQ(counts.next(0, "again"), 2u);
  counts.next(0, "one more");
  EXPECT_EQ(counts.next(0, "again"), 3u);
  EXPECT_EQ(counts.next(0, "first"), 1u) << "it was forgotten";
}

}  // namespace
}  // namespace herring::calls
