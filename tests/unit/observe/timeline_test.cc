#include "observe/timeline.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

namespace herring::observe {
namespace {

constexpr Nanos kZero = 100 * kSecond;

Nanos ms(int64_t time) { return kZero + time * kMillisecond; }

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    roster.job = "a \"job\"";
    for (uint32_t i = 0; i < 2; ++i) roster.ranks.push_back({concat("host", i), i, 100 + i});
    roster.servers.push_back({"host9", true, ~0u, 200, 1});
  }

  static Entry entry(Kind kind, std::initializer_list<std::pair<Moment, Nanos>> moments) {
    Entry entry;
    entry.kind = kind;
    entry.ended = true;
    entry.stream = 2;  // the first one of plans, with one server
    entry.round = 7;
    entry.bytes = 1000;
    entry.set_name("model");
    for (const auto& [moment, time] : moments) entry.at[static_cast<size_t>(moment)] = time;
    return entry;
  }
  static ProcessRecord record(std::vector<Entry> entries, Nanos offset = 0, Nanos error = 0) {
    ProcessRecord record;
    record.offset = offset;
    record.offset_error = error;
    record.entries = std::move(entries);
    return record;
  }
  // Returns the slices and the names of rows, without what all of them have.
  std::string add(const Process& process, const ProcessRecord& record, Nanos now = ms(1000)) {
    std::string found;
    std::string rest = timeline.add(process, record, now);
    for (size_t at = 0; (at = rest.find("\n{", at)) != std::string::npos;) {
      const size_t end = std::min(rest.find("\n", at + 1), rest.size());
      const std::string line = rest.substr(at, end - at);
      at = end;
      if (line.find("\"ph\":\"X\"") != std::string::npos) {
        found += line.substr(line.find("\"tid\""));
      } else if (line.find("thread_name") != std::string::npos) {
        found += line.substr(line.find("\"args\""));
      }
    }
    return found;
  }
  static size_t count(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++count;
    return count;
  }

  Roster roster;
  Timeline timeline{roster, kZero};
};

TEST_F(TimelineTest, BeginsWithTheProcesses) {
  const std::string text = timeline.begin();
  EXPECT_EQ(text.substr(0, 3), "[\n{");
  EXPECT_NE(text.find("\"job\":\"a \\\"job\\\"\""), std::string::npos);
  EXPECT_NE(text.find("\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"rank 1 (host1)\"}"),
            std::string::npos);
  EXPECT_NE(text.find("\"pid\":1000,\"name\":\"process_name\""), std::string::npos);
  EXPECT_EQ(timeline.end(), "\n]\n");
}

TEST_F(TimelineTest, ComputeLastsFromResultsToTheNextData) {
  const auto round = [](Nanos called, Nanos ready, Nanos done) {
    return entry(Kind::kRound, {{Moment::kCalled, called}, {Moment::kReady, ready},
                                {Moment::kDone, done}});
  };
  const std::string text = add({false, 0}, record({round(ms(5), ms(10), ms(12)),
                                                   round(ms(18), ms(20), ms(23))}));
  EXPECT_NE(text.find("\"ts\":5000.0,\"dur\":5000.0,\"name\":\"compute\""), std::string::npos);
  EXPECT_NE(text.find("\"ts\":10000.0,\"dur\":2000.0,\"name\":\"results\""), std::string::npos);
  EXPECT_NE(text.find("\"ts\":12000.0,\"dur\":8000.0,\"name\":\"compute\""), std::string::npos);
  EXPECT_EQ(count(text, "model rounds"), 1u);
}

TEST_F(TimelineTest, BuffersPassTheirStages) {
  const std::string text = add(
      {false, 0}, record({entry(Kind::kBuffer, {{Moment::kReady, ms(1)}, {Moment::kReduced, ms(2)},
                                                {Moment::kPushed, ms(4)}, {Moment::kDone, ms(7)}})},
                         -kMillisecond / 2));
  EXPECT_NE(text.find("\"ts\":500.0,\"dur\":1000.0,\"name\":\"node stage\",\"args\":{\"round\":7,"
                      "\"bytes\":1000}"),
            std::string::npos);
  EXPECT_NE(text.find("\"ts\":1500.0,\"dur\":2000.0,\"name\":\"push\""), std::string::npos);
  EXPECT_NE(text.find("\"ts\":3500.0,\"dur\":3000.0,\"name\":\"pull\""), std::string::npos);
}

