// What is known of groups: what a worker tells of them, and what the rendezvous makes of it.
#include "observe/groups.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "observe/group_fields.h"
#include "observe/monitor.h"
#include "observe/record.h"

namespace herring::observe {
namespace {

GroupNews news_of(uint32_t group, std::string name, std::vector<uint32_t> ranks) {
  GroupNews news;
  news.group = group;
  news.name = std::move(name);
  news.ranks = std::move(ranks);
  return news;
}

const auto nobody_waits = [](uint32_t) { return false; };
const auto all_wait = [](uint32_t) { return true; };

TEST(GroupBook, AGroupIsToldOnceWithItsRanks) {
  GroupBook book(true);
  book.add(5, "tp", {1, 3});
  auto told = book.news(kSecond);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].name, "world");
  EXPECT_TRUE(told[0].ranks.empty());
  EXPECT_EQ(told[1].group, 5u);
  EXPECT_EQ(told[1].name, "tp");
  EXPECT_EQ(told[1].ranks, (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(book.news(kSecond).empty());

  book.begin(5, Kind::kCall, 2 * kSecond);
  book.begin(5, Kind::kRound, 3 * kSecond);
  told = book.news(5 * kSecond);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].name.empty() && told[0].ranks.empty());
  EXPECT_EQ(told[0].calls, 1u);
  EXPECT_EQ(told[0].rounds, 1u);
  EXPECT_EQ(told[0].in_flight, 2u);
  EXPECT_EQ(told[0].age, 3 * kSecond);
  // Nothing new: the rendezvous knows that the time goes on.
  EXPECT_TRUE(book.news(6 * kSecond).empty());
  book.end(5, 6 * kSecond);
  told = book.news(7 * kSecond);
  EXPECT_EQ(told.at(0).in_flight, 1u);
  EXPECT_EQ(told.at(0).age, kSecond);
}

TEST(GroupBook, ThousandsOfGroupsMakeNoLargeReports) {
  constexpr uint32_t kGroups = 5000;
  GroupBook book(true);
  std::vector<uint32_t> ranks(1000);
  std::iota(ranks.begin(), ranks.end(), 0u);
  for (uint32_t group = 1; group <= kGroups; ++group) book.add(group, "g", ranks);
  std::set<uint32_t> told;
  for (int reports = 0; told.size() < kGroups && reports < 1000; ++reports) {
    Report report;
    report.groups = book.news(kSecond);
    ASSERT_LE(report.groups.size(), kMostGroupNews);
    EXPECT_LT(encode(report).size(), 45'000u);
    for (const GroupNews& one : report.groups) {
      EXPECT_TRUE(one.group == 0 || told.insert(one.group).second) << "told twice";
    }
  }
  EXPECT_EQ(told.size(), kGroups);
  // Groups in which much happens do not keep the others from being told.
  std::set<uint32_t> changed;
  for (uint32_t group = 1; group <= kGroups; ++group) book.begin(group, Kind::kCall, kSecond);
  for (uint32_t reports = 0; reports < kGroups / kMostGroupNews + 1; ++reports) {
    for (uint32_t busy = 1; busy <= 10; ++busy) book.begin(busy, Kind::kCall, kSecond);
    for (const GroupNews& one : book.news(kSecond)) changed.insert(one.group);
  }
  EXPECT_GE(changed.size(), kGroups - 10);
}

TEST(GroupBook, AGroupWithTooManyRanksIsNotTold) {
  GroupBook book(true);
  book.news(0);
  book.add(1, "huge", std::vector<uint32_t>(kMostGroupRanks + 1));
  book.add(2, "pair", {0, 1});
  const auto told = book.news(0);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_TRUE(told[0].ranks.empty());
  EXPECT_EQ(told[1].ranks.size(), 2u);
}

TEST(GroupBook, LeavingIsToldOnceIfTheGroupWas) {
  GroupBook book(true);
  book.add(1, "a", {0, 1});
  book.news(0);
  book.add(2, "b", {0, 1});
  book.remove(1);
  book.remove(2);  // nobody has heard of it
  book.remove(3);
  const auto told = book.news(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].group, 1u);
  EXPECT_TRUE(told[0].gone);
  EXPECT_TRUE(book.news(0).empty());
}

