#include "calls/exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "plan/split.h"

namespace herring::calls {
namespace {

using Ints = std::vector<int32_t>;

// All ranks of an operation on int32. Servers sum each block over the ranks that contribute to it.
class Ranks {
 public:
  // `counts` has one count per rank for an all-gather, and one per pair of ranks for an all-to-all.
  Ranks(const wire::Collective& what, std::vector<Ints> inputs, std::vector<uint64_t> counts = {},
        uint64_t row = 1)
      : inputs_(std::move(inputs)), results_(inputs_.size()), size_(inputs_.size()) {
    for (uint32_t rank = 0; rank < size_; ++rank) {
      const wire::Array array{DType::kInt32, {inputs_[rank].size() / row, row}};
      wire::Collective call = what;
      std::vector<uint64_t> own = counts;
      if (auto* alltoall = std::get_if<wire::AllToAll>(&call)) {
        own.clear();
        for (uint32_t other = 0; other < size_; ++other) {
          alltoall->rows.push_back(counts[rank * size_ + other]);
          own.push_back(counts[other * size_ + rank]);
        }
      }
      EXPECT_TRUE(check_counts("x", call, {array}, own, rank, size_).ok());
      exchanges_.push_back(plan_exchange(call, array, 0, own, rank, size_));
      on_node_.push_back(plan_node_exchange(call, array, exchanges_.back(), rank, size_));
    }
  }

  std::vector<Ints> run() {
    for (uint32_t rank = 0; rank < size_; ++rank) {
      const Exchange& exchange = exchanges_[rank];
      results_[rank].resize(exchange.result_bytes / 4);
      uint32_t before = 0;
      for (const Block& block : exchange.blocks) {
        EXPECT_GT(block.bytes, 0u);
        EXPECT_TRUE(&block == exchange.blocks.data() || block.buffer > before) << "not in order";
        before = block.buffer;
        add(rank, block);
      }
    }
    for (const auto& [buffer, sum] : sums_) {
      for (const auto& [rank, place] : wanted_[buffer]) deliver(rank, place, sum);
    }
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (!exchanges_[rank].own) continue;
      const Block& own = *exchanges_[rank].own;
      const auto from = inputs_[rank].begin() + static_cast<long>(*own.send / 4);
      deliver(rank, *own.receive, Ints(from, from + static_cast<long>(own.bytes / 4)));
    }
    const std::vector<Ints> by_servers = results_;
    for (uint32_t rank = 0; rank < size_; ++rank) take_pieces(rank);
    EXPECT_EQ(results_, by_servers) << "on one node";
    return results_;
  }

 private:
  void add(uint32_t rank, const Block& block) {
    if (block.pair) {
      EXPECT_LT(block.pair->first, block.pair->second);
      EXPECT_TRUE(rank == block.pair->first || rank == block.pair->second);
      const auto [place, fresh] = pairs_.try_emplace(block.buffer, *block.pair);
      EXPECT_TRUE(fresh || place->second == *block.pair) << "two pairs in one buffer";
    }
    Ints& sum = sums_[block.buffer];
    sum.resize(block.bytes / 4);
    for (size_t i = 0; block.send && i < sum.size(); ++i) {
      sum[i] += inputs_[rank].at(*block.send / 4 + i);
    }
    if (block.receive) wanted_[block.buffer].emplace_back(rank, *block.receive);
  }
  // Takes the pieces of `rank` from the node. Clears and fills only what comes from other ranks.
  void take_pieces(uint32_t rank) {
    for (const NodePiece& piece : on_node_[rank].pieces) {
      Ints sum(piece.bytes / 4);
      for (uint32_t from = 0; from < size_; ++from) {
        if (piece.from != NodePiece::kAll && piece.from != from) continue;
        std::string posted(reinterpret_cast<const char*>(on_node_[from].table.data()),
                           on_node_[from].table.size() * 8);
        const Ints& input = inputs_[from];
        posted.append(reinterpret_cast<const char*>(input.data()), input.size() * 4);
        size_t offset = piece.offset;
        if (piece.told) std::memcpy(&offset, posted.substr(offset, 8).data(), 8);
        Ints values(sum.size());
        std::memcpy(values.data(), posted.substr(offset, piece.bytes).data(), piece.bytes);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      }
      deliver(rank, piece.receive, Ints(sum.size(), -1));
      deliver(rank, piece.receive, sum);
    }
  }
  void deliver(uint32_t rank, size_t place, const Ints& values) {
    for (size_t i = 0; i < values.size(); ++i) results_[rank].at(place / 4 + i) = values[i];
  }

  std::vector<Ints> inputs_, results_;
  uint32_t size_;
  std::vector<Exchange> exchanges_;
  std::vector<NodeExchange> on_node_;
  std::map<uint32_t, Ints> sums_;
  std::map<uint32_t, std::vector<std::pair<uint32_t, size_t>>> wanted_;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> pairs_;
};

class ExchangeTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  Ints ints(size_t n) {
    Ints made(n);
    for (int32_t& value : made) value = value_(random);
    return made;
  }
  uint64_t few() { return random() % 5; }

  const uint32_t size = GetParam();
  std::mt19937 random{GetParam()};

 private:
  std::uniform_int_distribution<int32_t> value_{1, 1'000'000};
};

