#include "links/check.h"

#include <gtest/gtest.h>

#include "transfers.h"

namespace herring::links {
namespace {

using namespace testing;

class CheckResult : public ::testing::Test {
 protected:
  CheckResult() {
    transfer.on_the_way = {4, 4};
    header.type = wire::FrameType::kResult;
    header.stream = 7;
    header.first_segment = 1;
    header.segments = 2;
    header.payload = 2 * kBytes;
  }
  Result<ResultPlace> check(uint32_t server = 1, size_t outstanding = 4) {
    return check_result(&transfer, server, header, kBytes, outstanding);
  }
  void expect_breach(const std::string& what, uint32_t server = 1) {
    const auto place = check(server);
    ASSERT_FALSE(place.ok());
    EXPECT_EQ(place.status().code(), Code::kProtocol);
    EXPECT_NE(place.status().message().find(what), std::string::npos) << place.status().message();
  }

  Transfer transfer = to_servers(2, {7, 0, 0});
  wire::FrameHeader header;
};

TEST_F(CheckResult, SaysWhereAnHonestResultBelongs) {
  const auto place = check();
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->run, 1u);
  EXPECT_EQ(place->range.offset, 5 * kBytes);
  EXPECT_EQ(place->range.bytes, 2 * kBytes);
  EXPECT_FALSE(place->empty);
  EXPECT_FALSE(place->unused);
}

TEST_F(CheckResult, RefusesWhatWasNotPushed) {
  EXPECT_FALSE(check_result(nullptr, 1, header, kBytes, 4).ok());
  expect_breach("another server owns", 2);
  header.first_segment = 3;
  expect_breach("not pushed");
}

TEST_F(CheckResult, RefusesAResultTwiceOrOfAWrongLength) {
  transfer.answered[1][2] = true;
  expect_breach("twice");
  transfer.answered[1][2] = false;
  header.payload = kBytes;
  expect_breach("wrong length");
  header.payload = 0;
  header.flags = wire::kFlagEmpty;
  expect_breach("wrong length");
  header.flags |= wire::kFlagCalledOff;
  EXPECT_TRUE(check().ok()) << "nobody has the result of what is called off";
}

TEST_F(CheckResult, ResultsOfAPairAreLarger) {
  transfer.open.dtype = *parse_wire_dtype("int8/float32");
  expect_breach("wrong length");
  header.payload = 2 * kPackNumbers * sizeof(float);
  const auto place = check();
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->range.bytes, 2 * kBytes) << "of the contributions";
}

TEST_F(CheckResult, RefusesMoreThanIsOutstanding) {
  EXPECT_FALSE(check(1, 1).ok());
  transfer.on_the_way[1] = 1;
  expect_breach("beyond what is outstanding");
}

TEST_F(CheckResult, DoesNotUseWhatAnotherServerHasNow) {
  transfer.ways[1].server = 0;
  transfer.ways[1].since = 3;
  expect_breach("beyond what is outstanding");
  transfer.ways[1].elsewhere.push_back({1, 0, 2});
  const auto place = check();
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(place->unused);
}

}  // namespace
}  // namespace herring::links
