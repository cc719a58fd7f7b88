#include "observe/record.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "observe/file_writer.h"
#include "tests/unit/observe/samples.h"

namespace herring::observe {
namespace {

TEST(ProcessRecord, SurvivesTheTravel) {
  const ProcessRecord sent = full_record();
  auto got = decode_process_record(encode(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(encode(*got), encode(sent));
  EXPECT_EQ(got->failure, sent.failure);
  ASSERT_EQ(got->entries.size(), 2u);
  EXPECT_EQ(got->entries[0].at, sent.entries[0].at);
  EXPECT_EQ(got->entries[0].title(), "net");
  EXPECT_EQ(got->entries[0].outcome, Code::kTimeout);
  EXPECT_FALSE(got->entries[1].ended);
}

TEST(ProcessRecord, EveryCutIsMalformed) {
  const std::string whole = encode(full_record());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_process_record(std::string_view(whole).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(decode_process_record(whole + '\0').ok());
}

TEST(ProcessRecord, ValuesThatCannotBeAreMalformed) {
  const auto refused = [](const auto& change) {
    ProcessRecord record = full_record();
    change(record);
    return !decode_process_record(encode(record)).ok();
  };
  EXPECT_FALSE(refused([](ProcessRecord&) {}));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.offset = kEndless; }));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.age = INT64_MIN; }));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.entries[0].at[2] = -1; }));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.entries[0].waited = kEndless; }));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.entries[1].kind = static_cast<Kind>(4); }));
  EXPECT_TRUE(refused([](ProcessRecord& r) { r.entries[1].outcome = static_cast<Code>(200); }));
}

TEST(ProcessRecord, TextsAreCutAndPrintable) {
  ProcessRecord record = full_record();
  record.failure = std::string(9000, 'f');
  record.where = "a\x1b[31mb";
  record.entries[0].set_name("n\nn");
  auto got = decode_process_record(encode(record));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->failure.size(), 4096u);
  EXPECT_EQ(got->where, "a [31mb");
  EXPECT_EQ(got->entries[0].title(), "n n");
}

TEST(ProcessRecord, TheLargestFitsAControlMessage) {
  ProcessRecord record;
  for (uint64_t id = 1; id <= 4096; ++id) {  // a whole ring
    record.entries.push_back(entry_of(id));
    record.entries.back().set_name(std::string(47, 'n'));
  }
  EXPECT_LT(encode(record).size(), 1u << 20);
  record.entries.resize(9000, entry_of(1));
  auto got = decode_process_record(encode(record));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->entries.size(), 8192u);
}

TEST(ProcessRecord, KeepsTheLatestEntriesAndThoseThatHaveNotEnded) {
  std::vector<Entry> entries;
  for (uint64_t id = 1; id <= 10; ++id) entries.push_back(entry_of(id, id != 2));
  keep_latest(entries, 3);
  std::vector<uint64_t> ids;
  for (const Entry& entry : entries) ids.push_back(entry.id);
  EXPECT_EQ(ids, (std::vector<uint64_t>{2, 9, 10}));
  keep_latest(entries, 100);
  EXPECT_EQ(entries.size(), 3u);
}

// ---- texts for people and machines ----

Picture empty(const Roster& roster) {
  Picture picture;
  picture.roster = &roster;
  picture.ranks.resize(roster.ranks.size());
  picture.servers.resize(roster.servers.size());
  return picture;
}

TEST(Render, AJobOfNobodyHasASoundStatus) {
  const Roster roster;
  const Picture picture = empty(roster);
  EXPECT_TRUE(as_json(picture).starts_with("{\"schema\":\"herring-status-1\""));
  EXPECT_TRUE(as_json(picture).ends_with("}\n"));
  EXPECT_NE(as_json(picture).find("\"seconds\":{\"min\":null,\"median\":null"), std::string::npos);
  EXPECT_EQ(as_metrics(picture).find("step_seconds"), std::string::npos);
  EXPECT_TRUE(as_text(picture, true).starts_with("job : 0 ranks"));
  EXPECT_TRUE(record_as_json(picture, "", {}, 0).ends_with("\"silent\":[]}\n"));
}

