// Tests the watch of a running job alone: what it asks of members, tells them, and writes.
#include "control/watch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

#include "base/signal_handlers.h"
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

class WatchTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kRanks = 2;

  WatchTest() : members(kRanks, 1) {
    options.job = "job";
    options.flight_folder = folder.path();
  }
  ~WatchTest() override {
    settle();
    signal(SIGTERM, SIG_DFL);
  }

  Watch& watch() {
    if (!watch_) watch_ = std::make_unique<Watch>(members.loop, members.peers, members.cluster,
                                                  options);
    return *watch_;
  }
  std::string path() const { return folder / concat("job-", getpid(), ".flight.json"); }
  std::string settle() {
    for (int i = 0; watch_ && i < 10; ++i) watch_->finish();  // each waits 2 s at most
    return read_file(path());
  }
  void clear() {
    for (const auto& peer : members.peers) members.sent_to(*peer);
  }
  Status fail(const Peer& peer, const std::string& why) {
    observe::ProcessRecord record;
    record.failure = why;
    return watch().record(peer, true, observe::encode(record));
  }
  Status last_entries(const Peer& peer, size_t entries = 0) {
    observe::ProcessRecord record;
    members.loop.advance(kMillisecond);
    for (size_t i = 0; i < entries; ++i) {
      observe::Entry& entry = record.entries.emplace_back();
      entry.ended = true;
      entry.set_name("an entry");
      entry.at = {members.loop.now() - 2, members.loop.now() - 1, 0, 0, 0, members.loop.now()};
    }
    return watch().timeline(peer, true, observe::encode(record));
  }
  void leave(Peer& peer, bool left) {
    peer.gone = true;
    watch().gone(peer, left);
  }
  // Says what a rank does; the server says who is missing.
  void report(uint32_t rank, const std::string& where, Nanos age) {
    observe::Report one;
    one.sent = members.loop.now();
    one.offset_error = 1;
    one.where = where;
    one.age = age;
    EXPECT_TRUE(watch().report(members.rank(rank), observe::encode(one)).ok());
  }

  TemporaryFolder folder;
  Members members;
  Watch::Options options;
  std::unique_ptr<Watch> watch_;
};

// ---- flight records ----

TEST_F(WatchTest, TellsAllMembersWhereARecordWouldBe) {
  watch();
  for (const auto& peer : members.peers) {
    const std::vector<Sent> sent = members.sent_to(*peer);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].type, FrameType::kRecord);
    EXPECT_EQ(sent[0].flags, kFlagPlace);
    EXPECT_TRUE(sent[0].payload.ends_with(":" + path())) << sent[0].payload;
  }
}

TEST_F(WatchTest, AFailureOfAMemberBeginsARecordThatNamesIt) {
  watch();
  clear();
  ASSERT_TRUE(fail(members.rank(1), "out of memory").ok());
  EXPECT_TRUE(watch().collects());
  EXPECT_EQ(members.sent_to(members.server(0)).size(), 1u);
  ASSERT_TRUE(fail(members.rank(0), "rank 1 is gone").ok());
  const std::string text = settle();
  EXPECT_TRUE(contains(text, "\"why\":\"rank 1 (host): out of memory\"")) << text;
  EXPECT_TRUE(contains(text, "\"failure\":\"rank 1 is gone\"")) << text;
}

TEST_F(WatchTest, ADeathBeginsARecordAndAGoodbyeDoesNot) {
  leave(members.rank(0), true);
  EXPECT_FALSE(watch().collects());
  leave(members.rank(1), false);
  EXPECT_TRUE(watch().collects());
  EXPECT_TRUE(contains(settle(), "\"why\":\"rank 1 (host) is lost\""));
}

TEST_F(WatchTest, ExpectedFailuresBeginNoRecordAndTheirErrorsNameNoFile) {
  watch();
  clear();
  watch().expect_failures();
  watch().expect_failures();
  for (const auto& peer : members.peers) {
    const std::vector<Sent> sent = members.sent_to(*peer);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].flags, kFlagPlace);
    EXPECT_TRUE(sent[0].payload.empty());
  }
  ASSERT_TRUE(fail(members.rank(1), "the job was aborted").ok());
  EXPECT_FALSE(watch().collects());
  EXPECT_TRUE(watch().write_record("asked").ok()) << "whoever asks gets one";
  EXPECT_TRUE(watch().collects());
}

TEST_F(WatchTest, ARecordThatWasBegunKeepsItsPlace) {
  ASSERT_TRUE(fail(members.rank(1), "why").ok());
  clear();
  watch().expect_failures();
  EXPECT_TRUE(members.sent_to(members.rank(0)).empty());
  EXPECT_TRUE(contains(settle(), "\"why\":\"rank 1 (host): why\""));
}

