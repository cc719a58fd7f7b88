// Tests the collection of a flight record alone: members that answer, leave, die or say nothing.
#include "control/recording.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <new>

#include "control/messages.h"
#include "members.h"
#include "tests/unit/text.h"

namespace herring::control {
namespace {

using testing::Members;
using testing::read_file;
using testing::Sent;
using testing::TemporaryFolder;
using wire::FrameType;

observe::ProcessRecord record_of(const std::string& failure = {}, size_t entries = 1) {
  observe::ProcessRecord record;
  record.failure = failure;
  for (size_t i = 0; i < entries; ++i) {
    observe::Entry& entry = record.entries.emplace_back();
    entry.id = i + 1;
    entry.ended = true;
    entry.set_name("x");
  }
  return record;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class RecordingTest : public ::testing::Test {
 protected:
  explicit RecordingTest(uint32_t ranks = 3, uint32_t servers = 1)
      : members(ranks, servers), path(folder / "job.flight.json") {
    for (const WorkerInfo& worker : members.cluster.workers) {
      roster.ranks.push_back({worker.host, worker.node, worker.pid});
    }
    for (uint32_t i = 0; i < servers; ++i) roster.servers.push_back({"server", true, 0, 200, 1});
    picture.roster = &roster;
    picture.ranks.resize(ranks);
    picture.servers.resize(servers);
    make(path);
  }
  ~RecordingTest() override {
    written();
    signal(SIGTERM, SIG_DFL);
  }

  void make(const std::string& where) {
    recording = std::make_unique<Recording>(members.loop, members.peers, where, 0.0,
                                            [this] { return picture; });
  }
  // Waits until the thread of the file has ended, and returns the file.
  std::string written() {
    for (int i = 0; i < 10; ++i) recording->flush();  // each takes 2 s at most
    return read_file(path);
  }
  void all_answer() {
    for (const auto& peer : members.peers) {
      if (peer->is_member()) recording->add(*peer, record_of());
    }
  }
  void lose(Peer& peer) {
    peer.gone = true;
    recording->gone(peer);
  }
  // Returns how many members were asked since the last call.
  size_t asked() {
    size_t asked = 0;
    for (const auto& peer : members.peers) {
      for (const Sent& one : members.sent_to(*peer)) {
        EXPECT_EQ(one.type, FrameType::kRecord);
        EXPECT_EQ(one.flags, 0);
        EXPECT_TRUE(one.payload.empty());
        ++asked;
      }
    }
    return asked;
  }

  TemporaryFolder folder;
  Members members;
  const std::string path;
  observe::Roster roster;
  observe::Picture picture;
  std::unique_ptr<Recording> recording;
};

TEST_F(RecordingTest, IsWrittenAMomentAfterAllHaveAnswered) {
  recording->begin("a reason");
  EXPECT_TRUE(recording->collects());
  EXPECT_EQ(asked(), 4u);
  all_answer();
  members.loop.advance(90 * kMillisecond);  // others may fail for the same reason
  EXPECT_TRUE(recording->collects());
  members.loop.advance(20 * kMillisecond);
  EXPECT_FALSE(recording->collects());
  const std::string text = written();
  EXPECT_TRUE(contains(text, "\"why\":\"a reason\"")) << text;
  EXPECT_EQ(count(text, "\"kind\":\"rank\""), 3u);
  EXPECT_EQ(count(text, "\"kind\":\"server\""), 1u);
  EXPECT_TRUE(contains(text, "\"silent\":[]")) << text;
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST_F(RecordingTest, IsWrittenAtOnceWhenAllWorkersHaveSaidWhyTheyFail) {
  lose(members.rank(2));
  recording->begin("rank 2 is lost");
  recording->add(members.rank(0), record_of("rank 2 is lost"));
  recording->add(members.rank(1), record_of());
  recording->add(members.server(0), record_of());
  EXPECT_TRUE(recording->collects()) << "rank 1 may fail, too";
  recording->add(members.rank(1), record_of("rank 2 is lost"));
  EXPECT_FALSE(recording->collects());
  EXPECT_EQ(count(written(), "\"failure\":\"rank 2 is lost\""), 2u);
}

TEST_F(RecordingTest, WaitsASecondForThoseWhoSayNothing) {
  recording->begin("a reason");
  recording->add(members.rank(2), record_of());
  recording->add(members.rank(0), record_of());
  members.loop.advance(990 * kMillisecond);
  EXPECT_TRUE(recording->collects());
  members.loop.advance(20 * kMillisecond);
  EXPECT_FALSE(recording->collects());
  const std::string text = written();
  EXPECT_TRUE(contains(text, "\"silent\":[\"rank 1: starting\",\"server 0: starting\"]")) << text;
  EXPECT_LT(text.find("\"index\":0"), text.find("\"index\":2")) << "ranks are in their order";
  recording->add(members.rank(1), record_of());  // too late
  EXPECT_FALSE(contains(written(), "\"index\":1"));
}

TEST_F(RecordingTest, WhoDiesInMidRecordIsNotWaitedFor) {
  recording->begin("a reason");
  recording->add(members.rank(0), record_of());
  recording->add(members.rank(1), record_of());
  lose(members.rank(1));  // after its answer, which counts
  members.loop.advance(500 * kMillisecond);
  EXPECT_TRUE(recording->collects());
  lose(members.rank(2));
  recording->add(members.server(0), record_of());
  members.loop.advance(110 * kMillisecond);
  EXPECT_FALSE(recording->collects());
  const std::string text = written();
  EXPECT_EQ(count(text, "\"kind\":\"rank\""), 2u) << text;
  EXPECT_TRUE(contains(text, "\"silent\":[\"rank 2: ")) << text;
}

TEST_F(RecordingTest, AJobThatAllHaveLeftHasAnEmptyRecordAtOnce) {
  recording->begin("a reason");
  for (const auto& peer : members.peers) lose(*peer);
  members.loop.advance(110 * kMillisecond);
  EXPECT_FALSE(recording->collects());
  EXPECT_TRUE(contains(written(), "\"processes\":[]"));
}

TEST_F(RecordingTest, WhoIsGoneBeforeIsNotAsked) {
  members.rank(1).gone = true;
  recording->gone(members.rank(1));  // nothing is collected yet
  recording->begin("rank 1 is lost");
  EXPECT_EQ(asked(), 3u);
  all_answer();
  members.loop.advance(110 * kMillisecond);
  EXPECT_FALSE(recording->collects());
  EXPECT_EQ(count(written(), "\"kind\":\"rank\""), 2u);
}

// A member that has failed sends its record twice: by itself, and because it is asked.
TEST_F(RecordingTest, OfTwoAnswersTheOneWithAReasonCounts) {
  recording->begin("rank 0 failed");
  recording->add(members.rank(0), record_of("first"));
  recording->add(members.rank(0), record_of());
  recording->add(members.rank(0), record_of("second"));
  recording->add(members.rank(1), record_of());
  recording->add(members.rank(1), record_of("late"));
  recording->add(members.rank(2), record_of());
  EXPECT_TRUE(recording->collects()) << "the server has not answered";
  members.loop.advance(500 * kMillisecond);
  EXPECT_TRUE(recording->collects());
  recording->add(members.server(0), record_of());
  members.loop.advance(110 * kMillisecond);
  const std::string text = written();
  EXPECT_EQ(count(text, "\"kind\":\"rank\""), 3u) << text;
  EXPECT_TRUE(contains(text, "\"failure\":\"first\"")) << text;
  EXPECT_FALSE(contains(text, "second")) << text;
  EXPECT_TRUE(contains(text, "\"failure\":\"late\"")) << text;
}

TEST_F(RecordingTest, WhatIsAskedTwiceIsCollectedOnce) {
  recording->begin("the first");
  asked();
  recording->begin("meanwhile");
  EXPECT_EQ(asked(), 0u);
  all_answer();
  members.loop.advance(110 * kMillisecond);
  EXPECT_TRUE(contains(written(), "\"why\":\"the first\""));
  members.loop.advance(4 * kSecond);
  recording->begin("a moment later");
  EXPECT_FALSE(recording->collects());
  EXPECT_EQ(asked(), 0u);
  members.loop.advance(kSecond);
  recording->begin("the second");
  EXPECT_EQ(asked(), 4u);
  all_answer();
  members.loop.advance(110 * kMillisecond);
  const std::string text = written();
  EXPECT_TRUE(contains(text, "\"why\":\"the second\"")) << text;
  EXPECT_EQ(count(text, "\"kind\":\"rank\""), 3u) << "and nothing of the first";
}

TEST_F(RecordingTest, WhatMembersDidBeforeTheyLeftCounts) {
  picture.ranks[1].state = observe::State::kWaiting;
  picture.missing = {{"allreduce 'x'", kSecond, {2}}};
  recording->begin("a reason");
  all_answer();
  picture.ranks[1].state = observe::State::kLeft;
  picture.ranks[2].state = observe::State::kLost;
  picture.missing.clear();
  members.loop.advance(110 * kMillisecond);
  const std::string text = written();
  EXPECT_TRUE(contains(text, "\"state\":\"waiting\"")) << text;
  EXPECT_FALSE(contains(text, "\"state\":\"left\"")) << text;
  EXPECT_TRUE(contains(text, "\"state\":\"lost\"")) << text;
  EXPECT_TRUE(contains(text, "\"what\":\"allreduce 'x'\"")) << text;
}

TEST_F(RecordingTest, ALongRecordIsCutToItsLatestEntriesHoweverItComes) {
  constexpr size_t kMost = (1 << 17) / 4;  // of one of four members
  for (const bool twice : {false, true}) {
    recording->begin("a reason");
    if (twice) recording->add(members.rank(1), record_of());
    recording->add(members.rank(1), record_of("it failed", kMost + 10));
    recording->finish();
    const std::string text = written();
    EXPECT_EQ(count(text, "{\"id\":"), kMost);
    EXPECT_FALSE(contains(text, "{\"id\":10,"));
    EXPECT_TRUE(contains(text, concat("{\"id\":", kMost + 10, ",")));
    members.loop.advance(6 * kSecond);
  }
}

TEST_F(RecordingTest, TheEndOfTheJobDoesNotWait) {
  recording->finish();  // nothing is collected
  EXPECT_FALSE(recording->ever());
  recording->begin("a reason");
  recording->add(members.rank(1), record_of());
  recording->finish();
  EXPECT_TRUE(recording->ever());
  EXPECT_EQ(count(written(), "\"kind\":\"rank\""), 1u);
  members.loop.advance(10 * kSecond);  // its timers are gone
  EXPECT_EQ(count(written(), "\"kind\":\"rank\""), 1u);
}

TEST_F(RecordingTest, AFullDiskIsToldAndKeepsTheEarlierRecord) {
  recording->begin("the first");
  recording->finish();
  const std::string before = written();
  ASSERT_TRUE(contains(before, "the first"));
  ASSERT_EQ(symlink("/dev/full", (path + ".part").c_str()), 0);
  members.loop.advance(6 * kSecond);
  ::testing::internal::CaptureStderr();
  recording->begin("the second");
  recording->finish();
  EXPECT_EQ(written(), before);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "warning: there is no flight record: cannot write " + path +
                                 ": No space left on device (HERRING_FLIGHT_FOLDER)")) << told;
  EXPECT_NE(access((path + ".part").c_str(), F_OK), 0) << "nothing is left behind";
}

TEST_F(RecordingTest, AFolderThatIsGoneIsToldAndALaterRecordIsTried) {
  make(folder / "none/job.flight.json");
  ::testing::internal::CaptureStderr();
  recording->begin("a reason");
  recording->finish();
  written();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(told, "there is no flight record: cannot write"), 1u) << told;
  std::filesystem::create_directory(folder / "none");
  members.loop.advance(6 * kSecond);
  recording->begin("another");
  recording->finish();
  written();
  EXPECT_TRUE(contains(read_file(folder / "none/job.flight.json"), "another"));
}

TEST_F(RecordingTest, WithoutMemoryNothingIsBegun) {
  bool short_of_memory = true;
  recording = std::make_unique<Recording>(members.loop, members.peers, path, 0.0, [&] {
    if (short_of_memory) throw std::bad_alloc();
    return picture;
  });
  EXPECT_THROW(recording->begin("the first"), std::bad_alloc);
  EXPECT_FALSE(recording->collects());
  recording->finish();  // which the end of the job calls
  EXPECT_EQ(written(), "");
  short_of_memory = false;
  recording->begin("the second");
  EXPECT_EQ(asked(), 4u);
  all_answer();
  members.loop.advance(110 * kMillisecond);
  EXPECT_TRUE(contains(written(), "the second"));
}

// A launcher sends SIGTERM to all processes as soon as one has failed.
TEST_F(RecordingTest, HoldsTerminationUntilTheFileIsThere) {
  const auto by_default = [] {
    struct sigaction found {};
    sigaction(SIGTERM, nullptr, &found);
    return found.sa_handler == SIG_DFL;
  };
  EXPECT_TRUE(by_default());
  recording->begin("a reason");
  EXPECT_FALSE(by_default());
  recording->finish();
  written();
  EXPECT_TRUE(by_default());
}

// ---- the folder ----

class Temporary {
 public:
  explicit Temporary(const std::string& value) : before_(std::getenv("TMPDIR")) {
    if (before_ != nullptr) kept_ = before_;
    setenv("TMPDIR", value.c_str(), 1);
  }
  ~Temporary() { before_ != nullptr ? setenv("TMPDIR", kept_.c_str(), 1) : unsetenv("TMPDIR"); }

