// Packs of 8-bit numbers with a scale for each block of 32, compared with arithmetic on doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reference.h"

namespace herring::reduce {
namespace {

constexpr DType kPacked[] = {DType::kMxE4M3, DType::kMxE5M2, DType::kMxInt8};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the value of an 8-bit number, without its scale.
double value_of(DType dtype, uint8_t bits) {
  if (dtype == DType::kMxInt8) return static_cast<int8_t>(bits) / 64.0;
  const int mantissa_bits = dtype == DType::kMxE4M3 ? 3 : 2;
  const int bias = dtype == DType::kMxE4M3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (dtype == DType::kMxE4M3 && (bits & 0x7f) == 0x7f) return kNan;
  if (dtype == DType::kMxE5M2 && exponent == 31) return mantissa == 0 ? sign * kInfinity : kNan;
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

// Returns all of them, by their bits.
const std::vector<double>& values_of(DType dtype) {
  static const auto tables = [] {
    std::vector<std::vector<double>> all;
    for (const DType each : kPacked) {
      for (int bits = 0; bits < 256; ++bits) {
        if (bits == 0) all.emplace_back();
        all.back().push_back(value_of(each, static_cast<uint8_t>(bits)));
      }
    }
    return all;
  }();
  return tables[static_cast<size_t>(dtype) - kNumDTypes];
}

double largest_of(DType dtype) {
  return dtype == DType::kMxE4M3 ? 448 : dtype == DType::kMxE5M2 ? 57344 : 127 / 64.0;
}

// Finds the nearest 8-bit number by looking at all of them; of two, the one whose last bit is 0.
// Numbers beyond the largest one by half a step or more are not rounded to it.
uint8_t nearest(DType dtype, double value) {
  uint8_t best = 0;
  double distance = kInfinity;
  for (int bits = 0; bits < 256; ++bits) {
    const double candidate = values_of(dtype)[static_cast<size_t>(bits)];
    if (!std::isfinite(candidate) || candidate < -largest_of(dtype)) continue;
    const bool same_sign = std::signbit(candidate) == std::signbit(value);
    if (candidate == 0 && !same_sign && dtype != DType::kMxInt8) continue;
    const double here = std::fabs(candidate - value);
    if (here < distance || (here == distance && bits % 2 == 0)) {
      best = static_cast<uint8_t>(bits);
      distance = here;
    }
  }
  return best;
}

// Returns whether a number of this magnitude would round to more than the largest one.
bool overflows(DType dtype, double magnitude) {
  const double largest = largest_of(dtype);
  const double step = dtype == DType::kMxE4M3 ? 32 : dtype == DType::kMxE5M2 ? 8192 : 1 / 64.0;
  const bool odd = nearest(dtype, largest) % 2 == 1;
  const double middle = largest + step / 2;
  return odd ? magnitude >= middle : magnitude > middle;
}

struct Block {
  uint8_t scale = 0;
  std::vector<uint8_t> numbers;
};

Block reference_block(DType dtype, const float* values) {
  double largest = 0;
  bool finite = true;
  for (size_t i = 0; i < kBlockNumbers; ++i) {
    finite = finite && std::isfinite(values[i]);
    largest = std::max(largest, std::fabs(double{values[i]}));
  }
  if (!finite) return {255, std::vector<uint8_t>(kBlockNumbers)};
  int exponent = -127;
  while (exponent < 127 && overflows(dtype, std::ldexp(largest, -exponent))) ++exponent;
  Block block{static_cast<uint8_t>(exponent + 127), {}};
  for (size_t i = 0; i < kBlockNumbers; ++i) {
    block.numbers.push_back(nearest(dtype, std::ldexp(double{values[i]}, -exponent)));
  }
  return block;
}

Bytes reference_pack(DType dtype, const float* values) {
  Bytes pack(kPackBytes);
  for (size_t b = 0; b < kPackBlocks; ++b) {
    const Block block = reference_block(dtype, values + b * kBlockNumbers);
    pack[b] = block.scale;
    for (size_t i = 0; i < kBlockNumbers; ++i) {
      pack[32 + 32 * b + 4 * (i % 8) + i / 8] = block.numbers[i];
    }
  }
  return pack;
}

std::vector<float> reference_unpack(DType dtype, const Bytes& pack) {
  std::vector<float> values;
  for (size_t i = 0; i < kPackNumbers; ++i) {
    const size_t b = i / kBlockNumbers, at = i % kBlockNumbers;
    const double number = value_of(dtype, pack[32 + 32 * b + 4 * (at % 8) + at / 8]);
    values.push_back(static_cast<float>(pack[b] == 255 ? kNan : std::ldexp(number, pack[b] - 127)));
  }
  return values;
}

std::vector<float> unpacked(DType dtype, const Bytes& pack) {
  std::vector<float> values(numbers_in(pack.size(), dtype));
  convert(pack.data(), dtype, values.data(), DType::kFloat32, values.size(), 1.0);
  return values;
}

// Compares bits. All NaN have the same ones.
void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << i;
    if (std::isnan(got[i])) continue;
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], 4), 0) << i << ": " << got[i] << " instead of "
                                                        << expected[i];
  }
}