TEST_F(WatchTest, WhoeverAsksTwiceIsToldTheSameFile) {
  for (int i = 0; i < 2; ++i) {
    const auto written = watch().write_record("asked");
    ASSERT_TRUE(written.ok());
    EXPECT_EQ(*written, path());
  }
  EXPECT_TRUE(contains(settle(), "\"why\":\"asked\""));
}

TEST_F(WatchTest, WithoutAFolderTheJobGoesOnWithoutRecords) {
  std::ofstream(folder / "file") << "no folder";
  options.flight_folder = folder / "file";
  ::testing::internal::CaptureStderr();
  watch();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "there will be no flight record, and the job goes on: "
                             "HERRING_FLIGHT_FOLDER=" + options.flight_folder)) << told;
  EXPECT_TRUE(members.sent_to(members.rank(0)).empty());
  EXPECT_TRUE(fail(members.rank(1), "why").ok());
  leave(members.rank(0), false);
  EXPECT_FALSE(watch().collects());
  EXPECT_TRUE(contains(watch().write_record("asked").status().message(), "HERRING_FLIGHT_FOLDER"));
}

TEST_F(WatchTest, RecordsMayBeOff) {
  options.flight_folder = "off";
  watch();
  EXPECT_TRUE(members.sent_to(members.rank(0)).empty());
  EXPECT_EQ(watch().write_record("asked").status().code(), Code::kConfiguration);
  watch().finish();
}

TEST_F(WatchTest, NonsenseIsAnErrorOfItsSender) {
  for (const std::string& nonsense : {std::string(), std::string(100, '\xff')}) {
    EXPECT_FALSE(watch().report(members.rank(0), nonsense).ok());
    EXPECT_FALSE(watch().record(members.rank(0), true, nonsense).ok());
    EXPECT_FALSE(watch().timeline(members.rank(0), true, nonsense).ok());
  }
  EXPECT_FALSE(watch().collects());
}

// ---- timelines ----

TEST_F(WatchTest, ATimelineEndsWhenAllHaveSentTheirLastEntries) {
  options.timeline = folder / "trace.json";
  watch();
  for (const auto& peer : members.peers) {
    const auto sent = members.sent_to(*peer, FrameType::kTimeline);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].flags, kFlagWanted);
  }
  const Status twice = watch().begin_timeline(folder / "other.json");
  EXPECT_EQ(twice.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(twice.message(), options.timeline)) << twice.message();
  int ends = 0;
  std::shared_ptr<observe::FileWriter> file;
  const auto ended = [&](std::shared_ptr<observe::FileWriter> of) {
    ++ends;
    file = std::move(of);
  };
  watch().end_timeline(ended);
  watch().end_timeline(ended);
  for (const auto& peer : members.peers) {
    const auto sent = members.sent_to(*peer, FrameType::kTimeline);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].flags, 0);
  }
  EXPECT_TRUE(last_entries(members.rank(0), 3).ok());
  EXPECT_TRUE(last_entries(members.rank(0)).ok());
  EXPECT_TRUE(last_entries(members.rank(1)).ok());
  EXPECT_EQ(ends, 0);
  EXPECT_TRUE(last_entries(members.server(0)).ok());
  EXPECT_EQ(ends, 2);
  ASSERT_NE(file, nullptr);
  while (!file->finish()) {
  }
  EXPECT_TRUE(contains(read_file(options.timeline), "an entry"));
  EXPECT_TRUE(last_entries(members.rank(1)).ok()) << "what comes late is dropped";
  watch().end_timeline(ended);
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(file, nullptr) << "there is none any more";
}

TEST_F(WatchTest, ATimelineDoesNotWaitForThoseWhoAreGoneOrSayNothing) {
  int ends = 0;
  const auto ended = [&](const std::shared_ptr<observe::FileWriter>& file) {
    ++ends;
    while (!file->finish()) {
    }
  };
  ASSERT_TRUE(watch().begin_timeline(folder / "trace.json").ok());
  watch().end_timeline(ended);
  EXPECT_TRUE(last_entries(members.rank(0)).ok());
  EXPECT_TRUE(last_entries(members.server(0)).ok());
  leave(members.rank(1), false);
  EXPECT_EQ(ends, 1);
  ASSERT_TRUE(watch().begin_timeline(folder / "trace.json").ok());
  watch().end_timeline(ended);
  members.loop.advance(490 * kMillisecond);
  EXPECT_EQ(ends, 1);
  members.loop.advance(20 * kMillisecond);
  EXPECT_EQ(ends, 2);
  // The deadline of an earlier timeline does not end a later one.
  ASSERT_TRUE(watch().begin_timeline(folder / "trace.json").ok());
  watch().end_timeline(ended);
  EXPECT_TRUE(last_entries(members.rank(0)).ok());
  EXPECT_TRUE(last_entries(members.server(0)).ok());
  EXPECT_EQ(ends, 3);
  ASSERT_TRUE(watch().begin_timeline(folder / "trace.json").ok());
  members.loop.advance(kSecond);
  EXPECT_FALSE(watch().begin_timeline(folder / "trace.json").ok()) << "it is still written";
}

