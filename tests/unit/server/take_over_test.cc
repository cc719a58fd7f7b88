// A server that answers for names is gone, and the coordinator of another one takes over.
#include <gtest/gtest.h>

#include <set>

#include "wire/key.h"
#include "coordinator_fixture.h"

namespace herring::server {
namespace {

using wire::FrameType;

class TakeOverTest : public testing::Test {
 protected:
  static constexpr Reign kBefore{1}, kNow{1, 2};  // server 0 stands in for server 1

  std::vector<Answer> say(Coordinator& to, Reign reign, uint32_t rank, const Call& call,
                          Nanos now = 0) {
    std::vector<Answer> answers;
    const Status status = to.announce(rank, 0, reign, call.text(), now, answers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    note(answers);
    return answers;
  }
  std::vector<Answer> hand_over(uint32_t rank, Reign reign = kNow) {
    std::vector<Answer> answers;
    const Status status =
        coordinator.hand_over(rank, 0, reign, encode(known[rank]), 0, answers);
    EXPECT_TRUE(status.ok()) << status.to_string();
    note(answers);
    return answers;
  }
  // Lets the ranks receive the answers, except those to `lost`.
  void note(const std::vector<Answer>& answers) {
    for (const Answer& one : answers) {
      const uint64_t number = wire::answer_number(one.header);
      if (number == 0 || one.rank == lost) continue;
      wire::Handover& known = this->known[one.rank];
      if (one.header.flags & wire::kFlagMet) {
        const bool fits = one.header.type == FrameType::kGo;
        wire::Met& met = known.met.emplace_back();
        met.own = fits ? head_of(one).id : error_in(one).id;
        met.other = 1 - one.rank;
        met.others = number;
        met.type = one.header.type;
        met.stream = one.header.stream;
        met.ticket = fits ? one.header.round : 0;
        met.text = fits ? encode(wire::Go{0, {one.rank, kTag}}).substr(8) + address(one.rank)
                        : one.payload.substr(8);
        continue;
      }
      if (known.joined) {
        const bool joins = head_of(one).id == kJoin;
        const bool takes_part = one.header.type == FrameType::kGo;
        known.kept.push_back({number, one.header.type, one.header.stream, one.header.round,
                              joins ? wire::kJoinName : name,
                              takes_part ? encode(wire::Go{}).substr(8) : one.payload.substr(8), {},
                              takes_part ? encode(large(20, name).message) : ""});
        known.joined = !joins;
        if (joins) known.highest = number;
        continue;
      }
      EXPECT_GT(number, known.highest);
      while (known.highest + 1 < number) known.holes.push_back(++known.highest);
      known.highest = number;
      known.kept.push_back({number, one.header.type, one.header.stream, one.header.round, name,
                            one.payload.substr(8), own[one.rank],
                            one.header.type == FrameType::kGo ? encode(large(20, name).message)
                                                              : ""});
    }
  }
  static wire::Go head_of(const Answer& answer) {
    std::string_view result;
    auto go = wire::decode_go(answer.payload, &result);
    EXPECT_TRUE(go.ok());
    return go.ok() ? *go : wire::Go{};
  }
  static std::string result_of(const Answer& answer) {
    std::string_view result;
    EXPECT_TRUE(wire::decode_go(answer.payload, &result).ok());
    return std::string(result);
  }
  static wire::OpError error_in(const Answer& answer) {
    auto error = wire::decode_op_error(answer.payload);
    EXPECT_TRUE(answer.header.type == FrameType::kOpError && error.ok());
    return error.ok() ? *error : wire::OpError{};
  }
  static Call named(std::string name, Call call) {
    call.message.name = std::move(name);
    return call;
  }
  static Call large(uint64_t id, std::string name) {
    Call call = named(std::move(name), small(id, ""));
    call.message.inline_payload = false;
    call.message.arrays = {{DType::kFloat32, {1 << 20}}};
    return call;
  }

  // Lets a rank join.
  std::vector<Answer> join(Coordinator& to, Reign reign, uint32_t rank, uint64_t called = 0) {
    known[rank].joined = true;
    Call call = named(wire::kJoinName, small(kJoin, ""));
    call.message.inline_payload = false;
    call.message.arrays.clear();
    call.message.what = wire::Join{called};
    return say(to, reign, rank, call);
  }
  static constexpr uint64_t kJoin = 99;
  static constexpr uint64_t kTag = 7;
  static std::string address(uint32_t rank) { return concat("10.0.0.1:", rank); }
  static Call message(uint64_t id, uint32_t rank, wire::Collective what, size_t elements = 4) {
    Call call = named("a message", small(id, ""));
    call.message.inline_payload = false;
    call.message.arrays = {{DType::kFloat32, {elements}}};
    call.message.what = std::move(what);
    call.message.address = address(rank);
    return call;
  }
  static Call send(uint64_t id, uint64_t tag = kTag) { return message(id, 0, wire::Send{1, tag}); }
  static Call receive(uint64_t id, size_t elements = 4) {
    return message(id, 1, wire::Receive{{}, kTag}, elements);
  }

  static control::Cluster two_servers() {
    control::Cluster cluster = make_cluster(2);
    cluster.servers.push_back({1, true, ~0u, "10.0.0.3:7000", 1.0});
    return cluster;
  }

  control::Cluster cluster = two_servers();
  GroupTable groups_before{cluster}, groups{cluster};
  observe::RankStates states;
  Coordinator before{cluster, groups_before, 1, states}, coordinator{cluster, groups, 0, states};
  wire::Handover known[2];  // by rank
  uint32_t lost = ~0u;      // answers to this rank are lost
  std::vector<uint64_t> own[2];  // of an all-to-all, by rank
  std::string name = "x";   // of the calls that are answered
};

TEST_F(TakeOverTest, CallsThatWaitAreMadeAgain) {
  say(before, kBefore, 0, small(10, floats({1})));
  EXPECT_TRUE(say(coordinator, kNow, 0, small(10, floats({1}))).empty());
  EXPECT_TRUE(hand_over(0).empty());
  EXPECT_FALSE(coordinator.idle());
  EXPECT_TRUE(hand_over(1).empty());
  const auto answers = say(coordinator, kNow, 1, small(20, floats({2})));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(result_of(answers[0]), floats({3}));
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(TakeOverTest, CallsAreHeldUntilAllHaveHandedOver) {
  EXPECT_TRUE(hand_over(0).empty());
  EXPECT_TRUE(say(coordinator, kNow, 0, small(10, floats({1}))).empty());
  EXPECT_TRUE(say(coordinator, kNow, 1, small(20, floats({2}))).empty());
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(result_of(answers[1]), floats({3}));
}

TEST_F(TakeOverTest, ARankGetsTheResultThatOthersHave) {
  lost = 1;
  say(before, kBefore, 0, small(10, floats({1})));
  ASSERT_EQ(say(before, kBefore, 1, small(20, floats({2}))).size(), 2u);
  lost = ~0u;
  EXPECT_TRUE(hand_over(0).empty());
  // Its next call comes first, because rank 0 does not know of the death.
  EXPECT_TRUE(say(coordinator, kNow, 0, small(11, floats({5}))).empty());
  EXPECT_TRUE(say(coordinator, kNow, 1, small(20, floats({2}))).empty());
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 1u);
  EXPECT_EQ(result_of(answers[0]), floats({3}));
  EXPECT_EQ(head_of(answers[0]).id, 20u);
  EXPECT_EQ(wire::answer_number(answers[0].header), 1u);
  const auto next = say(coordinator, kNow, 1, small(21, floats({6})));
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(result_of(next[0]), floats({11}));
  EXPECT_EQ(wire::answer_number(next[0].header), 2u);
}

TEST_F(TakeOverTest, TicketsKeepTheirOrder) {
  lost = 1;
  for (const char* call : {"a", "b"}) {
    name = call;
    say(before, kBefore, 0, large(10, call));
    ASSERT_EQ(say(before, kBefore, 1, large(20, call)).size(), 2u);
  }
  lost = ~0u;
  hand_over(0);
  say(coordinator, kNow, 1, large(20, "b"));
  say(coordinator, kNow, 1, large(21, "a"));
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  for (uint32_t ticket = 0; ticket < 2; ++ticket) {
    EXPECT_EQ(answers[ticket].rank, 1u);
    EXPECT_EQ(answers[ticket].header.type, FrameType::kGo);
    EXPECT_EQ(answers[ticket].header.stream, stream_of(kBefore, 2));
    EXPECT_EQ(answers[ticket].header.round, ticket);
  }
  // New tickets are those of another stream.
  say(coordinator, kNow, 0, large(12, "a"));
  const auto later = say(coordinator, kNow, 1, large(22, "a"));
  ASSERT_EQ(later.size(), 2u);
  EXPECT_EQ(later[0].header.stream, stream_of(kNow, 2));
}

TEST_F(TakeOverTest, ALateRankGetsTheErrorOfItsOwnCall) {
  Call refusal = small(10, "");
  refusal.message.refusal = "no";
  ASSERT_EQ(say(before, kBefore, 0, refusal).size(), 1u) << "a refusal with an ID is answered";
  hand_over(0);
  EXPECT_TRUE(hand_over(1).empty());
  // Rank 0 is one call ahead.
  EXPECT_TRUE(say(coordinator, kNow, 0, small(11, floats({1}))).empty());
  const auto failed = say(coordinator, kNow, 1, small(20, floats({2})));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(error_in(failed[0]).id, 20u);
  EXPECT_NE(error_in(failed[0]).text.find("was refused by"), std::string::npos);
  EXPECT_EQ(wire::answer_number(failed[0].header), 1u);
  const auto next = say(coordinator, kNow, 1, small(21, floats({2})));
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(result_of(next[0]), floats({3}));
}

TEST_F(TakeOverTest, ARankThatLacksTheAnswerToAnAllToAllGetsItsOwn) {
  const auto call = [](uint64_t id, std::vector<uint64_t> rows) {
    Call call = large(id, "x");
    call.message.arrays = {{DType::kFloat32, {rows[0] + rows[1], 5}}};
    call.message.what = wire::AllToAll{std::move(rows)};
    return call;
  };
  lost = 1;
  own[0] = {5, 10};  // elements
  say(before, kBefore, 0, call(10, {1, 2}));
  say(before, kBefore, 1, call(20, {3, 4}));
  hand_over(0);
  say(coordinator, kNow, 1, call(21, {3, 4}));
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 1u);
  EXPECT_EQ(answers[0].header.type, FrameType::kGo);
  EXPECT_EQ(head_of(answers[0]).id, 21u);
  EXPECT_EQ(head_of(answers[0]).counts, (std::vector<uint64_t>{10, 20}));
}

TEST_F(TakeOverTest, AnAnswerOfOneRankOnlyEndsTheJob) {
  lost = 1;
  own[0] = {1};  // it does not say what rank 0 has for rank 1
  say(before, kBefore, 0, large(10, "x"));
  say(before, kBefore, 1, large(20, "x"));
  hand_over(0);
  say(coordinator, kNow, 1, large(20, "x"));
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  for (const Answer& answer : answers) {
    EXPECT_EQ(error_in(answer).id, 0u);
    EXPECT_EQ(error_in(answer).code, Code::kPeerLost);
    EXPECT_NE(error_in(answer).text.find("'x'"), std::string::npos);
  }
}

TEST_F(TakeOverTest, AnAnswerThatNobodyKeepsEndsTheJob) {
  known[0].highest = 5;
  known[1].highest = 4;
  hand_over(0);
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kPeerLost);
  EXPECT_NE(error_in(answers[0]).text.find("4096"), std::string::npos);
}

TEST_F(TakeOverTest, NumbersThatNobodyHasAreNotMissed) {
  known[0].highest = known[1].highest = 5;
  known[0].holes = known[1].holes = {3};
  hand_over(0);
  EXPECT_TRUE(hand_over(1).empty());
  say(coordinator, kNow, 0, small(10, floats({1})));
  const auto answers = say(coordinator, kNow, 1, small(20, floats({2})));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(wire::answer_number(answers[0].header), 6u);
}

TEST_F(TakeOverTest, NobodyWaitsForARankThatHasLeft) {
  EXPECT_TRUE(say(coordinator, kNow, 0, small(10, floats({1}))).empty());
  EXPECT_TRUE(hand_over(0).empty());
  std::vector<Answer> answers;
  coordinator.rank_gone(1, kLeftJob, 0, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(error_in(answers[0]).id, 10u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kPeerLost);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(TakeOverTest, MessagesThatWaitAreAnnouncedAgain) {
  say(before, kBefore, 0, send(10));
  say(coordinator, kNow, 0, send(10));
  say(coordinator, kNow, 0, send(11));
  EXPECT_TRUE(hand_over(0).empty());
  EXPECT_TRUE(say(coordinator, kNow, 1, receive(20)).empty()) << "it waits for the hand-over";
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(head_of(answers[0]).id, 10u) << "in their order";
  EXPECT_EQ(answers[0].header.stream, stream_of(kNow, 2));
  EXPECT_EQ(say(coordinator, kNow, 1, receive(21)).size(), 2u);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(TakeOverTest, AMessageGoesOnIfOneOfItsRanksHasHeardOfTheOther) {
  for (const uint32_t deaf : {0u, 1u}) {
    Coordinator next(cluster, groups, 0, states);
    const Reign reign{1, 2 + deaf};
    known[0] = known[1] = {};
    lost = deaf;
    say(before, kBefore, 0, send(10));
    const auto met = say(before, kBefore, 1, receive(20));
    ASSERT_EQ(met.size(), 2u);
    lost = ~0u;
    // Both have made another call, which would fit the one that has met its counterpart.
    say(next, reign, 0, deaf == 0 ? send(10) : send(11));
    if (deaf == 0) say(next, reign, 0, send(11));
    say(next, reign, 1, deaf == 1 ? receive(20) : receive(21));
    if (deaf == 1) say(next, reign, 1, receive(21));
    std::vector<Answer> answers;
    for (const uint32_t rank : {0u, 1u}) {
      ASSERT_TRUE(next.hand_over(rank, 0, reign, encode(known[rank]), 0, answers).ok());
    }
    ASSERT_EQ(answers.size(), 3u);
    const Answer& again = answers[0];
    EXPECT_EQ(again.rank, deaf);
    EXPECT_EQ(again.header.type, FrameType::kGo);
    EXPECT_EQ(again.header.stream, stream_of(kBefore, 2));
    EXPECT_EQ(again.header.round, met[0].header.round);
    EXPECT_EQ(wire::answer_number(again.header), deaf == 0 ? 20u : 10u);
    EXPECT_EQ(head_of(again).id, deaf == 0 ? 10u : 20u);
    EXPECT_EQ(head_of(again).counts, (std::vector<uint64_t>{1 - deaf, kTag}));
    EXPECT_EQ(result_of(again), address(1 - deaf));
    EXPECT_EQ(head_of(answers[1]).id, 11u);
    EXPECT_EQ(head_of(answers[2]).id, 21u);
    EXPECT_TRUE(next.idle());
  }
}

TEST_F(TakeOverTest, AMessageThatDoesNotFitMeetsNoLaterOne) {
  lost = 0;
  say(before, kBefore, 0, send(10));
  const auto failed = say(before, kBefore, 1, receive(20, 5));
  ASSERT_EQ(failed.size(), 2u);
  lost = ~0u;
  say(coordinator, kNow, 0, send(10));
  hand_over(0);
  EXPECT_TRUE(say(coordinator, kNow, 1, receive(21)).empty());
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(error_in(answers[0]).id, 10u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kMismatch);
  EXPECT_EQ(error_in(answers[0]).text, error_in(failed[0]).text);
  EXPECT_EQ(wire::answer_number(answers[0].header), 20u);
  EXPECT_EQ(answers[0].header.round, 1u) << "the other rank";
  EXPECT_EQ(say(coordinator, kNow, 0, send(11)).size(), 2u);
}

TEST_F(TakeOverTest, AMessageOfARankThatHasLeftFails) {
  lost = 1;
  say(before, kBefore, 0, send(10));
  say(before, kBefore, 1, receive(20));
  hand_over(0);
  Call from_rank_0 = receive(20);
  from_rank_0.message.what = wire::Receive{0, kTag};
  say(coordinator, kNow, 1, from_rank_0);
  std::vector<Answer> answers;
  coordinator.rank_gone(0, kLeftJob, 0, answers);
  ASSERT_TRUE(coordinator.hand_over(1, 0, kNow, encode(wire::Handover()), 0, answers).ok());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(error_in(answers[0]).id, 20u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kPeerLost);
  EXPECT_TRUE(coordinator.idle());
}

TEST_F(TakeOverTest, CallsGoOnWithoutRanksThatJoinAgain) {
  join(before, kBefore, 0);
  // Rank 1 has had several results since.
  for (uint64_t id = 20; id < 23; ++id) {
    ASSERT_EQ(say(before, kBefore, 1, small(id, floats({2}))).size(), 1u);
  }
  join(coordinator, kNow, 0);
  hand_over(0);
  say(coordinator, kNow, 1, small(23, floats({3})));
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 1u);
  EXPECT_EQ(result_of(answers[0]), floats({3}));
  EXPECT_EQ(wire::answer_number(answers[0].header), 4u);
  const auto joined = join(coordinator, kNow, 1, 4);
  ASSERT_EQ(joined.size(), 2u);
  for (const Answer& answer : joined) {
    EXPECT_EQ(head_of(answer).id, kJoin);
    EXPECT_EQ(head_of(answer).counts, std::vector<uint64_t>{1});
  }
}

TEST_F(TakeOverTest, ARankThatHasJoinedTakesPartInWhatOthersHaveHeardOf) {
  join(before, kBefore, 0);
  lost = 0;
  ASSERT_EQ(say(before, kBefore, 1, large(20, "x")).size(), 2u);
  lost = ~0u;
  join(coordinator, kNow, 0);
  hand_over(0);
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 0u);
  EXPECT_EQ(answers[0].header.type, FrameType::kGo);
  EXPECT_EQ(answers[0].header.stream, stream_of(kBefore, 2));
  EXPECT_EQ(head_of(answers[0]).id, 0u);
  const auto call = wire::decode_announce(result_of(answers[0]));
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->name, "x");
  EXPECT_EQ(call->bytes(), 4u << 20);
}

TEST_F(TakeOverTest, ACallerGetsTheTicketThatARankHasThatJoined) {
  join(before, kBefore, 0);
  lost = 1;
  ASSERT_EQ(say(before, kBefore, 1, large(20, "x")).size(), 2u);
  lost = ~0u;
  join(coordinator, kNow, 0);
  hand_over(0);
  say(coordinator, kNow, 1, large(20, "x"));
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].rank, 1u);
  EXPECT_EQ(answers[0].header.type, FrameType::kGo);
  EXPECT_EQ(answers[0].header.stream, stream_of(kBefore, 2));
  EXPECT_EQ(head_of(answers[0]).id, 20u);
}

