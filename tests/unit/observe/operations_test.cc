// Counters by collective and size: what counts where, and that their number is bounded.
#include "observe/operations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "observe/monitor.h"
#include "observe/recorder.h"
#include "wire/collective.h"

namespace herring::observe {
namespace {

Entry ended(Kind kind, const std::string& name, uint64_t bytes, Nanos called, Nanos ready,
            Nanos done) {
  Entry entry;
  entry.kind = kind;
  entry.bytes = bytes;
  entry.stream = 4;
  entry.at[static_cast<size_t>(Moment::kCalled)] = called;
  entry.at[static_cast<size_t>(Moment::kReady)] = ready;
  entry.at[static_cast<size_t>(Moment::kDone)] = done;
  entry.set_name(name);
  return entry;
}

std::string text_of(const OperationCounts& counts) {
  std::string text;
  for (const OperationCount& one : counts.all()) {
    text += concat(kCollectives[one.collective], " ", kMessageSizes[one.size], " ", one.ended, " ",
                   one.bytes, " ", one.time, "\n");
  }
  return text;
}

TEST(OperationCounts, CallsCountByCollectiveAndSize) {
  OperationCounts counts;
  counts.add(ended(Kind::kCall, "allreduce 'a b'", 4095, 10, 20, 50));
  counts.add(ended(Kind::kCall, "allreduce 'c'", 0, 10, 0, 50));
  counts.add(ended(Kind::kCall, "allreduce 'c'", 4096, 10, 20, 50));
  counts.add(ended(Kind::kCall, "broadcast 'x'", 1ull << 40, 10, 20, 50));
  counts.add(ended(Kind::kCall, "something 'new'", 1, 10, 20, 50));
  EXPECT_EQ(text_of(counts),
            "allreduce 0-4KB 2 4095 70\n"
            "allreduce 4-64KB 1 4096 30\n"
            "broadcast 256MB- 1 1099511627776 30\n"
            "other 0-4KB 1 1 30\n");
}

TEST(OperationCounts, BuffersCountAndTheRoundsOfTheirPlansDoNot) {
  OperationCounts counts;
  counts.add(ended(Kind::kBuffer, "net", 1 << 20, 0, 20, 50));
  counts.add(ended(Kind::kRound, "net", 1 << 22, 10, 20, 50));
  counts.add(ended(Kind::kSum, "net", 1 << 20, 10, 20, 50));
  Entry partial = ended(Kind::kRound, "series", 100, 10, 20, 50);
  partial.stream = 0;
  counts.add(partial);
  partial.at = {0, 0, 0, 0, 0, 50};  // this rank gave nothing
  counts.add(partial);
  EXPECT_EQ(text_of(counts), "allreduce 1-16MB 1 1048576 30\npartial_allreduce 0-4KB 1 100 30\n");
}

TEST(OperationCounts, HaveAllCollectives) {
  for (const char* const name : kCollectives) {
    const std::string_view text = name;
    EXPECT_EQ(text != "other" && text != "partial_allreduce", wire::collective_of(text).has_value())
        << name;
  }
  constexpr size_t kOwn = 2;
  EXPECT_EQ(kCollectives.size(), std::variant_size_v<wire::Collective> + kOwn);
}

TEST(OperationCounts, EntriesThatTheRingHasDroppedStayCounted) {
  Recorder recorder(2);
  for (int i = 0; i < 100; ++i) {
    Entry entry = ended(Kind::kCall, "allreduce 'x'", 8, 10, 20, 0);
    const uint64_t id = recorder.begin(entry);
    recorder.end(id, 25, i % 4 == 0 ? Code::kTimeout : Code::kOk);
  }
  const auto all = recorder.operations();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].ended, 75u);
  EXPECT_EQ(all[0].bytes, 600u);
  EXPECT_EQ(all[0].time, 375);
}

TEST(OperationCounts, OfAllRanksAddUpAndStayAfterTheyHaveLeft) {
  Roster roster;
  roster.job = "test";
  roster.ranks.resize(2);
  Monitor monitor(roster, {}, 0);
  Report report;
  report.operations = {{0, 2, 3, 300, kSecond}, {200, 0, 1, 1, 1}, {0, 200, 1, 1, 1}};
  monitor.report({false, 0}, report, 1);
  report.operations = {{0, 2, 1, 100, 2 * kSecond}, {1, 0, 1, 1, kEndless - 1}};
  monitor.report({false, 1}, report, 1);
  monitor.gone({false, 1}, true);
  const Picture picture = monitor.picture(kSecond);
  ASSERT_EQ(picture.operations.size(), 2u);
  EXPECT_STREQ(picture.operations[0].collective, "allreduce");
  EXPECT_STREQ(picture.operations[0].size, "64KB-1MB");
  EXPECT_EQ(picture.operations[0].ended, 4u);
  EXPECT_EQ(picture.operations[0].seconds, 3);
  EXPECT_NE(as_metrics(picture).find("herring_operation_bytes_total{job=\"test\",collective=\"allre"
                                     "duce\",message_size=\"64KB-1MB\"} 400\n"),
            std::string::npos);
  EXPECT_NE(as_json(picture).find(R"({"collective":"allreduce","message_size":"64KB-1MB",)"
                                  R"("ended":4,"bytes":400,"seconds":3})"),
            std::string::npos);
}

}  // namespace
}  // namespace herring::observe
