// Who answers for names, and which answers a rank keeps for others.
#include <gtest/gtest.h>

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

wire::KeptAnswer answer(uint64_t number, wire::FrameType type, size_t bytes = 4) {
  return {number, type, true, 0, 0, "x", std::string(bytes, 'a')};
}

TEST(Answers, KnowWhatIsMissing) {
  Answers answers;
  for (const uint64_t number : {1, 2, 5, 4}) ASSERT_TRUE(answers.receive(number).ok());
  wire::Handover told = answers.tell();
  EXPECT_EQ(told.highest, 5u);
  EXPECT_EQ(told.holes, std::vector<uint64_t>{3});
  EXPECT_FALSE(answers.receive(4).ok()) << "twice";
  EXPECT_FALSE(answers.receive(uint64_t{1} << 40).ok());
  answers.forget(9);
  told = answers.tell();
  EXPECT_EQ(told.highest, 9u);
  EXPECT_TRUE(told.holes.empty() && told.kept.empty());
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
