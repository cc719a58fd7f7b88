// Which answers a rank keeps for others.
#include <gtest/gtest.h>

#include "calls/answers.h"

namespace herring::calls {
namespace {

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
}  // namespace herring::calls
