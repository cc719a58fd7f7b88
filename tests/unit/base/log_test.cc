#include "base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace herring {
namespace {

// Tests run one after the other in one process, so each must leave the log as it found it.
class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kInfo);
    set_log_identity("rank 3");
  }
  void TearDown() override {
    close_log_queue();
    flush_log_queue();
    set_log_level(LogLevel::kWarning);
    set_log_identity("");
  }
};

size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST_F(LogTest, ALineHasTimeProcessAndLevel) {
  testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "has waited ", 5, " s");
  log(LogLevel::kDebug, "too detailed");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(
      said, std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[herring rank 3\] warning: )"
                       R"(has waited 5 s\n)")))
      << said;
}

TEST_F(LogTest, OneCanWaitUntilTheReaderHasHandedLinesOn) {
  EXPECT_TRUE(wait_for_log_reader(0));
  open_log_queue();
  EXPECT_TRUE(wait_for_log_reader(0));
  log(LogLevel::kInfo, "one");
  EXPECT_FALSE(wait_for_log_reader(0));
  EXPECT_EQ(take_log_lines().size(), 1u);
  EXPECT_FALSE(wait_for_log_reader(kMillisecond)) << "the reader still has the line";
  std::future<std::vector<LogLine>> next = std::async(std::launch::async, take_log_lines);
  EXPECT_TRUE(wait_for_log_reader(30 * kSecond));
  close_log_queue();
  EXPECT_TRUE(next.get().empty());
}

TEST_F(LogTest, AQueueKeepsLinesInOrderForItsReader) {
  open_log_queue();
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "one");
  set_log_identity("rank 4");
  log(LogLevel::kError, "two");
  const std::vector<LogLine> lines = take_log_lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(lines[0].who, "rank 3");
  EXPECT_EQ(lines[0].level, LogLevel::kInfo);
  EXPECT_EQ(lines[1].who, "rank 4");
  EXPECT_LE(lines[0].time, lines[1].time);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(LogTest, AReaderWaitsForLinesAndForTheEnd) {
  open_log_queue();
  auto lines = std::async(std::launch::async, take_log_lines);
  log(LogLevel::kInfo, "one");
  EXPECT_EQ(lines.get().size(), 1u);
  auto end = std::async(std::launch::async, take_log_lines);
  close_log_queue();
  EXPECT_TRUE(end.get().empty());
}

TEST_F(LogTest, LinesThatNobodyTakesGoToStderr) {
  open_log_queue();
  testing::internal::CaptureStderr();
  for (size_t i = 0; i <= kMostLogLines; ++i) log(LogLevel::kInfo, "line ", i);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_in(said), kMostLogLines + 1);
  EXPECT_LT(said.find("line 0\n"), said.find("line 1000\n"));
}

TEST_F(LogTest, WhatIsLeftAtTheEndCanBeFlushed) {
  open_log_queue();
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "last words");
  close_log_queue();
  flush_log_queue();
  log(LogLevel::kInfo, "after the end");
  EXPECT_EQ(lines_in(testing::internal::GetCapturedStderr()), 2u);
}

// A process may fork while other threads log and a reader waits.
TEST_F(LogTest, AForkedChildLogsToStderrAndMayOpenAQueueOfItsOwn) {
  testing::internal::CaptureStderr();  // lines go to stderr whenever the reader is late
  open_log_queue();
  std::atomic<bool> stop{false};
  std::thread reader([] { while (!take_log_lines().empty()) {} });
  std::thread writer([&] { while (!stop) log(LogLevel::kInfo, "from the parent"); });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends the child if it waits forever for a lock
      ::close(STDERR_FILENO);
      log(LogLevel::kInfo, "from the child");
      open_log_queue();
      log(LogLevel::kInfo, "into the child's queue");
      const bool right = take_log_lines().size() == 1;
      close_log_queue();
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  writer.join();
  close_log_queue();
  reader.join();
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace herring