TEST(GroupBook, ANewNameAndADroppedReportAreToldAgain) {
  GroupBook book(true);
  book.add(1, "group.0", {0, 1});
  book.news(0);
  book.rename(1, "mesh_tp");
  book.rename(1, "mesh_tp");
  auto told = book.news(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].name, "mesh_tp");
  EXPECT_EQ(told[0].ranks.size(), 2u);
  book.rename(1, "mesh_tp");
  EXPECT_TRUE(book.news(0).empty());
  book.tell_again();
  told = book.news(0);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[1].ranks.size() + told[0].ranks.size(), 2u);
}

TEST(GroupBook, ABookThatIsOffCountsNothing) {
  GroupBook book(false);
  book.add(1, "a", {0, 1});
  book.begin(1, Kind::kCall, 1);
  EXPECT_TRUE(book.news(2).empty());
}

TEST(GroupNews, TravelWholeAndBounded) {
  GroupNews sent = news_of(7, "a\nb" + std::string(200, 'x'), {0, 2});
  sent.rounds = 1;
  sent.calls = 2;
  sent.in_flight = 3;
  sent.age = 4;
  FieldWriter out;
  group_fields(out, std::vector<GroupNews>{sent});
  const std::string whole = out.take();
  FieldReader in(whole);
  std::vector<GroupNews> got;
  group_fields(in, got);
  ASSERT_TRUE(in.done());
  const GroupNews& one = got.at(0);
  EXPECT_EQ(one.name.size(), kMostGroupNameBytes);
  EXPECT_EQ(one.name.substr(0, 4), "a bx");
  EXPECT_EQ(one.ranks, sent.ranks);
  EXPECT_EQ(std::tie(one.rounds, one.calls, one.in_flight, one.age),
            std::tie(sent.rounds, sent.calls, sent.in_flight, sent.age));
  for (size_t size = 0; size < whole.size(); ++size) {
    FieldReader cut(std::string_view(whole).substr(0, size));
    group_fields(cut, got);
    EXPECT_FALSE(cut.ok()) << size;
  }
  for (const auto& groups : {std::vector<GroupNews>(kMostGroupNews + 1),
                             {news_of(1, "", std::vector<uint32_t>(kMostGroupRanks)), sent}}) {
    FieldWriter large;
    group_fields(large, groups);
    const std::string text = large.take();
    FieldReader reader(text);
    group_fields(reader, got);
    EXPECT_FALSE(reader.ok());
  }
}

TEST(Groups, MembersTellWhoIsInAGroupAndWhatTheyDo) {
  Groups groups(4);
  GroupNews news = news_of(3, "tp", {1, 2, 3});
  news.calls = 7;
  news.in_flight = 1;
  news.age = 2 * kSecond;
  groups.add(1, news, 10 * kSecond);
  news.calls = 6;
  news.in_flight = 0;
  news.age = 0;
  groups.add(2, news, 10 * kSecond);
  const auto views = groups.views(11 * kSecond, all_wait);
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].name, "world");
  EXPECT_EQ(views[0].ranks->size(), 4u);
  EXPECT_FALSE(views[0].outlier);
  EXPECT_EQ(views[1].group, 3u);
  EXPECT_EQ(views[1].calls, 7u);
  EXPECT_EQ(views[1].in_flight, 1u);
  EXPECT_EQ(views[1].age, 3 * kSecond);
  EXPECT_EQ(views[1].absent, (std::vector<uint32_t>{2, 3}));  // 3 has not told anything
  EXPECT_TRUE(views[1].outlier);
  EXPECT_FALSE(groups.views(11 * kSecond, nobody_waits)[1].outlier);
  // A rank that has died holds nobody up here; others say so.
  groups.gone(1);
  EXPECT_EQ(groups.views(12 * kSecond, all_wait)[1].in_flight, 0u);
}

TEST(Groups, NonsenseIsDropped) {
  Groups groups(4);
  groups.add(0, news_of(1, "", {}), 0);                // never told of
  groups.add(0, news_of(2, "not mine", {1, 2}), 0);
  groups.add(0, news_of(3, "unsorted", {2, 0}), 0);
  groups.add(0, news_of(4, "twice", {0, 0}), 0);
  groups.add(0, news_of(5, "too large", {0, 4}), 0);
  groups.add(9, news_of(6, "of a stranger", {0, 9}), 0);
  EXPECT_EQ(groups.views(0, nobody_waits).size(), 1u);
  groups.add(0, news_of(7, "a", {0, 1}), 0);
  groups.add(1, news_of(7, "b", {0, 1, 2}), 0);        // contradicts
  groups.add(2, news_of(7, "c", {}), 0);               // is not a member
  const auto views = groups.views(0, nobody_waits);
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[1].name, "a");
  EXPECT_EQ(views[1].ranks->size(), 2u);
}

