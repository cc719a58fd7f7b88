// Packs of the largest numbers, beside a simple model of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "reduce/reduce.h"

namespace herring::reduce {
namespace {

std::vector<DType> sparse_types() {
  std::vector<DType> all;
  for (int number = static_cast<int>(kFirstSparse); number < kNumWireDTypes; ++number) {
    all.push_back(static_cast<DType>(number));
  }
  return all;
}

using Bytes = std::vector<char>;

// Reads a pack as the format is documented.
std::map<size_t, float> read(const Bytes& pack) {
  uint16_t count = 0, indices[kSparseEntries], values[kSparseEntries];
  std::memcpy(&count, pack.data(), 2);
  std::memcpy(indices, &pack[4], sizeof indices);
  std::memcpy(values, &pack[4 + sizeof indices], sizeof values);
  std::map<size_t, float> entries;
  for (size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(entries.empty() || indices[i] > entries.rbegin()->first) << "they ascend";
    float value = 0;
    convert(&values[i], DType::kBFloat16, &value, DType::kFloat32, 1, 1.0);
    entries[indices[i]] = value;
  }
  return entries;
}

float rounded(float value) {
  uint16_t narrow = 0;
  convert(&value, DType::kFloat32, &narrow, DType::kBFloat16, 1, 1.0);
  convert(&narrow, DType::kBFloat16, &value, DType::kFloat32, 1, 1.0);
  return value;
}

// Returns the places of the largest numbers; of equal ones the first.
std::set<size_t> largest(const std::vector<float>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](size_t i) { return values[i] == 0; });
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const auto size = [&](size_t i) {
      return std::isnan(values[i]) ? std::numeric_limits<double>::max()
                                   : std::min<double>(std::fabs(values[i]), 1e300);
    };
    return size(a) > size(b);
  });
  if (order.size() > kSparseEntries) order.resize(kSparseEntries);
  return {order.begin(), order.end()};
}

std::vector<float> some(size_t count, uint32_t seed, bool coarse = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = coarse ? std::round(normal(random)) : normal(random);
  return values;
}

Bytes packed(const std::vector<float>& values, DType dtype, float* residual = nullptr) {
  Bytes pack(kPackBytes);
  reduce::pack(values.data(), values.size(), dtype, pack.data(), residual);
  return pack;
}

TEST(Sparse, ThePackHasTheLargestNumbersAndTheResidualTheRest) {
  for (const DType dtype : sparse_types()) {
    const size_t whole = pack_numbers(dtype);
    for (const size_t count : {whole, whole - 1, size_t{256}, size_t{255}, size_t{3}}) {
      for (const bool coarse : {false, true}) {  // with many equal numbers and zeros
        const std::vector<float> values = some(count, static_cast<uint32_t>(count), coarse);
        const std::vector<float> before = some(count, 7, coarse);
        std::vector<float> residual = before, wanted(count);
        for (size_t i = 0; i < count; ++i) wanted[i] = before[i] + values[i];
        const auto entries = read(packed(values, dtype, residual.data()));
        std::set<size_t> places;
        for (const auto& [place, value] : entries) {
          places.insert(place);
          EXPECT_EQ(value, rounded(wanted[place]));
          wanted[place] -= value;
        }
        const auto without = read(packed(values, dtype));
        EXPECT_EQ(without.size(), largest(values).size());
        std::vector<float> sums(count);
        for (size_t i = 0; i < count; ++i) sums[i] = before[i] + values[i];
        EXPECT_EQ(places, largest(sums)) << name_of(dtype) << " " << count;
        EXPECT_EQ(residual, wanted);
      }
    }
  }
}

TEST(Sparse, NothingIsLostBetweenSourcesResultsAndResiduals) {
  const DType dtype = *parse_wire_dtype("topk:0.05");
  const size_t count = pack_numbers(dtype);
  for (const size_t n : {1, 2, 7, 8, 9, 40}) {
    std::vector<std::vector<float>> residuals(n, std::vector<float>(count));
    std::vector<Bytes> packs;
    std::vector<double> given(count);
    for (size_t source = 0; source < n; ++source) {
      const auto values = some(count, static_cast<uint32_t>(100 + source));
      for (size_t i = 0; i < count; ++i) given[i] += values[i];
      packs.push_back(packed(values, dtype, residuals[source].data()));
    }
    std::vector<float> sums(count);
    std::vector<const void*> sources;
    for (const Bytes& pack : packs) {
      sources.push_back(pack.data());
      for (const auto& [place, value] : read(pack)) sums[place] += value;
    }
    Bytes result(kPackBytes);
    const Stage stage = whole(dtype, {ReduceOp::kAverage}, n);
    combine(sources.data(), n, result.data(), count, stage);
    std::set<size_t> places;
    for (const auto& [place, value] : read(result)) {
      places.insert(place);
      EXPECT_EQ(value, rounded(sums[place] / static_cast<float>(n)));
    }
    EXPECT_EQ(places, largest(sums)) << n;
    for (size_t source = 0; source < n; ++source) {
      give_back(packs[source].data(), result.data(), count, residuals[source].data());
    }
    for (size_t i = 0; i < count; ++i) {
      double left = places.contains(i) ? sums[i] : 0;
      for (const auto& residual : residuals) left += residual[i];
      EXPECT_NEAR(left, given[i], 1e-4) << i;
    }
    // In place, as a server does it.
    combine(sources.data(), n, packs[0].data(), count, stage);
    EXPECT_EQ(packs[0], result);
  }
}