// Blocks of very different sizes; some have only zeros, only subnormals, an infinity or a NaN.
std::vector<float> random_numbers(size_t count, uint64_t seed, bool specials = true) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values;
  while (values.size() < count) {
    const int kind = static_cast<int>(random() % 16);
    const int size = kind == 0 ? static_cast<int>(random() % 256) - 140 : kind == 1 ? -140 : 0;
    for (size_t i = 0; i < kBlockNumbers && values.size() < count; ++i) {
      double value = std::ldexp(normal(random), size + static_cast<int>(random() % 12));
      if (kind == 2) value = random() % 2 == 0 ? 0.0 : -0.0;
      if (kind == 3) value = std::ldexp(static_cast<double>(random() % 4096) - 2048, -7);  // ties
      value = std::clamp<double>(value, -3.4028234663852886e38, 3.4028234663852886e38);
      if (specials && kind == 4 && i == 7) value = random() % 2 == 0 ? kNan : -kInfinity;
      values.push_back(static_cast<float>(value));
    }
  }
  return values;
}

template <typename Test>
void on_every_level(const Test& test) {
  const KeepLevel keep;
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    SCOPED_TRACE(level);
    test();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Packs, EveryNumberWithEveryScale) {
  on_every_level([] {
    for (const DType dtype : kPacked) {
      for (int first = 0; first < 256; first += kPackBlocks) {
        for (int numbers = 0; numbers < 256; numbers += kBlockNumbers) {
          Bytes pack(kPackBytes);
          for (size_t b = 0; b < kPackBlocks; ++b) {
            pack[b] = static_cast<uint8_t>(first + static_cast<int>(b));
            for (size_t i = 0; i < kBlockNumbers; ++i) {
              pack[32 + 32 * b + i] = static_cast<uint8_t>(numbers + static_cast<int>(i));
            }
          }
          ASSERT_NO_FATAL_FAILURE(
              expect_same(unpacked(dtype, pack), reference_unpack(dtype, pack)))
              << name_of(dtype);
        }
      }
    }
  });
}

TEST(Packs, RoundToTheNearestNumberWithTheSmallestScaleThatFits) {
  for (const DType dtype : kPacked) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const std::vector<float> values = random_numbers(kPackNumbers, seed);
      const Bytes expected = reference_pack(dtype, values.data());
      on_every_level([&] {
        Bytes got(kPackBytes, 0xab);
        pack(values.data(), values.size(), dtype, got.data(), nullptr);
        ASSERT_EQ(got, expected) << name_of(dtype) << ", seed " << seed;
      });
    }
  }
}

