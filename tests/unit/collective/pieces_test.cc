#include "collective/pieces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "algorithms.h"
#include "collective/run.h"

namespace herring::collective {
namespace {

template <typename Check>
void for_all(const Check& check) {
  for (const Algorithm algorithm : kAlgorithmsInPlace) {
    for (uint32_t size = 2; size <= 9; ++size) {
      for (const uint64_t count : {1u, 7u, 100'000u, 3'000'001u, 40'000'000u}) {
        for (uint32_t rank = 0; rank < size; ++rank) {
          SCOPED_TRACE(concat(wire::name_of(algorithm), ", ", count, ", ", rank, " of ", size));
          check(make_schedule(algorithm, rank, size, count, 4), count * 4);
        }
      }
    }
  }
}

TEST(Pieces, CoverWhatEachMessageBringsOnTheGridOfFrames) {
  for_all([](const Schedule& schedule, size_t bytes) {
    std::vector<size_t> received(schedule.size());
    uint32_t pieces_of_one = 0, last = 0;
    for (const Piece& piece : cut(schedule, bytes, false)) {
      ASSERT_GT(piece.range.bytes, 0u);
      if (piece.what == Piece::What::kOut) continue;
      const uint32_t receive = piece.operation;
      const Range& whole = schedule[receive].range;
      ASSERT_EQ(schedule[receive].kind, Operation::Kind::kReceive);
      ASSERT_GE(receive, last) << "messages come in their order";
      pieces_of_one = receive == last ? pieces_of_one + 1 : 1;
      last = receive;
      ASSERT_LE(pieces_of_one, 8u);
      ASSERT_EQ(piece.range.offset, whole.offset + received[receive]);
      ASSERT_EQ(received[receive] % kFrameBytes, 0u);
      received[receive] += piece.range.bytes;
    }
    for (uint32_t i = 0; i < schedule.size(); ++i) {
      const bool receives = schedule[i].kind == Operation::Kind::kReceive;
      ASSERT_EQ(received[i], receives ? schedule[i].range.bytes : 0);
    }
  });
}

// Plays the pieces in the order of the queue: each send must find in the image what the device has.
TEST(Pieces, WhatIsSentIsInTheImageAndComesFromTheDeviceOnce) {
  for_all([](const Schedule& schedule, size_t bytes) {
    if (bytes > 1000) return;  // the test plays every byte
    const std::vector<Piece> pieces = cut(schedule, bytes, true);
    ASSERT_EQ(pieces.front(), (Piece{Piece::What::kScale, 0, {0, bytes}}));
    std::vector<int> device(bytes, 0), image(bytes, -1);
    int version = 0;
    auto next = pieces.begin();
    for (uint32_t i = 0; i < schedule.size(); ++i) {
      // Plays all pieces of the messages before, and those that this one sends.
      for (; next != pieces.end() &&
             (next->operation < i || next->what == Piece::What::kOut ||
              next->what == Piece::What::kScale);
           ++next) {
        for (size_t at = next->range.offset; at < next->range.end(); ++at) {
          if (next->what == Piece::What::kOut) {
            ASSERT_NE(image[at], device[at]) << "it is there already";
            image[at] = device[at];
          } else {
            device[at] = ++version;
            if (next->what == Piece::What::kCopy) image[at] = device[at];
          }
        }
      }
      if (schedule[i].kind != Operation::Kind::kSend) continue;
      const Range& send = schedule[i].range;
      for (size_t at = send.offset; at < send.end(); ++at) ASSERT_EQ(image[at], device[at]) << i;
    }
  });
}

// Only the order of the pieces keeps a sum from changing bytes that are still to be copied out.
TEST(Pieces, NoContributionIsAddedToWhatWasCopiedOut) {
  for_all([](const Schedule& schedule, size_t bytes) {
    std::vector<Range> out;
    for (const Piece& piece : cut(schedule, bytes, false)) {
      if (piece.what == Piece::What::kOut) out.push_back(piece.range);
      if (piece.what != Piece::What::kReduce && piece.what != Piece::What::kFinish) continue;
      for (const Range& range : out) ASSERT_FALSE(overlap(range, piece.range));
    }
  });
}

TEST(Pieces, ABlockLeavesAsSoonAsWhatItHoldsIsAdded) {
  // Rank 3 of 4 gives away the lower half, and then the lower half of the half that it keeps.
  constexpr uint64_t kCount = 8 << 20;
  const Schedule schedule = make_schedule(Algorithm::kButterfly, 3, 4, kCount, 4);
  std::string order;
  for (const Piece& piece : cut(schedule, kCount * 4, false)) {
    switch (piece.what) {
      case Piece::What::kOut: order += 'o'; break;
      case Piece::What::kReduce: order += 'r'; break;
      case Piece::What::kFinish: order += 'f'; break;
      case Piece::What::kScale: order += 's'; break;
      case Piece::What::kCopy: order += 'c'; break;
    }
  }
  EXPECT_EQ(order,
            "oooooooo"          // 16 MB leave in pieces of 2 MB
            "rooroorooroo"      // data arrives in pieces of 2 MB and leaves in pieces of 1 MB
            "rrrr"              // the rest stays on this rank
            "fofofofofofofofo"  // each finished piece goes out again
            "cccccccc"
            "cccccccc");
}

TEST(Pieces, NothingOfNothing) {
  EXPECT_TRUE(cut({}, 0, true).empty());
  EXPECT_TRUE(cut(make_schedule(Algorithm::kButterfly, 0, 2, 0, 4), 0, false).empty());
}

}  // namespace
}  // namespace herring::collective
