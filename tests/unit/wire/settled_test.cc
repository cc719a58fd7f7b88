#include "wire/settled.h"

#include <gtest/gtest.h>

namespace herring::wire {
namespace {

using Kind = Subject::Kind;

TEST(Settled, GoesThere) {
  const std::vector<Settled> all{{{Kind::kStream, 7}, settled_at({7, 2, 3})},
                                 {{Kind::kSeries, UINT64_MAX}, 1},
                                 {{Kind::kAnswers, 1}, uint64_t{1} << 40}};
  const auto there = decode_settled(encode(all));
  ASSERT_TRUE(there.ok());
  EXPECT_EQ(*there, all);
}

TEST(Settled, PlacesFollowTheOrderOfTheKeys) {
  EXPECT_EQ(settled_at({7, 0, 0}), 1u);
  EXPECT_LT(settled_at({7, 1, 9}), settled_at({7, 2, 0}));
  EXPECT_LT(settled_at({7, 2, 0}), settled_at({7, 2, 1}));
}

TEST(Settled, NonsenseIsRefused) {
  const std::string good = encode(std::vector<Settled>{{{Kind::kAnswers, 1}, 2}});
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(decode_settled(good.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(decode_settled(good + '\0').ok());
  EXPECT_FALSE(decode_settled(encode({{{Kind(3), 1}, 2}})).ok());
  EXPECT_FALSE(decode_settled(encode({{{Kind::kStream, 1}, 0}})).ok());
  EXPECT_TRUE(decode_settled(encode(std::vector<Settled>(kMostSettled, {{}, 1}))).ok());
  EXPECT_FALSE(decode_settled(encode(std::vector<Settled>(kMostSettled + 1, {{}, 1}))).ok());
}

}  // namespace
}  // namespace herring::wire