TEST(Packs, TheLargestNumberOfABlockNeverOverflows) {
  for (const DType dtype : kPacked) {
    for (const double size : {1.0, 0x1p127, 0x1p-140}) {
      for (int step = 0; step < 256; step += 15) {
        std::vector<float> values(kPackNumbers);
        for (size_t b = 0; b < kPackBlocks; ++b) {
          const double mantissa = 1 + step / 256.0 + static_cast<double>(b) * 0x1p-20;
          values[b * kBlockNumbers + b] = static_cast<float>(size * mantissa);
        }
        const Bytes expected = reference_pack(dtype, values.data());
        on_every_level([&] {
          Bytes got(kPackBytes);
          pack(values.data(), values.size(), dtype, got.data(), nullptr);
          ASSERT_EQ(got, expected) << name_of(dtype) << ", " << size << ", step " << step;
        });
      }
    }
  }
}

TEST(Packs, WhatRoundingLosesStaysInTheResidual) {
  on_every_level([] {
    for (const DType dtype : kPacked) {
      for (const size_t count : {kPackNumbers, size_t{1}, size_t{33}, kPackNumbers - 1}) {
        const std::vector<float> values = random_numbers(count, 7 + count);
        std::vector<float> residual = random_numbers(count + 1, 99, false);
        const float guard = residual.back();
        std::vector<float> sums(kPackNumbers);
        for (size_t i = 0; i < count; ++i) sums[i] = values[i] + residual[i];
        Bytes got(kPackBytes);
        pack(values.data(), count, dtype, got.data(), residual.data());
        ASSERT_EQ(got, reference_pack(dtype, sums.data()));
        const std::vector<float> rounded = reference_unpack(dtype, got);
        std::vector<float> expected;
        for (size_t i = 0; i < count; ++i) {
          expected.push_back(std::isnan(rounded[i]) ? 0 : sums[i] - rounded[i]);
        }
        expected.push_back(guard);
        ASSERT_NO_FATAL_FAILURE(expect_same(residual, expected)) << name_of(dtype);
      }
    }
  });
}

// The mean of what is sent approaches the mean of what should be sent, whatever the format.
TEST(Packs, ErrorFeedbackLosesNothingInTheLongRun) {
  for (const DType dtype : kPacked) {
    std::vector<float> values = random_numbers(kPackNumbers, 3, false);
    for (float& value : values) value = std::clamp(value, -4.0f, 4.0f);
    std::vector<float> residual(kPackNumbers);
    std::vector<double> sums(kPackNumbers);
    Bytes sent(kPackBytes);
    constexpr int kRounds = 400;
    for (int round = 0; round < kRounds; ++round) {
      pack(values.data(), kPackNumbers, dtype, sent.data(), residual.data());
      const std::vector<float> got = unpacked(dtype, sent);
      for (size_t i = 0; i < kPackNumbers; ++i) sums[i] += got[i];
    }
    for (size_t i = 0; i < kPackNumbers; ++i) {
      ASSERT_NEAR(sums[i] / kRounds, values[i], 2.0 / kRounds) << name_of(dtype);
    }
  }
}

// Returns packs of all sources, and what they hold.
struct Sources {
  std::vector<Bytes> packs;
  std::vector<std::vector<float>> values;
  Sources(DType dtype, size_t n, size_t count, uint64_t seed) {
    for (size_t i = 0; i < n; ++i) {
      const std::vector<float> numbers = random_numbers(count, seed + i);
      Bytes& bytes = packs.emplace_back(bytes_for(count, dtype));
      for (size_t p = 0; p < count / kPackNumbers; ++p) {
        pack(numbers.data() + p * kPackNumbers, kPackNumbers, dtype, bytes.data() + p * kPackBytes,
             nullptr);
      }
      values.push_back(unpacked(dtype, bytes));
    }
  }
};

template <typename T>
std::vector<const void*> pointers_to(const std::vector<T>& arrays) {
  std::vector<const void*> pointers;
  for (const T& array : arrays) pointers.push_back(array.data());
  return pointers;
}

