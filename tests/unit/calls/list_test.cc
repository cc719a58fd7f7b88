#include "calls/list.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace herring::calls {
namespace {

// The arrays of one rank. Every byte identifies the rank, the array and the place in it.
struct Arrays {
  std::vector<wire::Array> shapes;
  std::vector<std::string> data;

  std::vector<Buffer> buffers() const {
    std::vector<Buffer> all;
    for (size_t i = 0; i < shapes.size(); ++i) all.push_back({shapes[i], data[i].data()});
    return all;
  }
};

class ListTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint64_t below(uint64_t n) { return random() % n; }

  // `rows` gives the number of rows that an array has on a rank.
  template <typename Rows>
  std::vector<Arrays> some(const Rows& rows) {
    std::vector<Arrays> ranks(size);
    const size_t count = below(9);
    for (size_t i = 0; i < count; ++i) {
      wire::Array shape{static_cast<DType>(below(kNumDTypes)), {0}};
      for (uint64_t d = below(3); d > 0; --d) shape.shape.push_back(below(4));
      for (uint32_t r = 0; r < size; ++r) {
        shape.shape[0] = rows(i, r);
        ranks[r].shapes.push_back(shape);
        std::string& data = ranks[r].data.emplace_back(shape.bytes(), '\0');
        for (char& byte : data) byte = static_cast<char>(random());
      }
    }
    return ranks;
  }

  static std::string packed(const List& list, const Arrays& arrays) {
    std::string staging(list.staging_bytes(), '\0');
    list.pack(arrays.buffers(), staging.data());
    return staging;
  }

  static std::vector<std::string> unpacked(const List& list, const Arrays& arrays,
                                           std::string from) {
    std::vector<std::string> results;
    std::vector<char*> places;
    for (size_t i = 0; i < arrays.shapes.size(); ++i) {
      results.emplace_back(list.result_rows()[i] * arrays.shapes[i].row_bytes(), '?');
    }
    for (std::string& one : results) places.push_back(one.data());
    list.unpack(from.data(), places);
    return results;
  }

  const uint32_t size = GetParam();
  std::mt19937_64 random{GetParam()};
};

TEST_P(ListTest, AllReduceAndBroadcastBringBackWhatWasPacked) {
  for (int trial = 0; trial < 200; ++trial) {
    const auto ranks = some([this](size_t, uint32_t) { return below(5); });
    for (const wire::Collective& what :
         {wire::Collective(wire::AllReduce{}), wire::Collective(wire::Broadcast{})}) {
      List list(what, ranks[0].shapes, 0, size);
      ASSERT_TRUE(list.check().ok());
      ASSERT_GT(list.bundles().size(), 0u);
      uint64_t bytes = 0;
      for (const List::Bundle& bundle : list.bundles()) {
        EXPECT_EQ(bundle.offset % 64, 0u);
        bytes += bundle.array.bytes();
      }
      uint64_t expected = 0;
      for (const wire::Array& array : ranks[0].shapes) expected += array.bytes();
      EXPECT_EQ(bytes, expected) << "bundles have the bytes of the list, and no more";
      const std::string staging = packed(list, ranks[0]);
      ASSERT_TRUE(list.read(staging.data(), 0, {}).ok());
      EXPECT_EQ(unpacked(list, ranks[0], staging), ranks[0].data);
    }
  }
}

TEST_P(ListTest, AllGatherPutsTheRowsOfAllRanksTogether) {
  for (int trial = 0; trial < 200; ++trial) {
    const auto ranks = some([this](size_t, uint32_t) { return below(5); });
    std::string all;
    std::vector<uint64_t> counts;
    std::vector<std::string> expected(ranks[0].shapes.size());
    for (uint32_t r = 0; r < size; ++r) {
      const List list(wire::AllGather{}, ranks[r].shapes, r, size);
      ASSERT_EQ(list.bundles().size(), 1u);
      counts.push_back(list.bundles()[0].array.bytes());
      all += packed(list, ranks[r]).substr(0, counts.back());
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += ranks[r].data[i];
    }
    List list(wire::AllGather{}, ranks[0].shapes, 0, size);
    ASSERT_TRUE(list.read(all.data(), all.size(), counts).ok());
    EXPECT_EQ(unpacked(list, ranks[0], all), expected);
  }
}

