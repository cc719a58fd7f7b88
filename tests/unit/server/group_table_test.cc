#include "server/group_table.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace herring::server {
namespace {

class GroupTableTest : public testing::Test {
 protected:
  control::Cluster cluster = make_cluster(4);
  GroupTable table{cluster, 5};
};

TEST_F(GroupTableTest, AMemberDefinesAGroupAndAllHaveToLeaveIt) {
  EXPECT_EQ(table.find(0), table.world());
  EXPECT_EQ(table.find(3), nullptr);
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 1).ok());
  const auto group = table.find(3);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->credit, 5);
  EXPECT_FALSE(group->called_off);
  // Rank 1 leaves before rank 2 has defined the group.
  table.leave(3, 1);
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 2).ok());
  EXPECT_EQ(table.find(3), group);
  table.leave(3, 0);  // not a member
  table.leave(3, 1);
  EXPECT_EQ(table.find(3), group);
  table.leave(3, 2);
  EXPECT_EQ(table.find(3), nullptr);
}

TEST_F(GroupTableTest, NonsenseIsRefused) {
  EXPECT_EQ(table.define(3, "g", {1, 2}, 0).code(), Code::kProtocol);
  EXPECT_EQ(table.define(3, "g", {2, 1}, 1).code(), Code::kProtocol);
  EXPECT_EQ(table.define(3, "g", {1, 4}, 1).code(), Code::kProtocol);
  EXPECT_EQ(table.define(0, "g", {0, 1, 2, 3}, 1).code(), Code::kProtocol);
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 1).ok());
  EXPECT_EQ(table.define(3, "g", {1, 2, 3}, 2).code(), Code::kMismatch);
  EXPECT_EQ(table.find(3)->members.ranks(), (std::vector<uint32_t>{1, 2}));
}

TEST_F(GroupTableTest, TheGoneAreMissedInGroupsOfBeforeAndAfter) {
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 1).ok());
  EXPECT_FALSE(table.any_without(1));
  EXPECT_TRUE(table.any_without(3));
  table.leave(3, 1);
  table.rank_gone(2, "is gone");
  EXPECT_EQ(table.find(3), nullptr);
  ASSERT_TRUE(table.define(4, "h", {0, 2}, 0).ok());
  EXPECT_TRUE(table.find(4)->called_off);
  EXPECT_TRUE(table.find(4)->is_gone(1));
  EXPECT_EQ(table.of_rank(2).size(), 2u);
  EXPECT_EQ(table.of_rank(1).size(), 1u);
}

// A server that comes later learns of groups that their members use already.
TEST_F(GroupTableTest, AGroupThatIsFormedElsewhereIsKnownAtOnce) {
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 1, 10, true).ok());
  auto taken = table.take_defined();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_TRUE(taken[0].status.ok());
  EXPECT_EQ(taken[0].rank, 1u);
  EXPECT_EQ(taken[0].call, 10u);
  EXPECT_NE(table.find(3), nullptr);
  // For the other member it is still being formed.
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 2, 20).ok());
  taken = table.take_defined();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_TRUE(taken[0].status.ok());
  EXPECT_EQ(taken[0].call, 20u);
  // A member that is gone will not define it, and has not kept it from being formed.
  table.rank_gone(0, "is gone");
  ASSERT_TRUE(table.define(4, "h", {0, 1}, 1, 30, true).ok());
  taken = table.take_defined();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_TRUE(taken[0].status.ok());
}

TEST_F(GroupTableTest, AllMembersHearTheSameOfANewGroup) {
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 1, 10).ok());
  EXPECT_TRUE(table.take_defined().empty()) << "rank 2 may still come";
  ASSERT_TRUE(table.define(3, "g", {1, 2}, 2, 20).ok());
  auto taken = table.take_defined();
  ASSERT_EQ(taken.size(), 2u);
  for (const auto& one : taken) EXPECT_TRUE(one.status.ok() && one.call == 10 * one.rank);
  EXPECT_TRUE(table.take_defined().empty());
  // A rank that leaves after it has heard of a group changes nothing. A rank that leaves without
  // defining the group makes it fail.
  table.rank_gone(2, "has left the job");
  ASSERT_TRUE(table.define(4, "h", {0, 1, 2}, 0, 30).ok());
  taken = table.take_defined();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].status.code(), Code::kPeerLost);
  EXPECT_NE(taken[0].status.message().find("rank 2"), std::string::npos);
  ASSERT_TRUE(table.define(4, "h", {0, 1, 2}, 1, 40).ok());
  taken = table.take_defined();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].status.code(), Code::kPeerLost) << "as for rank 0";
}

TEST_F(GroupTableTest, ThereIsALimit) {
  for (uint32_t id = 1; id <= GroupTable::kMost; ++id) {
    ASSERT_TRUE(table.define(id, "g", {0}, 0).ok());
  }
  EXPECT_EQ(table.define(GroupTable::kMost + 1, "g", {0}, 0).code(), Code::kInvalidArgument);
  EXPECT_TRUE(table.define(7, "g", {0}, 0).ok());
}

}  // namespace
}  // namespace herring::server