// Rank 1 has made a call that rank 0 has not, and then joined. Only rank 0 has heard that all have
// joined, and it has made its next call.
TEST_F(TakeOverTest, CallsBeforeAJoinAreNotMetByThoseAfterIt) {
  join(before, kBefore, 0);
  lost = 1;
  ASSERT_EQ(say(before, kBefore, 1, small(20, floats({5}))).size(), 1u);
  ASSERT_EQ(join(before, kBefore, 1, 1).size(), 2u);
  lost = ~0u;
  say(coordinator, kNow, 0, small(11, floats({1})));
  hand_over(0);
  say(coordinator, kNow, 1, small(20, floats({5})));
  join(coordinator, kNow, 1, 1);
  const auto answers = hand_over(1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(head_of(answers[0]).id, 20u);
  EXPECT_EQ(result_of(answers[0]), floats({5}));
  EXPECT_EQ(head_of(answers[1]).id, kJoin);
  EXPECT_EQ(head_of(answers[1]).counts, std::vector<uint64_t>{1});
  EXPECT_EQ(wire::answer_number(answers[0].header), wire::answer_number(answers[1].header));
  const auto next = say(coordinator, kNow, 1, small(21, floats({2})));
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(result_of(next[0]), floats({3}));
}

TEST_F(TakeOverTest, NamesOfDifferentHomesAreSeparate) {
  hand_over(0);
  hand_over(1);
  say(coordinator, kNow, 0, small(10, floats({1})));
  EXPECT_TRUE(say(coordinator, Reign{0}, 1, small(20, floats({2}))).empty());
  ASSERT_EQ(say(coordinator, kNow, 1, small(21, floats({2}))).size(), 2u);
}

TEST_F(TakeOverTest, SaysForWhomItWaits) {
  hand_over(0);
  say(coordinator, kNow, 0, small(10, floats({1})));
  std::vector<Answer> answers;
  coordinator.overdue(600 * kMillisecond, answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.type, FrameType::kWarning);
  EXPECT_NE(answers[0].payload.find("rank 1"), std::string::npos) << answers[0].payload;
  answers.clear();
  coordinator.overdue(700 * kMillisecond, answers);
  EXPECT_TRUE(answers.empty()) << "warned once";
  coordinator.overdue(1100 * kMillisecond, answers);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(error_in(answers[0]).id, 0u);
  EXPECT_EQ(error_in(answers[0]).code, Code::kTimeout);
}

TEST_F(TakeOverTest, ARefusalWaitsForNobody) {
  hand_over(0);
  Call refusal = small(9, "");
  refusal.message.refusal = "it does not want to";
  refusal.message.timeout_ms = refusal.message.warn_ms = 0;
  say(coordinator, kNow, 0, refusal);
  std::vector<Answer> answers;
  coordinator.overdue(kMillisecond, answers);
  EXPECT_TRUE(answers.empty());
  say(coordinator, kNow, 0, named("y", small(10, floats({1}))));
  coordinator.overdue(kMillisecond, answers);
  EXPECT_TRUE(answers.empty());
  coordinator.overdue(1100 * kMillisecond, answers);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(error_in(answers[0]).code, Code::kTimeout);
}

TEST_F(TakeOverTest, RefusesNonsense) {
  std::vector<Answer> out;
  const auto fails = [&](uint32_t rank, uint32_t group, Reign reign, const std::string& text) {
    return !coordinator.hand_over(rank, group, reign, text, 0, out).ok();
  };
  EXPECT_TRUE(fails(0, 0, kNow, "rubbish"));
  EXPECT_TRUE(fails(0, 7, kNow, encode(wire::Handover()))) << "no such group";
  EXPECT_TRUE(fails(0, 0, {9, 2}, encode(wire::Handover()))) << "no such server";
  EXPECT_TRUE(fails(0, 0, Reign{0}, encode(wire::Handover()))) << "it answers from the start on";
  hand_over(0);
  EXPECT_TRUE(fails(0, 0, kNow, encode(wire::Handover()))) << "twice";
  EXPECT_TRUE(fails(1, 0, {1, 3}, encode(wire::Handover()))) << "another version";
  EXPECT_FALSE(coordinator.announce(0, 0, {1}, small(1, floats({1})).text(), 0, out).ok())
      << "server 0 has never been server 1";
  EXPECT_TRUE(out.empty());
}

TEST_F(TakeOverTest, GroupsHaveOtherNumbersInEachReign) {
  std::set<uint64_t> numbers;
  for (uint32_t epoch = 2; epoch < 5; ++epoch) {
    for (uint32_t home = 0; home < 2; ++home) {
      for (uint64_t i = 0; i < 2; ++i) {
        Call call = small(i, "");
        call.message.inline_payload = false;
        call.message.arrays.clear();
        call.message.what = wire::FormGroup{{0, 1}};
        say(coordinator, {home, epoch}, 0, call);
        const auto answers = say(coordinator, {home, epoch}, 1, call);
        ASSERT_EQ(answers.size(), 2u);
        const wire::Go go = head_of(answers[0]);
        ASSERT_EQ(go.counts.size(), 1u);
        EXPECT_TRUE(numbers.insert(go.counts[0]).second);
      }
    }
  }
}

TEST(Streams, AreDifferentInEachReign) {
  std::set<uint32_t> streams;
  for (uint32_t epoch = 1; epoch < 50; ++epoch) {
    for (uint32_t home = 0; home < 3; ++home) {
      const uint32_t stream = stream_of({home, epoch}, 3);
      EXPECT_TRUE(streams.insert(stream).second);
      EXPECT_TRUE(streams.insert(stream + 3).second) << "that of exchanges";
      EXPECT_EQ(home_of(stream, 3), home);
      EXPECT_TRUE(is_of_calls(stream, 3) && is_of_calls(stream + 3, 3));
    }
  }
  EXPECT_FALSE(is_of_calls(6, 3)) << "of a plan";
  EXPECT_FALSE(is_of_calls(wire::kPartialStreams, 3));
  EXPECT_LT(stream_of({2, ~0u}, 3) + 3, wire::kPartialStreams);
}

}  // namespace
}  // namespace herring::server