TEST_P(ListTest, ReduceScatterLeavesEachRankItsRows) {
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<uint64_t> rows;
    const auto ranks = some([&](size_t i, uint32_t r) {
      if (r == 0) rows.push_back(below(9));
      return rows[i];
    });
    for (uint32_t r = 0; r < size; ++r) {
      List list(wire::ReduceScatter{}, ranks[0].shapes, r, size);
      const std::string staging = packed(list, ranks[0]);
      const std::vector<uint64_t> splits = list.splits();
      // Builds the result as if rank 0 were the only contributor.
      std::string own;
      for (size_t b = 0; b < list.bundles().size(); ++b) {
        const List::Bundle& bundle = list.bundles()[b];
        uint64_t first = 0;
        for (uint32_t before = 0; before < r; ++before) first += splits[b * size + before];
        const size_t item = size_of(bundle.array.dtype);
        own += staging.substr(bundle.offset + first * item, splits[b * size + r] * item);
      }
      ASSERT_TRUE(list.read(own.data(), own.size(), {}).ok());
      const auto results = unpacked(list, ranks[0], own);
      for (size_t i = 0; i < results.size(); ++i) {
        const uint64_t even = rows[i] / size, more = rows[i] % size;
        const uint64_t first = r * even + std::min<uint64_t>(r, more);
        const size_t row = ranks[0].shapes[i].row_bytes();
        EXPECT_EQ(results[i], ranks[0].data[i].substr(first * row, (even + (r < more)) * row));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ListTest, ::testing::Values(1, 2, 3, 8));

TEST(List, WhatRanksHaveGatheredIsNotTrusted) {
  const std::vector<wire::Array> arrays{{DType::kFloat32, {2, 3}}};
  List list(wire::AllGather{}, arrays, 0, 2);
  std::string all(2 * 32, '\0');
  const auto say = [&](size_t at, uint64_t rows) { std::memcpy(all.data() + at, &rows, 8); };
  const auto code = [&](std::vector<uint64_t> counts) {
    return list.read(all.data(), all.size(), counts).code();
  };
  say(0, 2);
  say(32, 2);
  EXPECT_EQ(code({32, 32}), Code::kOk);
  for (const uint64_t rows : {uint64_t{3}, uint64_t{1}, UINT64_MAX, uint64_t{1} << 62}) {
    say(32, rows);
    EXPECT_EQ(code({32, 32}), Code::kProtocol) << rows;
  }
  say(32, 2);
  EXPECT_EQ(code({32}), Code::kProtocol);
  EXPECT_EQ(code({32, 7}), Code::kProtocol);
  EXPECT_EQ(code({32, 1ull << 40}), Code::kProtocol);
  EXPECT_EQ(code({UINT64_MAX, 32}), Code::kProtocol);
  List scatters(wire::ReduceScatter{}, arrays, 0, 2);
  EXPECT_EQ(scatters.read(all.data(), 12, {}).code(), Code::kOk);
  EXPECT_EQ(scatters.read(all.data(), 13, {}).code(), Code::kProtocol);
}

TEST(List, WordsTellListsApartHoweverLongTheyAre) {
  std::vector<wire::Array> arrays{{DType::kFloat32, {2, 3}}, {DType::kBool, {}}};
  EXPECT_EQ(List(wire::AllReduce{}, arrays, 0, 2).describe(),
            "2 arrays: float32 [2, 3], bool []");
  arrays.pop_back();
  EXPECT_EQ(List(wire::AllGather{}, arrays, 0, 2).describe(), "1 array: float32 [n, 3]");
  EXPECT_EQ(List(wire::AllReduce{}, {}, 0, 2).describe(), "0 arrays");
  arrays.resize(2000, arrays[0]);
  const std::string words = List(wire::AllReduce{}, arrays, 0, 2).describe();
  EXPECT_LE(words.size(), 1024u);
  arrays.back().shape[0] = 7;
  EXPECT_NE(List(wire::AllReduce{}, arrays, 0, 2).describe(), words) << "the last of 2,000";
}

TEST(List, RefusesWhatItsKindDoesNotTake) {
  const std::vector<wire::Array> scalar{{DType::kFloat32, {1}}, {DType::kInt32, {}}};
  for (const wire::Collective& what :
       {wire::Collective(wire::AllGather{}), wire::Collective(wire::ReduceScatter{}),
        wire::Collective(wire::AllReduce{{ReduceOp::kAverage}}), wire::Collective(wire::AllToAll{}),
        wire::Collective(wire::AllReduce{{}, wire::Algorithm::kRing})}) {
    EXPECT_EQ(List(what, scalar, 0, 2).check().code(), Code::kInvalidArgument);
  }
  EXPECT_NE(List(wire::AllGather{}, scalar, 0, 2).check().message().find("array 1 of the list"),
            std::string::npos);
}

}  // namespace
}  // namespace herring::calls
