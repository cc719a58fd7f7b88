#include "base/interrupt.h"

#include <gtest/gtest.h>

namespace herring {
namespace {

TEST(Interrupt, OnlyWhoIsInterruptibleIsAsked) {
  EXPECT_FALSE(interrupted());
  int asked = 0;
  bool answer = false;
  {
    const Interruptible call([&] {
      ++asked;
      return answer;
    });
    EXPECT_FALSE(interrupted());
    EXPECT_FALSE(interrupted());
    EXPECT_EQ(asked, 2);
    answer = true;
    EXPECT_TRUE(interrupted());
    answer = false;
    EXPECT_TRUE(interrupted()) << "it stays interrupted";
    EXPECT_EQ(asked, 3) << "and nobody is asked again";
  }
  EXPECT_FALSE(interrupted());
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace herring