TEST(Groups, AGroupThatAllHaveLeftIsForgotten) {
  Groups groups(4);
  GroupNews leaves;
  leaves.group = 1;
  leaves.gone = true;
  for (int i = 0; i < 3; ++i) {
    for (const uint32_t rank : {0u, 1u, 2u}) groups.add(rank, news_of(1, "a", {0, 1, 2}), 0);
    groups.add(0, leaves, 0);
    groups.gone(2);
    EXPECT_EQ(groups.views(0, nobody_waits).size(), 2u);
    groups.add(1, leaves, 0);
    EXPECT_EQ(groups.views(0, nobody_waits).size(), 1u);
  }
  groups.add(1, leaves, 0);
}

TEST(Groups, TheirNumberIsBounded) {
  constexpr uint32_t kRanks = 1000;
  std::vector<uint32_t> all(kRanks);
  std::iota(all.begin(), all.end(), 0u);
  Groups few(kRanks);
  for (uint32_t i = 1; i <= 1000; ++i) few.add(0, news_of(i, "wide", all), 0);
  EXPECT_EQ(few.views(0, nobody_waits).size(), 1 + Groups::kMostMembers / kRanks);
  Groups many(kRanks);
  for (uint32_t i = 1; i <= 2 * Groups::kMost; ++i) many.add(0, news_of(i, "pair", {0, 1}), 0);
  EXPECT_EQ(many.views(0, nobody_waits).size(), Groups::kMost);
  // What is not kept any more makes room.
  GroupNews leaves;
  leaves.group = 1;
  leaves.gone = true;
  many.add(0, leaves, 0);
  many.add(0, news_of(50'000, "pair", {0, 1}), 0);
  EXPECT_EQ(many.views(0, nobody_waits).back().group, 50'000u);
}

TEST(Groups, AreInAllThatPeopleRead) {
  Roster roster;
  roster.job = "test";
  roster.ranks.resize(4);
  Monitor monitor(roster, {}, 0);
  Report report;
  report.where = "waits in barrier 'x'";
  report.age = 5 * kSecond;
  report.groups = {news_of(3, "t\"p", {1, 2})};
  report.groups[0].in_flight = 1;
  report.groups[0].age = 5 * kSecond;
  monitor.report({false, 1}, report, kSecond);
  monitor.heard({false, 1}, kSecond, kSecond);
  GroupNews quiet = news_of(4, "quiet", {0, 1});
  monitor.groups({false, 0}, {quiet}, kSecond);  // as a record tells it
  const Picture picture = monitor.picture(kSecond);
  ASSERT_EQ(picture.groups.size(), 3u);
  const std::string json = as_json(picture);
  EXPECT_NE(json.find(R"({"group":3,"name":"t\"p","size":2,"ranks":[1,2],"rounds":0,"calls":0,)"
                      R"("in_flight":1,"for":5,"absent":[2],"outlier":true})"),
            std::string::npos)
      << json;
  const std::string metrics = as_metrics(picture);
  EXPECT_NE(metrics.find("herring_group_in_flight{job=\"test\",group=\"3\",comm_name=\"t\\\"p\","
                         "nranks=\"2\"} 1\n"),
            std::string::npos)
      << metrics;
  const std::string text = as_text(picture, false), all = as_text(picture, true);
  EXPECT_NE(text.find("group 3 't\"p' (ranks 1-2): 0 rounds, 0 calls, 1 in flight; none has "
                      "ended for 5 s; nothing in flight on rank 2\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("quiet"), std::string::npos);
  EXPECT_NE(all.find("quiet"), std::string::npos);
  // A flight record has the groups of its entries.
  ProcessRecord record;
  record.entries.emplace_back().group = 3;
  const std::string flight = record_as_json(picture, "why", {{{false, 1}, record}}, 0);
  EXPECT_NE(flight.find(R"("groups":[{"group":3,"name":"t\"p","ranks":[1,2]}],)"),
            std::string::npos)
      << flight;
}

}  // namespace
}  // namespace herring::observe