TEST_F(WatchTest, ATimelineThatCannotBeWrittenIsToldAndTheJobGoesOn) {
  options.timeline = folder / "none/trace.json";
  ::testing::internal::CaptureStderr();
  watch();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(told, "there is no timeline (HERRING_TIMELINE), and the job goes on: cannot "
                             "write " + options.timeline)) << told;
  EXPECT_TRUE(members.sent_to(members.rank(0), FrameType::kTimeline).empty());
}

TEST_F(WatchTest, AfterAFullDiskAnotherTimelineMayBegin) {
  ASSERT_TRUE(watch().begin_timeline("/dev/full").ok());
  const Nanos deadline = monotonic_now() + 600 * kSecond;
  Status begun;
  while (!(begun = watch().begin_timeline(folder / "trace.json")).ok()) {
    ASSERT_LT(monotonic_now(), deadline) << begun.message();
    EXPECT_TRUE(contains(begun.message(), "/dev/full"));
    usleep(1000);
  }
  watch().finish();
  EXPECT_TRUE(contains(read_file(folder / "trace.json"), "\"name\":\"herring\""));
}

// ---- what members are told ----

TEST_F(WatchTest, MembersHearOfRanksThatHoldOthersUpUntilThatIsOver) {
  report(0, "allreduce 'x'", 5 * kSecond);
  report(1, "", 5 * kSecond);
  members.loop.advance(600 * kMillisecond);
  auto sent = members.sent_to(members.rank(0), FrameType::kRankTexts);
  ASSERT_FALSE(sent.empty());
  const auto texts = observe::decode_rank_texts(sent.back().payload);
  ASSERT_TRUE(texts.ok());
  ASSERT_EQ(texts->size(), 1u);
  EXPECT_EQ((*texts)[0].rank, 1u);
  EXPECT_TRUE(contains((*texts)[0].text, "has been computing for ")) << (*texts)[0].text;
  EXPECT_FALSE(members.sent_to(members.server(0), FrameType::kRankTexts).empty());
  report(0, "", 0);
  report(1, "", 0);
  members.loop.advance(600 * kMillisecond);
  sent = members.sent_to(members.rank(0), FrameType::kRankTexts);
  ASSERT_EQ(sent.size(), 1u) << "that it is over, once";
  EXPECT_TRUE(observe::decode_rank_texts(sent[0].payload)->empty());
}

TEST_F(WatchTest, SIGUSR1WritesTheStatusToTheLogOfAJobThatAnswersIt) {
  sigset_t signals, before;  // other tests here block it
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &signals, &before);
  signal(SIGUSR1, SIG_DFL);
  take_status_signal();
  std::vector<std::unique_ptr<Watch>> all;  // they must live as long as the loop
  for (const bool answers : {false, true}) {
    options.on_signal = answers;
    all.push_back(std::move(watch_));
    watch();
    raise(SIGUSR1);
    ::testing::internal::CaptureStderr();
    members.loop.advance(600 * kMillisecond);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(contains(told, "status (SIGUSR1): "), answers) << told;
    ::testing::internal::CaptureStderr();
    members.loop.advance(600 * kMillisecond);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "it is told once";
  }
  give_back_status_signal();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// ---- deadlocks ----

TEST_F(WatchTest, TellsOfADeadlockOnce) {
  std::vector<std::string> told;
  options.deadlocked = [&told](const std::string& who) { told.push_back(who); };
  watch();
  const Nanos began = members.loop.now();
  const auto stand = [&](Nanos upto) {
    while (members.loop.now() < upto) {
      observe::Report one;
      one.sent = members.loop.now();
      one.offset_error = 1;
      one.where = "waits in barrier 'x'";
      one.age = one.sent - began;
      one.still = {began, one.sent};
      for (const auto& peer : members.peers) {
        ASSERT_TRUE(watch().report(*peer, observe::encode(one)).ok());
      }
      members.loop.advance(kSecond / 4);
    }
  };
  stand(began + 9 * kSecond);
  EXPECT_TRUE(told.empty());
  stand(began + 15 * kSecond);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(contains(told[0], "ranks 0-1 wait in barrier 'x' (10 s)")) << told[0];
}

}  // namespace
}  // namespace herring::control