TEST(Sparse, ResultsBecomeNumbersOfAnyFloatType) {
  for (const DType dtype : sparse_types()) {
    const size_t count = pack_numbers(dtype);
    Bytes packs = packed(some(count, 1), dtype);
    const Bytes second = packed(some(count, 2), dtype);
    packs.insert(packs.end(), second.begin(), second.end());
    std::vector<float> all(2 * count);
    convert(packs.data(), dtype, all.data(), DType::kFloat32, 2 * count, 1.0);
    for (const size_t i : {0, 1}) {
      const auto entries = read({packs.begin() + static_cast<ptrdiff_t>(i * kPackBytes),
                                 packs.begin() + static_cast<ptrdiff_t>((i + 1) * kPackBytes)});
      for (size_t place = 0; place < count; ++place) {
        const auto found = entries.find(place);
        EXPECT_EQ(all[i * count + place], found == entries.end() ? 0 : found->second);
      }
    }
    for (const DType out : {DType::kFloat16, DType::kBFloat16}) {
      std::vector<uint16_t> narrow(2 * count), expected(2 * count);
      convert(packs.data(), dtype, narrow.data(), out, 2 * count, 1.0);
      convert(all.data(), DType::kFloat32, expected.data(), out, 2 * count, 1.0);
      EXPECT_EQ(narrow, expected);
    }
  }
}

TEST(Sparse, SumsOfNumbersArePackedAsIs) {
  const DType dtype = *parse_wire_dtype("topk:0.02");
  const size_t count = pack_numbers(dtype);
  const std::vector<float> one = some(2 * count, 1), other = some(2 * count, 2);
  std::vector<float> sums(2 * count);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = (one[i] + other[i]) / 2;
  const void* const sources[] = {one.data(), other.data()};
  Bytes packs(2 * kPackBytes);
  combine(sources, 2, packs.data(), 2 * count, {DType::kFloat32, dtype, ReduceOp::kSum, 1.0, 2.0});
  Bytes expected;
  for (const size_t i : {0, 1}) {
    const auto begin = sums.begin() + static_cast<ptrdiff_t>(i * count);
    const Bytes pack = packed({begin, begin + static_cast<ptrdiff_t>(count)}, dtype);
    expected.insert(expected.end(), pack.begin(), pack.end());
  }
  EXPECT_EQ(packs, expected);
}

TEST(Sparse, WhatIsNotFiniteArrivesAndIsNotKept) {
  const DType dtype = *parse_wire_dtype("topk:0.01");
  std::vector<float> values = some(pack_numbers(dtype), 3);
  const float infinity = std::numeric_limits<float>::infinity();
  values[17] = std::numeric_limits<float>::quiet_NaN();
  values[400] = -infinity;
  values[401] = std::numeric_limits<float>::max();  // infinite in bfloat16
  const std::vector<float> before = some(values.size(), 4);
  std::vector<float> residual = before;
  const Bytes pack = packed(values, dtype, residual.data());
  const auto entries = read(pack);
  EXPECT_TRUE(std::isnan(entries.at(17)));
  EXPECT_EQ(entries.at(400), -infinity);
  EXPECT_EQ(entries.at(401), infinity);
  EXPECT_EQ(residual, before) << "the step is skipped";
  give_back(pack.data(), packed({}, dtype).data(), values.size(), residual.data());
  EXPECT_EQ(residual, before);

  // More of them than a pack takes.
  const std::vector<float> endless(values.size(), infinity);
  EXPECT_EQ(read(packed(endless, dtype, residual.data())).size(), kSparseEntries);
  EXPECT_EQ(residual, before);
}

// Whatever a stranger's pack says, memory beyond the numbers is not touched.
TEST(Sparse, ForgedPacksDoNoHarm) {
  std::mt19937 random(1);
  for (const DType dtype : sparse_types()) {
    const size_t count = pack_numbers(dtype);
    for (int attempt = 0; attempt < 50; ++attempt) {
      std::vector<Bytes> packs(3, Bytes(kPackBytes));
      std::vector<const void*> sources;
      for (Bytes& pack : packs) {
        for (char& byte : pack) byte = static_cast<char>(random());
        sources.push_back(pack.data());
      }
      Bytes result(kPackBytes);
      combine(sources.data(), 3, result.data(), count, whole(dtype, {}, 3));
      for (const auto& [place, value] : read(result)) EXPECT_LT(place, count);
      std::vector<float> numbers(count), few(5);
      convert(packs[0].data(), dtype, numbers.data(), DType::kFloat32, count, 1.0);
      give_back(packs[1].data(), packs[2].data(), few.size(), few.data());
    }
  }
}

TEST(Sparse, NamesAndSizes) {
  for (const DType dtype : sparse_types()) {
    EXPECT_EQ(*parse_wire_dtype(name_of(dtype)), dtype);
    EXPECT_TRUE(is_packed(dtype) && is_sparse(dtype));
    EXPECT_EQ(result_of(dtype), dtype);
    const double ratio = std::stod(std::string(name_of(dtype)).substr(5));
    EXPECT_EQ(static_cast<double>(pack_numbers(dtype)) * ratio, kSparseEntries);
    EXPECT_LE(pack_numbers(dtype), 1u << 16) << "indices have 16 bits";
    EXPECT_EQ(bytes_for(pack_numbers(dtype) + 1, dtype), 2 * kPackBytes);
  }
  for (const char* name : {"topk", "topk:", "topk:0.3", "topk:0.01/bfloat16"}) {
    EXPECT_FALSE(parse_wire_dtype(name).ok()) << name;
  }
  EXPECT_FALSE(check_stage({DType::kFloat32, *parse_wire_dtype("topk:0.1"), ReduceOp::kMax}).ok());
}

}  // namespace
}  // namespace herring::reduce