TEST_P(ExchangeTest, GathersBlocksOfAnyLength) {
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Ints> inputs;
    std::vector<uint64_t> counts;
    Ints all;
    for (uint32_t r = 0; r < size; ++r) {
      inputs.push_back(ints(few()));
      counts.push_back(inputs.back().size());
      all.insert(all.end(), inputs.back().begin(), inputs.back().end());
    }
    EXPECT_EQ(Ranks(wire::AllGather{}, inputs, counts).run(),
              std::vector<Ints>(size, all));
  }
}

TEST_P(ExchangeTest, ReducesForEachRankItsRows) {
  constexpr long kRow = 3;
  for (size_t rows = 0; rows < 3 * size; ++rows) {
    std::vector<Ints> inputs;
    Ints sum(rows * kRow);
    for (uint32_t r = 0; r < size; ++r) {
      inputs.push_back(ints(sum.size()));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs.back()[i];
    }
    std::vector<Ints> expected;
    for (uint32_t r = 0; r < size; ++r) {
      const plan::Part part = plan::even_split(rows, size, r);
      const auto first = sum.begin() + static_cast<long>(part.first) * kRow;
      expected.emplace_back(first, first + static_cast<long>(part.count) * kRow);
    }
    EXPECT_EQ(Ranks(wire::ReduceScatter{}, inputs, {}, kRow).run(), expected);
  }
}

TEST_P(ExchangeTest, ReducesForEachRankTheRowsThatAreGiven) {
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<uint64_t> splits;
    for (uint32_t r = 0; r < size; ++r) splits.push_back(few());
    const size_t rows = std::accumulate(splits.begin(), splits.end(), size_t{0});
    std::vector<Ints> inputs;
    Ints sum(rows * 2);
    for (uint32_t r = 0; r < size; ++r) {
      inputs.push_back(ints(sum.size()));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs.back()[i];
    }
    std::vector<Ints> expected;
    auto first = sum.begin();
    for (const uint64_t split : splits) {
      const auto last = first + static_cast<long>(split) * 2;
      expected.emplace_back(first, last);
      first = last;
    }
    EXPECT_EQ(Ranks(wire::ReduceScatter{{}, splits}, inputs, {}, 2).run(), expected);
  }
}

TEST_P(ExchangeTest, SendsEveryPairItsBlock) {
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<uint64_t> counts;
    for (uint32_t i = 0; i < size * size; ++i) counts.push_back(few());
    std::vector<Ints> inputs(size), expected(size);
    for (uint32_t from = 0; from < size; ++from) {
      for (uint32_t to = 0; to < size; ++to) {
        const Ints block = ints(counts[from * size + to]);
        inputs[from].insert(inputs[from].end(), block.begin(), block.end());
        expected[to].insert(expected[to].end(), block.begin(), block.end());
      }
    }
    EXPECT_EQ(Ranks(wire::AllToAll{}, inputs, counts).run(), expected);
  }
}

TEST_P(ExchangeTest, OnlyTheRootOfABroadcastContributes) {
  for (uint32_t rank = 0; rank < size; ++rank) {
    const uint32_t root = size - 1;
    const Exchange exchange =
        plan_exchange(wire::Broadcast{root}, {DType::kUInt8, {7}}, 0, {}, rank, size);
    ASSERT_EQ(exchange.blocks.size(), 1u);
    EXPECT_EQ(exchange.blocks[0].bytes, 7u);
    EXPECT_EQ(exchange.blocks[0].send.has_value(), rank == root);
    EXPECT_EQ(exchange.blocks[0].receive.has_value(), rank != root);
    EXPECT_EQ(exchange.result_bytes, 0u) << "it receives in place";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExchangeTest, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
TEST(Exchange, CountsThatDoNotFitAreRefused) {
  const auto check = [](const wire::Collective& what, const std::vector<uint64_t>& counts,
                        uint32_t size) {
    return check_counts("x", what, {{DType::kFloat32, {6}}}, counts, 1, size).code();
  };
  EXPECT_EQ(check(wire::AllGather{}, {5, 6, 7}, 3), Code::kOk);
  for (const std::vector<uint64_t>& counts : std::vector<std::vector<uint64_t>>{
           {}, {5, 6}, {5, 7, 6}, {uint64_t{1} << 49, 6, 7}}) {
    EXPECT_EQ(check(wire::AllGather{}, counts, 3), Code::kProtocol);
  }
  EXPECT_EQ(check(wire::AllToAll{{2, 4}}, {9, 4}, 2), Code::kOk);
  for (const std::vector<uint64_t>& counts :
       std::vector<std::vector<uint64_t>>{{4}, {9, 4, 0}, {9, 5}, {UINT64_MAX, 4}}) {
    EXPECT_EQ(check(wire::AllToAll{{2, 4}}, counts, 2), Code::kProtocol);
  }
  for (const std::vector<uint64_t>& rows :
       std::vector<std::vector<uint64_t>>{{}, {6}, {2, 4, 0}, {2, 5}, {UINT64_MAX, 7}}) {
    EXPECT_EQ(check(wire::AllToAll{rows}, {9, 4}, 2), Code::kProtocol);
  }
  // A reduce-scatter needs no counts.
  EXPECT_EQ(check(wire::ReduceScatter{{}, {UINT64_MAX, 7}}, {}, 2), Code::kProtocol);
  EXPECT_EQ(check(wire::ReduceScatter{{}, {6, 0}}, {}, 2), Code::kOk);
  EXPECT_EQ(check(wire::ReduceScatter{}, {}, 2), Code::kOk);
}

}  // namespace herring::calls
