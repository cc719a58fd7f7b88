#include "base/program_stack.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace herring {
namespace {

// Tests run one after the other in one process, so each must leave requests closed.
class ProgramStackTest : public testing::Test {
 protected:
  void SetUp() override {
    open_stack_requests();
    answer_stack_request("", "");
  }
  void TearDown() override { close_stack_requests(); }
};

TEST_F(ProgramStackTest, WhoeverAsksFindsTheAnswerLater) {
  auto asked = std::async(std::launch::async, wait_for_stack_request);
  ask_program_stack();
  EXPECT_NE(latest_program_stack().asked, 0);
  ASSERT_TRUE(asked.get());
  const Nanos before = monotonic_now();
  answer_stack_request("train.py:40 in load", "input");
  const ProgramStack stack = latest_program_stack();
  EXPECT_EQ(stack.text, "train.py:40 in load");
  EXPECT_EQ(stack.cause, "input");
  EXPECT_GE(stack.taken, before);
  EXPECT_EQ(stack.asked, 0);
  EXPECT_EQ(stack.say(stack.taken + kSecond), stack.text);
}

TEST_F(ProgramStackTest, AnAnswerThatDoesNotComeIsSaid) {
  answer_stack_request("train.py:40 in load", "input");
  ask_program_stack();
  const ProgramStack stack = latest_program_stack();
  EXPECT_FALSE(stack.overdue(stack.asked + kStackPatience));
  EXPECT_EQ(stack.say(stack.asked), "train.py:40 in load");
  EXPECT_TRUE(stack.overdue(stack.asked + kStackPatience + 1));
  EXPECT_EQ(stack.say(stack.asked + kStackPatience + 1),
            "its Python does not answer: a call holds the interpreter's lock");
}

TEST_F(ProgramStackTest, OneRequestWaitsAtATime) {
  ask_program_stack();
  const Nanos first = latest_program_stack().asked;
  ask_program_stack();
  EXPECT_EQ(latest_program_stack().asked, first);
  EXPECT_TRUE(wait_for_stack_request());
  auto second = std::async(std::launch::async, wait_for_stack_request);
  ask_program_stack();  // the first one is being answered
  answer_stack_request("a.py:1", "compute");
  ask_program_stack();
  EXPECT_TRUE(second.get());
}

TEST_F(ProgramStackTest, NobodyIsAskedWhenRequestsAreClosed) {
  auto asked = std::async(std::launch::async, wait_for_stack_request);
  close_stack_requests();
  EXPECT_FALSE(asked.get());
  ask_program_stack();
  EXPECT_EQ(latest_program_stack().asked, 0);
  EXPECT_FALSE(wait_for_stack_request());
}

TEST_F(ProgramStackTest, AForkedChildHasNoAnswerUntilItOpensRequests) {
  answer_stack_request("train.py:40 in load", "input");
  auto waits = std::async(std::launch::async, wait_for_stack_request);
  const pid_t child = ::fork();
  if (child == 0) {
    ask_program_stack();
    bool right = latest_program_stack().text.empty() && latest_program_stack().asked == 0;
    close_stack_requests();
    open_stack_requests();
    ask_program_stack();
    right = right && wait_for_stack_request();
    answer_stack_request("child.py:1", "compute");
    ::_exit(right && latest_program_stack().text == "child.py:1" ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close_stack_requests();
  EXPECT_FALSE(waits.get());
}

}  // namespace
}  // namespace herring
