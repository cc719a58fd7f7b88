// Who answers for names, and which answers a rank keeps for others.
#include <gtest/gtest.h>

#include <random>

#include "worker/answers.h"
#include "worker/owners.h"

namespace herring::worker {
namespace {

const std::vector<uint32_t> kOwners{0, 1, 2};

TEST(Owners, HomesAnswerForTheirNamesFromTheStartOn) {
  const Owners owners;
  EXPECT_EQ(owners.of(kOwners, 2), (Owner{{2}, 2}));
  EXPECT_TRUE(owners.has(2));
}

TEST(Owners, NamesMoveOnlyIfTheirServerDies) {
  Owners owners;
  control::ServerSet set = control::ServerSet::all(3);
  set.lose(1);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 0), (Owner{{0}, 0}));
  const Owner stands_in = owners.of(kOwners, 1);
  EXPECT_EQ(stands_in.reign, (Reign{1, set.epoch}));
  ASSERT_NE(stands_in.server, 1u);
  EXPECT_FALSE(owners.has(1));
  set.add(1);  // it has been replaced
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), stands_in);
  set.lose(stands_in.server);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), (Owner{{1, set.epoch}, 1})) << "they return to their home";
}

TEST(Owners, TheLastOneStaysIfNoneIsLeft) {
  Owners owners;
  control::ServerSet set = control::ServerSet::all(4);
  for (const uint32_t server : kOwners) set.lose(server);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), (Owner{{1}, 1}));
}

// Follows all versions of the set of servers in turn.
Owner after(const std::vector<control::ServerSet>& versions, const std::vector<uint32_t>& owners,
            uint32_t home) {
  Owner owner{{home}, home};
  for (const control::ServerSet& set : versions) {
    if (set.has(owner.server)) continue;
    const uint32_t next = set.stand_in(home, 0, owners).server;
    if (next != control::ServerSet::kNone) owner = {{home, set.epoch}, next};
  }
  return owner;
}

TEST(Owners, FollowAllVersions) {
  std::mt19937 random(1);
  for (int job = 0; job < 50; ++job) {
    const uint32_t servers = 2 + random() % 5;
    control::ServerSet set = control::ServerSet::all(servers);
    std::vector<control::ServerSet> versions;
    Owners owners;
    for (int version = 0; version < 30; ++version) {
      for (uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
        const uint32_t server = random() % servers;
        set.has(server) ? set.lose(server) : set.add(server);
      }
      versions.push_back(set);
      owners.serve(set);
      std::vector<uint32_t> group;  // perhaps one that is formed only now
      for (uint32_t server = 0; server < servers; ++server) {
        EXPECT_EQ(owners.has(server), set.has(server));
        if (random() % 2 == 0) group.push_back(server);
      }
      for (const uint32_t home : group) {
        ASSERT_EQ(owners.of(group, home), after(versions, group, home));
      }
    }
  }
}

// A call takes no longer because of changes long ago.
TEST(Owners, AreFoundOnceForEachVersion) {
  control::ServerSet set = control::ServerSet::all(3);
  Owners owners;
  for (int change = 0; change < 100'000; ++change) {
    set.lose(change % 3);
    owners.serve(set);
    set.add(change % 3);
    owners.serve(set);
  }
  const Owner owner = owners.of(kOwners, 1);
  for (int call = 0; call < 100'000; ++call) ASSERT_EQ(owners.of(kOwners, 1), owner);
}

wire::KeptAnswer answer(uint64_t number, wire::FrameType type, size_t bytes = 4) {
  return {number, type, 0, 0, "x", std::string(bytes, 'a'), {}, {}};
}

TEST(Answers, KnowWhatIsMissing) {
  Answers answers;
  for (const uint64_t number : {1, 2, 5, 4}) ASSERT_TRUE(answers.receive(number).ok());
  wire::Handover told = answers.tell();
  EXPECT_EQ(told.highest, 5u);
  EXPECT_EQ(told.holes, std::vector<uint64_t>{3});
  EXPECT_FALSE(answers.receive(4).ok()) << "twice";
  EXPECT_FALSE(answers.receive(uint64_t{1} << 40).ok());
  answers.join();
  EXPECT_TRUE(answers.tell().joined);
  ASSERT_TRUE(answers.receive(8).ok());
  EXPECT_EQ(answers.tell().highest, 5u) << "it is not known which ones it needs";
  answers.keep(answer(8, wire::FrameType::kGo));
  EXPECT_EQ(answers.tell().latest(), 8u);
  answers.all_joined(9);
  told = answers.tell();
  EXPECT_FALSE(told.joined);
  EXPECT_EQ(told.highest, 9u);
  EXPECT_TRUE(told.holes.empty());
  EXPECT_EQ(told.kept.size(), 1u) << "others may lack it";
}

TEST(Answers, AreKeptUntilNobodyLacksThem) {
  Answers answers;
  EXPECT_EQ(answers.complete(), 0u);
  for (const uint64_t number : {1, 2, 5}) {
    ASSERT_TRUE(answers.receive(number).ok());
    answers.keep(answer(number, wire::FrameType::kReply));
  }
  EXPECT_EQ(answers.complete(), 2u) << "it has yet to make calls that have failed for others";
  ASSERT_TRUE(answers.receive(3).ok());
  answers.keep(answer(3, wire::FrameType::kOpError));
  EXPECT_EQ(answers.complete(), 3u);
  answers.settle(2);
  EXPECT_EQ(answers.tell().kept.size(), 2u);
  EXPECT_EQ(answers.bytes(), answer(5, {}).bytes() + answer(3, {}).bytes());
  answers.settle(3);
  EXPECT_EQ(answers.tell().kept.size(), 1u);
  answers.join();
  ASSERT_TRUE(answers.receive(6).ok());
  EXPECT_EQ(answers.complete(), 3u) << "it is not known which ones it needs";
  answers.all_joined(7);
  EXPECT_EQ(answers.complete(), 7u);
  answers.settle(7);
  EXPECT_EQ(answers.bytes(), 0u);
  EXPECT_EQ(answers.tell().highest, 7u) << "what it has is known";
}

TEST(Answers, TheLatestAreKeptWithinBounds) {
  Answers answers;
  answers.keep(answer(1, wire::FrameType::kOpError));
  for (uint64_t number = 2; number < wire::kMostKept + 10; ++number) {
    answers.keep(answer(number, wire::FrameType::kReply));
  }
  wire::Handover told = answers.tell();
  ASSERT_EQ(told.kept.size(), wire::kMostKept + 1);
  EXPECT_EQ(told.kept[0].number, 10u);
  EXPECT_EQ(told.kept.back().number, 1u) << "errors are not pushed out by results";
  answers.keep(answer(99'999, wire::FrameType::kReply, wire::kMostKeptBytes - 1000));
  told = answers.tell();
  EXPECT_LT(told.kept.size(), 20u);
  EXPECT_EQ(told.kept[told.kept.size() - 2].number, 99'999u);
}

}  // namespace
}  // namespace herring::worker
