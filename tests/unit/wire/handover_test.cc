#include "wire/handover.h"

#include <gtest/gtest.h>

namespace herring::wire {
namespace {

Handover example() {
  Handover handover;
  handover.highest = 9;
  handover.holes = {2, 5};
  handover.kept = {{8, FrameType::kGo, 7, 3, "a", "text", {4, uint64_t{1} << 40}, "call"},
                   {9, FrameType::kOpError, 0, 0, "", std::string("\0b", 2), {}, {}}};
  handover.met = {{3, 1, 4, FrameType::kGo, 7, 2, "c"},
                  {5, 0, uint64_t{1} << 40, FrameType::kOpError, 0, 0, "no"}};
  return handover;
}

TEST(Handover, GoesThere) {
  const auto there = decode_handover(encode(example()));
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(there->highest, 9u);
  EXPECT_EQ(there->holes, (std::vector<uint64_t>{2, 5}));
  ASSERT_EQ(there->kept.size(), 2u);
  EXPECT_EQ(there->kept[0].stream, 7u);
  EXPECT_EQ(there->kept[0].ticket, 3u);
  EXPECT_EQ(there->kept[0].name, "a");
  EXPECT_EQ(there->kept[0].call, "call");
  EXPECT_EQ(there->kept[0].own, (std::vector<uint64_t>{4, uint64_t{1} << 40}));
  EXPECT_EQ(there->kept[1].type, FrameType::kOpError);
  EXPECT_EQ(there->kept[1].text, std::string("\0b", 2));
  EXPECT_FALSE(there->joined);
  EXPECT_EQ(there->latest(), 9u);
  ASSERT_EQ(there->met.size(), 2u);
  EXPECT_EQ(there->met[0].own, 3u);
  EXPECT_EQ(there->met[0].other, 1u);
  EXPECT_EQ(there->met[0].stream, 7u);
  EXPECT_EQ(there->met[0].ticket, 2u);
  EXPECT_EQ(there->met[1].others, uint64_t{1} << 40);
  EXPECT_EQ(there->met[1].type, FrameType::kOpError);
  EXPECT_EQ(there->met[1].text, "no");
  EXPECT_TRUE(there->has(1) && there->has(9));
  EXPECT_FALSE(there->has(5) || there->has(10));
}

TEST(Handover, ARankThatHasJoinedKeepsLaterAnswers) {
  Handover handover = example();
  handover.kept[0].number = 12;
  EXPECT_FALSE(decode_handover(encode(handover)).ok());
  handover.joined = true;
  const auto there = decode_handover(encode(handover));
  ASSERT_TRUE(there.ok());
  EXPECT_TRUE(there->joined);
  EXPECT_EQ(there->latest(), 12u);
}

TEST(Handover, NonsenseIsRefused) {
  const std::string text = encode(example());
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(decode_handover(text.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(decode_handover(text + "x").ok());
  Handover wrong = example();
  wrong.holes = {5, 2};
  EXPECT_FALSE(decode_handover(encode(wrong)).ok()) << "not ascending";
  wrong.holes = {9};
  EXPECT_FALSE(decode_handover(encode(wrong)).ok()) << "the highest is not a hole";
  wrong = example();
  wrong.kept[0].number = 5;
  EXPECT_FALSE(decode_handover(encode(wrong)).ok()) << "a hole cannot be kept";
  wrong = example();
  wrong.kept[0].type = FrameType::kWarning;
  EXPECT_FALSE(decode_handover(encode(wrong)).ok());
  wrong = example();
  wrong.met[1].type = FrameType::kReply;
  EXPECT_FALSE(decode_handover(encode(wrong)).ok());
}

TEST(AnswerNumber, HasSixtyFourBits) {
  FrameHeader header;
  EXPECT_EQ(answer_number(header), 0u);
  set_answer_number(header, 0x123456789abcdef0);
  EXPECT_EQ(answer_number(header), 0x123456789abcdef0u);
}

}  // namespace
}  // namespace herring::wire