 private:
  const char* const before_;
  std::string kept_;
};

TEST(RecordFolder, IsTheSettingAndIsMadeIfItCanBe) {
  TemporaryFolder folder;
  const auto made = record_folder(folder / "a/b");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(*made, folder / "a/b");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));
  std::ofstream(folder / "file") << "no folder";
  for (const std::string& wrong : {folder / "file", folder / "file/below"}) {
    const auto none = record_folder(wrong);
    ASSERT_FALSE(none.ok()) << wrong;
    EXPECT_EQ(none.status().code(), Code::kConfiguration);
    EXPECT_TRUE(contains(none.status().message(), "HERRING_FLIGHT_FOLDER=" + wrong + ": "))
        << none.status().message();
  }
}

TEST(RecordFolder, StaysWhereItIsIfTheProgramChangesItsDirectory) {
  TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto made = record_folder("a");
  std::filesystem::current_path(before);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(*made, std::filesystem::canonical(folder / "a"));
}

TEST(RecordFolder, OfTheSystemBelongsToTheUserAloneAndKeepsFewRecords) {
  TemporaryFolder folder;
  const Temporary temporary(folder.path());
  const std::string own = folder / concat("herring-", getuid());
  const auto made = record_folder("");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(*made, own);
  std::map<std::string, bool> stays;
  const auto now = std::filesystem::file_time_type::clock::now();
  for (int i = 0; i < 25; ++i) {
    const std::string path = concat(own, "/", i, ".flight.json");
    std::ofstream(path) << "{}";
    std::filesystem::last_write_time(path, now - std::chrono::hours(i));
    stays[path] = i < 19;
  }
  std::ofstream(own + "/other.json") << "{}";
  std::filesystem::last_write_time(own + "/other.json", now - std::chrono::hours(100));
  stays[own + "/other.json"] = true;
  ASSERT_TRUE(record_folder("").ok());
  for (const auto& [path, stay] : stays) EXPECT_EQ(std::filesystem::exists(path), stay) << path;
  chmod(own.c_str(), 0755);
  EXPECT_TRUE(contains(record_folder("").status().message(), "belongs to this user alone"));
  std::filesystem::remove_all(own);
  ASSERT_EQ(symlink(folder.path().c_str(), own.c_str()), 0);
  EXPECT_TRUE(contains(record_folder("").status().message(), own + " is not a folder that"));
  std::filesystem::remove(own);
  const Temporary gone(folder / "none");
  EXPECT_TRUE(contains(record_folder("").status().message(), "cannot make the folder"));
}

}  // namespace
}  // namespace herring::control
