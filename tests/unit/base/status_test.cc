// concat() builds messages from parts, formatted as a stream would print them.
#include "base/status.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace herring {
namespace {

template <typename... Parts>
std::string streamed(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

TEST(Concat, TextAndCharacters) {
  const std::string text = "rank";
  const char* where = "node";
  EXPECT_EQ(concat(text, ' ', 3, std::string_view(" of "), where), "rank 3 of node");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(concat(counted(1, "worker"), " on ", counted(2, "node")), "1 worker on 2 nodes");
  EXPECT_EQ(counted(0, "server"), "0 servers");
  EXPECT_EQ(concat("", std::string()), "");
}

TEST(Concat, WholeNumbersToTheirLimits) {
  EXPECT_EQ(concat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(concat(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(concat(std::numeric_limits<int32_t>::min(), ",", uint16_t{65535}, ",", true),
            "-2147483648,65535,1");
  EXPECT_EQ(concat(uint8_t{7}), "7");  // a number, although a stream prints a character
}

TEST(Concat, FloatingPointAsAStreamPrintsIt) {
  for (const double number : {0.0, -1.5, 0.1, 1e-5, 123456.0, 1234567.0, 2.5e300, -1.23456789e-300,
                              std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(concat(number), streamed(number));
  }
  EXPECT_EQ(concat(0.25f), streamed(0.25f));
}

TEST(Status, TellsItsCode) {
  EXPECT_EQ(Status(Code::kTimeout, "late").to_string(), streamed("timeout: ", "late"));
  EXPECT_EQ(Status().to_string(), "ok");
}

TEST(Result, MovesItsValueOrReturnsItsError) {
  std::unique_ptr<int> place = std::make_unique<int>(3);
  Result<std::unique_ptr<int>> late = Status(Code::kTimeout, "late");
  EXPECT_EQ(std::move(late).move_to(place).code(), Code::kTimeout);
  EXPECT_EQ(*place, 3);
  EXPECT_TRUE(Result(std::make_unique<int>(4)).move_to(place).ok());
  EXPECT_EQ(*place, 4);
}

TEST(Faults, SayWhoseTheyAreAndWhatToDo) {
  const Status theirs = breach("rank ", 3, " sent 0 bytes"), ours = defect("slot ", 7, " is gone");
  EXPECT_EQ(theirs.code(), Code::kProtocol);
  EXPECT_TRUE(theirs.message().starts_with("rank 3 sent 0 bytes; no correct process sends that"));
  EXPECT_NE(theirs.message().find("the same build of Herring everywhere"), std::string::npos);
  EXPECT_EQ(ours.code(), Code::kInternal);
  EXPECT_EQ(ours.message(), "slot 7 is gone; this is a bug in Herring, please report it");
  EXPECT_TRUE(theirs.is_fault() && ours.is_fault());
  EXPECT_FALSE(Status().is_fault() || Status(Code::kPeerLost, "it is gone").is_fault());
  EXPECT_EQ(theirs.to_string().substr(0, 10), "protocol: ");
}

}  // namespace
}  // namespace herring