TEST(Packs, SumsAreThoseOfFloat32RoundedOnce) {
  constexpr size_t kCount = 2 * kPackNumbers;
  on_every_level([] {
    for (const DType dtype : kPacked) {
      for (const size_t n : {1u, 3u, 8u, 9u, 70u}) {
        for (const Stage& stage : {Stage{dtype, dtype, ReduceOp::kSum},
                                   Stage{dtype, dtype, ReduceOp::kAverage, 0.5, 3.0, 7.0}}) {
          const Sources sources(dtype, n, kCount, n);
          Stage wide = stage;
          wide.in = wide.out = DType::kFloat32;
          std::vector<float> sums(kCount);
          combine(pointers_to(sources.values).data(), n, sums.data(), kCount, wide);
          Bytes expected;
          for (size_t p = 0; p < 2; ++p) {
            const Bytes one = reference_pack(dtype, sums.data() + p * kPackNumbers);
            expected.insert(expected.end(), one.begin(), one.end());
          }
          Bytes got(2 * kPackBytes);
          combine(pointers_to(sources.packs).data(), n, got.data(), kCount, stage);
          ASSERT_EQ(got, expected) << name_of(dtype) << ", " << n << " sources";
          Bytes in_place = sources.packs[0];
          std::vector<const void*> pointers = pointers_to(sources.packs);
          pointers[0] = in_place.data();
          combine(pointers.data(), n, in_place.data(), kCount, stage);
          ASSERT_EQ(in_place, expected);
          // A server with more than eight contributors keeps partial sums in float32.
          Bytes from_wide(2 * kPackBytes);
          Stage last = stage;
          last.in = DType::kFloat32;
          combine(pointers_to(sources.values).data(), n, from_wide.data(), kCount, last);
          ASSERT_EQ(from_wide, expected);
          std::vector<float> to_wide(kCount);
          Stage first = stage;
          first.out = DType::kFloat32;
          combine(pointers_to(sources.packs).data(), n, to_wide.data(), kCount, first);
          ASSERT_NO_FATAL_FAILURE(expect_same(to_wide, sums));
        }
      }
    }
  });
}

TEST(Packs, OfSixteenBitFloatsAndBack) {
  on_every_level([] {
    for (const DType dtype : kPacked) {
      for (const DType half : {DType::kFloat16, DType::kBFloat16}) {
        const std::vector<float> values = random_numbers(kPackNumbers, 5);
        Bytes narrow(kPackNumbers * 2), got(kPackBytes);
        convert(values.data(), DType::kFloat32, narrow.data(), half, kPackNumbers, 1.0);
        convert(narrow.data(), half, got.data(), dtype, kPackNumbers, 1.0);
        std::vector<float> rounded(kPackNumbers);
        convert(narrow.data(), half, rounded.data(), DType::kFloat32, kPackNumbers, 1.0);
        ASSERT_EQ(got, reference_pack(dtype, rounded.data()));
        Bytes back(kPackNumbers * 2), expected(kPackNumbers * 2);
        convert(got.data(), dtype, back.data(), half, kPackNumbers, 1.0);
        const std::vector<float> wide = reference_unpack(dtype, got);
        convert(wide.data(), DType::kFloat32, expected.data(), half, kPackNumbers, 1.0);
        ASSERT_EQ(difference(back, expected, half), "");
      }
    }
  });
}

TEST(Packs, AreForSumsOfFloatsOnly) {
  EXPECT_TRUE(check_stage({DType::kMxE4M3, DType::kMxE4M3, ReduceOp::kAverage}).ok());
  EXPECT_TRUE(check_stage({DType::kBFloat16, DType::kMxInt8}).ok());
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    EXPECT_FALSE(check_stage({DType::kMxE4M3, DType::kMxE4M3, op}).ok());
  }
  EXPECT_FALSE(check_stage({DType::kFloat64, DType::kMxE4M3}).ok());
  EXPECT_FALSE(check_stage({DType::kInt8, DType::kMxInt8}).ok());
  EXPECT_FALSE(check_stage({static_cast<DType>(kNumWireDTypes), DType::kFloat32}).ok());
}

