#include "links/kept.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/streams.h"
#include "transfers.h"

namespace herring::links {
namespace {

using namespace testing;

class KeptTest : public ::testing::Test, public Sender {
 protected:
  KeptTest() {
    options.segment_bytes = kBytes;
    options.credit_max = 4;
    options.failover = true;
    route.add_server(0);
    kept.add_server(0);
  }
  Transfer* in_flight(const Key& key) override {
    const auto found = moving.find(key);
    return found == moving.end() ? nullptr : &found->second;
  }
  void requeue(const Transfer&, uint32_t, Transfer*) override { ++requeued; }
  void forgotten(uint32_t) override { ++forgets; }

  // Begins a transfer of four segments to the one server.
  Transfer& begin(Key key, bool lockstep = false) {
    Transfer& transfer = moving.emplace(key, to_servers(1, key, data)).first->second;
    transfer.lockstep = lockstep;
    kept.begin(transfer, 0);
    kept.begin_in_reign(key);
    return transfer;
  }
  // The results of all segments come.
  void answer(Transfer& transfer) {
    transport::Destinations out;
    kept.place_results(transfer, 0, 0, 4, out);
    for (uint32_t segment = 0; segment < 4; ++segment) {
      transfer.answered[0][segment] = true;
      kept.copy_results(transfer, 0, segment, 1);
      kept.settle(transfer, 0, segment);
    }
    transfer.segments_left = 0;
    kept.keep(transfer);
    kept.end_in_reign(transfer.key);
    const Key key = transfer.key;
    moving.erase(key);
    kept.forget(key);
  }