TEST_F(TimelineTest, ServersReceiveSumAndSend) {
  const std::string text = add(
      {true, 0}, record({entry(Kind::kSum, {{Moment::kCalled, ms(1)}, {Moment::kReady, ms(2)},
                                            {Moment::kSummed, ms(4)}, {Moment::kDone, ms(5)}})}));
  for (const char* name : {"\"receive\"", "\"sum\"", "\"send\"", "model buffer 0"}) {
    EXPECT_EQ(count(text, name), 1u) << name;
  }
}

TEST_F(TimelineTest, WhatOverlapsGetsARowOfItsOwn) {
  const auto call = [](const char* name, Nanos called, Nanos done) {
    Entry one = entry(Kind::kCall, {{Moment::kCalled, called}, {Moment::kReady, called},
                                    {Moment::kDone, done}});
    one.set_name(name);
    return one;
  };
  const std::string text = add({false, 1}, record({call("a", ms(1), ms(9)), call("b", ms(2), ms(3)),
                                                   call("c", ms(4), ms(5))}));
  EXPECT_EQ(count(text, "\"name\":\"calls\""), 1u);
  EXPECT_EQ(count(text, "\"name\":\"calls (2)\""), 1u);
  EXPECT_EQ(count(text, "\"tid\":1000001"), 4u);  // b and c, each with its pull
}

TEST_F(TimelineTest, WhatEndedBeforeIsLeftOutAndWhatRanIsCut) {
  const auto call = [](Nanos called, Nanos done) {
    return entry(Kind::kCall, {{Moment::kCalled, called}, {Moment::kDone, done}});
  };
  EXPECT_EQ(add({false, 0}, record({call(ms(-9), ms(-1))})), "");
  const std::string text = add({false, 0}, record({call(ms(-9), ms(2))}));
  EXPECT_NE(text.find("\"ts\":0.0,\"dur\":2000.0"), std::string::npos);
}

TEST_F(TimelineTest, WhatHasNotEndedLastsUntilNow) {
  Entry call = entry(Kind::kCall, {{Moment::kCalled, ms(1)}, {Moment::kReady, ms(2)}});
  call.ended = false;
  const std::string text = add({false, 0}, record({call}), ms(5));
  EXPECT_NE(text.find("\"ts\":1000.0,\"dur\":4000.0"), std::string::npos);
  EXPECT_NE(text.find("\"ended\":false"), std::string::npos);
  EXPECT_NE(text.find("\"name\":\"push\""), std::string::npos);
  EXPECT_EQ(text.find("\"name\":\"pull\""), std::string::npos);
}

TEST_F(TimelineTest, FailuresHaveTheirOutcome) {
  Entry call = entry(Kind::kCall, {{Moment::kCalled, ms(1)}, {Moment::kDone, ms(2)}});
  call.outcome = Code::kTimeout;
  EXPECT_EQ(count(add({false, 0}, record({call})), "\"outcome\":\""), 1u);
}

TEST_F(TimelineTest, StatesTheClocksAndWhatIsLost) {
  ProcessRecord first = record({}, 1500, 40000), second = record({}, 1600, 20000);
  second.lost = 3;
  EXPECT_NE(timeline.add({true, 0}, first, ms(1)).find("clock known to 40.0 us"),
            std::string::npos);
  EXPECT_EQ(timeline.add({true, 0}, second, ms(2)), "");
  EXPECT_EQ(timeline.lost(), 3u);
  const std::string end = timeline.end();
  EXPECT_NE(end.find("\"pid\":1000,\"name\":\"herring_clock\",\"args\":{\"offset_us\":1.6,"
                     "\"error_us\":40.0,\"lost\":3}"),
            std::string::npos);
}

}  // namespace
}  // namespace herring::observe