TEST(Packs, SizesAndNames) {
  EXPECT_EQ(bytes_for(0, DType::kMxE4M3), 0u);
  EXPECT_EQ(bytes_for(1, DType::kMxE4M3), kPackBytes);
  EXPECT_EQ(bytes_for(kPackNumbers + 1, DType::kMxE4M3), 2 * kPackBytes);
  EXPECT_EQ(numbers_in(2 * kPackBytes, DType::kMxE4M3), 2 * kPackNumbers);
  EXPECT_EQ(bytes_for(3, DType::kFloat16), 6u);
  for (const char* name : {"float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8"}) {
    EXPECT_EQ(name_of(*parse_wire_dtype(name)), std::string(name));
  }
  EXPECT_EQ(*parse_wire_dtype("fp8"), DType::kMxE4M3);
  for (const char* name : {"float64", "fp4", "", "fp8/", "/float32", "bfloat16/fp8", "fp8/int8"}) {
    EXPECT_FALSE(parse_wire_dtype(name).ok()) << name;
  }
  // An array cannot have them.
  EXPECT_EQ(*parse_dtype("int8"), DType::kInt8);
  EXPECT_FALSE(parse_dtype("fp8_e4m3").ok());
}

// Contributions travel in packs, and results in another dtype.
TEST(Packs, PairsHaveResultsOfTheirOwn) {
  const DType pair = *parse_wire_dtype("fp8/bfloat16");
  EXPECT_EQ(pair, *parse_wire_dtype("fp8_e4m3/bfloat16"));
  EXPECT_TRUE(is_packed(pair));
  EXPECT_EQ(result_of(pair), DType::kBFloat16);
  EXPECT_EQ(result_bytes(2 * kPackBytes, pair), 4 * kPackNumbers);
  for (int number = 0; number < kNumWireDTypes; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (is_packed(dtype)) {
      EXPECT_EQ(*parse_wire_dtype(name_of(dtype)), dtype);
    }
    if (dtype >= kFirstPair) continue;
    EXPECT_EQ(result_of(dtype), dtype);
    EXPECT_EQ(result_bytes(4096, dtype), 4096u);
  }
}

TEST(Packs, PairsRoundTheSumOnce) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr size_t kCount = 2 * kPackNumbers;
  for (const DType packed : kPacked) {
    std::vector<std::vector<char>> packs(3, std::vector<char>(2 * kPackBytes));
    std::vector<const void*> sources;
    for (auto& one : packs) {
      std::vector<float> values(kCount);
      for (float& value : values) value = normal(random);
      for (const size_t i : {0, 1}) {
        pack(&values[i * kPackNumbers], kPackNumbers, packed, &one[i * kPackBytes], nullptr);
      }
      sources.push_back(one.data());
    }
    for (const DType result : kResultDTypes) {
      const DType pair = *parse_wire_dtype(concat(name_of(packed), "/", name_of(result)));
      const size_t bytes = result_bytes(2 * kPackBytes, pair);
      std::vector<char> got(bytes), expected(bytes);
      std::vector<float> sum(kCount);
      for (const char* level : {"baseline", "avx2", "avx512"}) {
        if (!set_simd_level(level)) continue;
        combine(sources.data(), 3, sum.data(), kCount,
                {packed, DType::kFloat32, ReduceOp::kSum, 1.0, 3.0});
        convert(sum.data(), DType::kFloat32, expected.data(), result, kCount, 1.0);
        combine(sources.data(), 3, got.data(), kCount, whole(pair, {ReduceOp::kAverage}, 3));
        EXPECT_EQ(got, expected) << name_of(pair) << " " << level;
      }
    }
  }
}

}  // namespace
}  // namespace herring::reduce
