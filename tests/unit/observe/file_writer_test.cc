#include "observe/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

namespace herring::observe {
namespace {

class FileWriterTest : public testing::Test {
 protected:
  FileWriterTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "herring-XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~FileWriterTest() override { std::filesystem::remove_all(folder); }

  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void nothing(const Status& why) { FAIL() << why.message(); }

  std::string folder;
};

TEST_F(FileWriterTest, WritesInOrderAndReplacesTheFile) {
  const std::string path = folder + "/file";
  std::ofstream(path) << "something longer than the new text";
  auto writer = FileWriter::open(path, nothing);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->write("one "));
  EXPECT_TRUE((*writer)->write("two"));
  EXPECT_TRUE((*writer)->finish());
  EXPECT_EQ(read(path), "one two");
  EXPECT_EQ((*writer)->path(), path);
  EXPECT_FALSE((*writer)->broken());
}

TEST_F(FileWriterTest, NamesWhatCannotBeOpened) {
  for (const std::string& path : {folder + "/none/file", folder}) {
    const auto writer = FileWriter::open(path, nothing);
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.status().code(), Code::kConfiguration);
    EXPECT_NE(writer.status().message().find("cannot write " + path), std::string::npos);
  }
}

TEST_F(FileWriterTest, DoesNotWaitForTheReaderOfAPipe) {
  const std::string path = folder + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto writer = FileWriter::open(path, nothing);
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find("nobody reads"), std::string::npos);
}

TEST_F(FileWriterTest, DoesNotWaitLongForASlowDisk) {
  const std::string path = folder + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  {
    auto writer = FileWriter::open(path, [](const Status&) {});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->write(std::string(1 << 20, 'x')));
    EXPECT_FALSE((*writer)->write(std::string(FileWriter::kMostQueued, 'x')));
    EXPECT_FALSE((*writer)->finish());
    EXPECT_FALSE((*writer)->broken());
  }
  close(reader);  // ends the thread, which gets an error
}

TEST_F(FileWriterTest, TellsOnceThatTheDiskIsFull) {
  std::atomic<int> told = 0;
  auto writer = FileWriter::open("/dev/full", [&told](const Status& why) {
    EXPECT_NE(why.message().find("/dev/full: No space left"), std::string::npos);
    ++told;
  });
  ASSERT_TRUE(writer.ok());
  (*writer)->write("text");
  const Nanos deadline = monotonic_now() + 10 * kSecond;
  while (!(*writer)->broken() && monotonic_now() < deadline) usleep(1000);
  EXPECT_TRUE((*writer)->broken());
  EXPECT_FALSE((*writer)->write("more"));
  EXPECT_TRUE((*writer)->finish());
  EXPECT_EQ(told, 1);
}

TEST_F(FileWriterTest, KeepsTheTextsOfThreadsThatWriteAtOnce) {
  constexpr int kThreads = 4, kTexts = 10'000;
  const std::string path = folder + "/file";
  auto writer = FileWriter::open(path, nothing);
  ASSERT_TRUE(writer.ok());
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kTexts; ++i) refused += !(*writer)->write(concat(thread, " ", i, "\n"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  const Nanos deadline = monotonic_now() + 60 * kSecond;  // a busy disk takes more than kPatience
  while (!(*writer)->finish()) ASSERT_LT(monotonic_now(), deadline);
  std::vector<int> next(kThreads);
  std::istringstream lines(read(path));
  for (int thread = 0, number = 0; lines >> thread >> number;) {
    ASSERT_LT(static_cast<size_t>(thread), next.size());
    ASSERT_EQ(number, next[thread]++);
  }
  EXPECT_EQ(next, std::vector<int>(kThreads, kTexts));
}

TEST_F(FileWriterTest, OneFileHasOneWriter) {
  const std::string path = folder + "/file";
  auto writer = FileWriter::open(path, nothing);
  ASSERT_TRUE(writer.ok());
  (*writer)->write("kept");
  const auto other = FileWriter::open(path, nothing);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("another process writes it"), std::string::npos);
  ASSERT_TRUE((*writer)->finish());
  EXPECT_EQ(read(path), "kept");
  EXPECT_FALSE((*writer)->write("more"));
  EXPECT_TRUE((*writer)->finish());
  // Who has finished gives the file back at once, though the writer is still there.
  EXPECT_TRUE(FileWriter::open(path, nothing).ok());
}

}  // namespace
}  // namespace herring::observe
