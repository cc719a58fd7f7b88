#include "server/coordinator.h"

#include <gtest/gtest.h>

#include <cstring>

#include "fixture.h"

namespace herring::server {
namespace {

using wire::Announce;
using wire::Collective;

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(float)};
}

struct Call {
  Announce message;
  std::string payload;
  std::string text() const { return encode(message) + payload; }
};

Call small(uint64_t id, std::string payload) {
  Call call;
  call.message.id = id;
  call.message.name = "x";
  call.message.inline_payload = true;
  call.message.timeout_ms = 1000;
  call.message.warn_ms = 500;
  call.message.shape = {payload.size() / 4};
  call.payload = std::move(payload);
  return call;
}

class CoordinatorTest : public testing::Test {
 protected:
  std::vector<Answer> say(uint32_t rank, const Call& call, Nanos now = 0) {
    auto answers = coordinator.announce(rank, call.text(), now);
    EXPECT_TRUE(answers.ok()) << answers.status().to_string();
    return answers.ok() ? *answers : std::vector<Answer>{};
  }

  control::Cluster cluster = make_cluster(3);
  Coordinator coordinator{cluster, 5};
};

TEST_F(CoordinatorTest, SumsWhatRodeAlong) {
  EXPECT_TRUE(say(2, small(12, floats({4, 5}))).empty());
  EXPECT_TRUE(say(0, small(10, floats({1, 2}))).empty());
  const auto answers = say(1, small(11, floats({10, 20})));
  ASSERT_EQ(answers.size(), 3u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(answers[rank].rank, rank);
    EXPECT_EQ(answers[rank].header.type, wire::FrameType::kReply);
    std::string_view result;
    const auto head = wire::decode_go(answers[rank].payload, &result);
    ASSERT_TRUE(head.ok());
    EXPECT_EQ(head->id, 10 + rank);
    EXPECT_EQ(result, floats({15, 27}));
  }
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, LargerOnesGetTicketsInOneOrder) {
  for (uint32_t ticket = 0; ticket < 3; ++ticket) {
    std::vector<Answer> answers;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Call call = small(rank, "");
      call.message.inline_payload = false;
      call.message.shape = {1 << 20};
      answers = say(rank, call);
    }
    ASSERT_EQ(answers.size(), 3u);
    EXPECT_EQ(answers[0].header.type, wire::FrameType::kGo);
    EXPECT_EQ(answers[0].header.stream, 5u);
    EXPECT_EQ(answers[0].header.round, ticket);
  }
}

TEST_F(CoordinatorTest, DisagreementSaysWhoHadWhat) {
  say(0, small(0, floats({1})));
  say(1, small(1, floats({1, 2})));
  const auto answers = say(2, small(2, floats({1})));
  ASSERT_EQ(answers.size(), 3u);
  const auto error = wire::decode_op_error(answers[1].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kMismatch);
  EXPECT_NE(error->text.find("ranks 0, 2: allreduce of float32 [1]"), std::string::npos)
      << error->text;
  EXPECT_NE(error->text.find("rank 1: allreduce of float32 [2]"), std::string::npos);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, WarnsOnceThenFailsNamingTheMissing) {
  say(1, small(1, floats({1})), 0);
  EXPECT_TRUE(coordinator.overdue(400 * kMillisecond).empty());
  auto answers = coordinator.overdue(600 * kMillisecond);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.type, wire::FrameType::kWarning);
  EXPECT_NE(answers[0].payload.find("rank 0 ("), std::string::npos);
  EXPECT_TRUE(coordinator.overdue(700 * kMillisecond).empty());
  answers = coordinator.overdue(1100 * kMillisecond);
  ASSERT_EQ(answers.size(), 1u);
  const auto error = wire::decode_op_error(answers[0].payload);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->code, Code::kTimeout);
  EXPECT_NE(error->text.find("rank 2 ("), std::string::npos);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(CoordinatorTest, WhoLeftFailsWhatStillNeedsIt) {
  say(0, small(0, floats({1})));
  auto answers = coordinator.rank_left(2);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(wire::decode_op_error(answers[0].payload)->code, Code::kPeerLost);
  answers = say(1, small(1, floats({1})));  // and what is announced later
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(wire::decode_op_error(answers[0].payload)->text.find("rank 2"), std::string::npos);
}

TEST_F(CoordinatorTest, RefusesWhatDoesNotParse) {
  EXPECT_FALSE(coordinator.announce(0, "rubbish", 0).ok());
  Call call = small(0, floats({1, 2}));
  call.message.shape = {3};  // the payload has two elements
  EXPECT_FALSE(coordinator.announce(0, call.text(), 0).ok());
  ASSERT_TRUE(coordinator.announce(0, small(0, floats({1})).text(), 0).ok());
  EXPECT_FALSE(coordinator.announce(0, small(0, floats({1})).text(), 0).ok());  // twice
}

}  // namespace
}  // namespace herring::server