TEST(Render, OddTextsAreEscaped) {
  Roster roster;
  roster.job = "a\"b\\c\nd\xff\xc3\xa9";
  roster.ranks.push_back({"h\"\n", 0, 1});
  roster.servers.push_back({"s\\", false, 0, 1, 0});
  Picture picture = empty(roster);
  picture.ranks[0].report.stack = "x\"y\xed\xa0\x80";
  picture.findings = {"\x01\x7f"};
  const std::string json = as_json(picture);
  EXPECT_NE(json.find("\"job\":\"a\\\"b\\\\c\\u000ad\\ufffd\xc3\xa9\""), std::string::npos) << json;
  EXPECT_NE(json.find("[\"\\u0001\\u007f\"]"), std::string::npos) << json;
  EXPECT_NE(json.find("x\\\"y\\ufffd\\ufffd\\ufffd"), std::string::npos) << json;
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  const std::string metrics = as_metrics(picture);
  EXPECT_NE(metrics.find("host=\"h\\\"\\n\""), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("host=\"s\\\\\""), std::string::npos);
  for (const char c : metrics) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  EXPECT_EQ(metrics.find('\xff'), std::string::npos) << "Prometheus wants UTF-8";
}

TEST(Render, ARecordHasMomentsOnTheClockOfRank0) {
  Roster roster;
  roster.ranks.resize(2);
  Picture picture = empty(roster);
  picture.ranks[1].state = State::kStopped;
  ProcessRecord record = full_record();
  record.offset = kSecond;
  record.entries[0].at = {2 * kSecond, 0, 0, 0, 0, 0};
  picture.time = 1795832298.123456;
  EXPECT_NE(as_json(picture).find("\"time\":1795832298.123456,"), std::string::npos);
  const std::string json = record_as_json(picture, "why", {{Process{false, 0}, record}}, 1000);
  EXPECT_NE(json.find("\"time\":1795832298.123456,"), std::string::npos) << json;
  EXPECT_NE(json.find("\"called\":1003.000000,\"ready\":null"), std::string::npos) << json;
  EXPECT_NE(json.find("\"outcome\":\"timeout\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"outcome\":null"), std::string::npos) << json;
  EXPECT_NE(json.find("\"silent\":[\"rank 1: stopped\"]"), std::string::npos) << json;
}

// ---- files ----

TEST(WholeFile, AppearsWhenItIsCompleteAndOnlyForThisUser) {
  char made[] = "/tmp/wf-XXXXXX";
  ASSERT_NE(mkdtemp(made), nullptr);
  const std::string path = concat(made, "/file");
  std::ofstream(path) << "earlier";
  Status told = Status(Code::kInternal, "nobody has told");
  const std::string text(30'000'000, 'x');
  auto file = WholeFile::write(path, [&] {
    std::ifstream earlier(path);
    std::stringstream contents;
    contents << earlier.rdbuf();
    EXPECT_EQ(contents.str(), "earlier");
    return text;
  }, [&](const Status& status) { told = status; });
  ASSERT_TRUE(file.ok());
  for (int i = 0; i < 100 && !(*file)->finished(); ++i) (*file)->flush();
  EXPECT_TRUE(told.ok()) << told.message();
  EXPECT_EQ(std::filesystem::file_size(path), text.size());
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  std::filesystem::remove_all(made);
}

TEST(WholeFile, AFailureIsToldAndLeavesTheEarlierFile) {
  char made[] = "/tmp/wf-XXXXXX";
  ASSERT_NE(mkdtemp(made), nullptr);
  const auto failure = [](const std::string& path, const WholeFile::Make& make) {
    Status told;
    auto file = WholeFile::write(path, make, [&](const Status& status) { told = status; });
    EXPECT_TRUE(file.ok());
    for (int i = 0; i < 100 && !(*file)->finished(); ++i) (*file)->flush();
    return told.message();
  };
  const std::string path = concat(made, "/file");
  std::ofstream(path) << "earlier";
  EXPECT_NE(failure(path, []() -> std::string { throw std::bad_alloc(); }), "");
  std::filesystem::create_symlink("/dev/full", path + ".part");
  EXPECT_EQ(failure(path, [] { return "text"; }),
            concat("cannot write ", path, ": No space left on device"));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(std::filesystem::file_size(path), 7u);
  EXPECT_EQ(failure("/nowhere/file", [] { return "text"; }),
            "cannot write /nowhere/file: No such file or directory");
  ASSERT_EQ(mkfifo((path + ".part").c_str(), 0600), 0);  // nobody reads it
  EXPECT_NE(failure(path, [] { return "text"; }), "");
  std::filesystem::remove_all(made);
}

}  // namespace
}  // namespace herring::observe