  LinksOptions options;
  Route route{options};
  Kept kept{options, route, *this};
  std::map<Key, Transfer> moving;
  char data[4 * kBytes];
  int requeued = 0, forgets = 0;
};

// A window of 4 segments, and one more that each stream may have on its way.
TEST_F(KeptTest, ResultsAreKeptUntilAWindowHasFollowed) {
  answer(begin({0, 0, 0}));
  EXPECT_EQ(kept.keys(), (std::vector<Key>{{0, 0, 0}}));
  answer(begin({0, 1, 0}));
  EXPECT_EQ(kept.keys(), (std::vector<Key>{{0, 0, 0}, {0, 1, 0}})) << "3 of 4 places are settled";
  answer(begin({0, 2, 0}));
  EXPECT_EQ(kept.keys(), (std::vector<Key>{{0, 1, 0}, {0, 2, 0}}));
  EXPECT_EQ(forgets, 1);
}

TEST_F(KeptTest, ARoundSettlesThoseBefore) {
  options.flows = 2;  // so the window says nothing
  Route several(options);
  several.add_server(0);
  Kept rounds(options, several, *this);
  rounds.add_server(0);
  Transfer& first = begin({7, 0, 0}, true);
  first.segments_left = 0;
  rounds.keep(first);
  ASSERT_NE(rounds.find({7, 0, 0}), nullptr);
  Transfer& second = begin({7, 1, 0}, true);
  rounds.settle(second, 0, 0);
  EXPECT_EQ(rounds.find({7, 0, 0}), nullptr);
}

TEST_F(KeptTest, AReignWaitsForEarlierOnesAndSettlesThem) {
  const uint32_t later = stream_of(Reign{0, 2}, 1);
  ASSERT_GE(later, kReignStreams);
  Transfer& early = begin({0, 0, 0});
  Transfer& late = begin({later, 0, 0});
  EXPECT_TRUE(kept.waits_for_earlier_reign({0, later, 0, 0}));
  EXPECT_FALSE(kept.waits_for_earlier_reign({0, 0, 0, 0}));
  EXPECT_FALSE(kept.waits_for_earlier_reign({3, later, 0, 0})) << "another group";
  answer(early);
  EXPECT_FALSE(kept.waits_for_earlier_reign({0, later, 0, 0}));
  EXPECT_EQ(kept.keys().size(), 1u);
  answer(late);
  EXPECT_EQ(kept.keys(), (std::vector<Key>{{later, 0, 0}}));
}

TEST_F(KeptTest, StatementsOfAllSettleTheRest) {
  answer(begin({0, 0, 0}));
  ASSERT_EQ(kept.over().size(), 1u);
  const uint64_t upto = kept.over().begin()->second;
  kept.settle(StreamProgress{0, 0, upto - 1});
  EXPECT_TRUE(kept.any(0)) << "nobody has said that";
  kept.settle(StreamProgress{0, 0, upto});
  EXPECT_FALSE(kept.any(0));
  EXPECT_TRUE(kept.over().empty());
  EXPECT_EQ(kept.bytes(), 0u);
}

// Another server gets results where they are here, and else contributions.
TEST_F(KeptTest, WhatIsPushedAgainIsResultsOrContributions) {
  Transfer& transfer = begin({0, 0, 0});
  std::memset(data, 1, sizeof data);
  transport::Destinations out;
  kept.place_results(transfer, 0, 0, 2, out);
  transfer.answered[0][0] = transfer.answered[0][1] = true;
  Item item{&transfer, 0, 0};
  const Piece given = Kept::next_piece(item, 8);
  EXPECT_EQ(given.count, 2u);
  EXPECT_TRUE(given.gives);
  EXPECT_EQ(kept.results(transfer, 0, 0, 2).size(), 2 * kBytes);
  item.next = 2;
  const Piece pushed = Kept::next_piece(item, 8);
  EXPECT_EQ(pushed.count, 2u);
  EXPECT_FALSE(pushed.gives);
  EXPECT_EQ(Kept::next_piece(item, 1).count, 1u);
}

// Fewer of them fit into a chunk.
TEST_F(KeptTest, ResultsMayBeLargerThanContributions) {
  for (const char* wire : {"fp8/bfloat16", "int8/float32"}) {
    Transfer transfer = to_servers(1, {0, 0, 0});
    transfer.open.dtype = *parse_wire_dtype(wire);
    transfer.shards[0].bytes = 21 * kBytes;
    transfer.runs = {{0, 0, 21}};
    transfer.answered[0].assign(21, true);
    const size_t segment = result_bytes(kBytes, transfer.open.dtype);
    std::string given(21 * segment, '\0');
    for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<char>(i / segment + i % 7);
    std::string received(given.size(), '\0');
    transfer.receive = received.data();
    for (const auto& [first, count] : {std::pair(0u, 3u), {3u, 11u}, {14u, 7u}}) {
      transport::Destinations out;
      kept.place_results(transfer, 0, first, count, out);
      size_t from = first * segment;
      for (int i = 0; i < out.count; ++i) {
        std::memcpy(out.pieces[i].iov_base, &given[from], out.pieces[i].iov_len);
        from += out.pieces[i].iov_len;
      }
      EXPECT_EQ(from, (first + count) * segment);
      kept.copy_results(transfer, 0, first, count);
    }
    EXPECT_EQ(received, given) << wire;
    EXPECT_EQ(kept.results(transfer, 0, 2, 13), given.substr(2 * segment, 13 * segment)) << wire;
    Item item{&transfer, 0, 0};
    EXPECT_EQ(Kept::next_piece(item, 30).count, 21u);
    EXPECT_LT(kept.in_frame(transfer, 16) * segment, 16 * kBytes + 1);
    EXPECT_EQ(kept.in_frame(transfer, 1), 1u);
    kept.forget_all();
  }
}

TEST_F(KeptTest, AnotherObjectTakesThePlaceOfATransferThatGoesOn) {
  Transfer& transfer = begin({0, 0, 0});
  transfer.ways[0].again = true;
  answer(transfer);
  EXPECT_EQ(requeued, 1);
}

TEST_F(KeptTest, WhatIsOnItsWayKeepsTheTransfer) {
  Transfer& transfer = begin({0, 0, 0});
  transfer.on_the_way[0] = 1;  // a result that was given to a server
  answer(transfer);
  kept.remove_group(0);
  EXPECT_TRUE(kept.any(0));
  EXPECT_EQ(kept.bytes(), 0u) << "its results are not";
  kept.abandon(0);
  EXPECT_FALSE(kept.any(0));
}

}  // namespace
}  // namespace herring::links
