#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "reference.h"

namespace herring::reduce {
namespace {

Bytes run_convert(const Bytes& in, DType from, DType to, double scale = 1.0) {
  const size_t count = in.size() / size_of(from);
  Bytes out(count * size_of(to));
  convert(in.data(), from, out.data(), to, count, scale);
  return out;
}

// Converts on every SIMD level and compares the results with the reference's arithmetic.
void expect_conversion(const Bytes& in, DType from, DType to) {
  const KeepLevel keep;
  const size_t count = in.size() / size_of(from);
  Bytes expected(count * size_of(to));
  for (size_t i = 0; i < count; ++i) {
    set_bits(expected, to, i, encode(to, decode(from, get_bits(in, from, i))));
  }
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    ASSERT_EQ(difference(run_convert(in, from, to), expected, to), "")
        << name_of(from) << " to " << name_of(to) << ", " << level;
  }
}

Bytes every_pattern() {
  Bytes all(65536 * 2);
  for (uint64_t i = 0; i < 65536; ++i) set_bits(all, DType::kFloat16, i, i);
  return all;
}

TEST(Convert, EverySixteenBitPatternToEveryFloatType) {
  for (const DType from : {DType::kFloat16, DType::kBFloat16}) {
    for (const DType to : kFloatDTypes) expect_conversion(every_pattern(), from, to);
  }
}

TEST(Convert, EverySixteenBitPatternSurvivesTheWayThroughWiderTypes) {
  for (const DType narrow : {DType::kFloat16, DType::kBFloat16}) {
    for (const DType wide : {DType::kFloat32, DType::kFloat64}) {
      const Bytes in = every_pattern();
      const Bytes back = run_convert(run_convert(in, narrow, wide), wide, narrow);
      for (uint64_t i = 0; i < 65536; ++i) {
        const bool nan = std::isnan(decode(narrow, i));
        ASSERT_EQ(get_bits(back, narrow, i),
                  nan ? encode(narrow, std::numeric_limits<double>::quiet_NaN()) : i);
      }
    }
  }
}

// Tests the value halfway between every two neighbours, and the next floats (or doubles) below and
// above.
TEST(Convert, RoundsTiesToEvenAtEverySixteenBitValue) {
  for (const DType narrow : {DType::kFloat16, DType::kBFloat16}) {
    const uint64_t infinity = encode(narrow, std::numeric_limits<double>::infinity());
    for (const DType wide : {DType::kFloat32, DType::kFloat64}) {
      Bytes in(infinity * 8 * size_of(wide));
      size_t i = 0;
      for (uint64_t bits = 0; bits < infinity; ++bits) {
        const double low = decode(narrow, bits);
        // The value after the largest is infinity, so the last step is doubled instead.
        const double high =
            bits + 1 < infinity ? decode(narrow, bits + 1) : 2 * low - decode(narrow, bits - 1);
        const double middle = low / 2 + high / 2;
        const uint64_t centre = encode(wide, middle);
        for (const uint64_t pattern : {centre - 1, centre, centre + 1, encode(wide, low)}) {
          set_bits(in, wide, i++, pattern);
          set_bits(in, wide, i++, pattern | uint64_t{1} << (8 * size_of(wide) - 1));
        }
      }
      expect_conversion(in, wide, narrow);
    }
  }
}

TEST(Convert, RandomBitPatterns) {
  std::mt19937_64 random(1);
  for (const DType from : {DType::kFloat32, DType::kFloat64}) {
    Bytes in(200000 * size_of(from));
    for (size_t i = 0; i < 200000; ++i) {
      uint64_t bits = random();
      // Every other float64 lies within float32's range of exponents.
      if (from == DType::kFloat64 && i % 2 == 0) {
        bits = encode(from, std::ldexp(1.0 + static_cast<double>(bits >> 12) * 0x1p-52,
                                       static_cast<int>(bits % 320) - 170));
      }
      set_bits(in, from, i, bits);
    }
    for (const DType to : kFloatDTypes) expect_conversion(in, from, to);
  }
}

TEST(Convert, Float64ToSixteenBitsRoundsOnce) {
  // This value is just above the middle of 1 and the next half. Converted through float32, it would
  // become the middle and then round down to even.
  Bytes in(8);
  set_bits(in, DType::kFloat64, 0, encode(DType::kFloat64, 1.0 + 0x1p-11 + 0x1p-40));
  const Bytes half = run_convert(in, DType::kFloat64, DType::kFloat16);
  EXPECT_EQ(decode(DType::kFloat16, get_bits(half, DType::kFloat16, 0)), 1.0 + 0x1p-10);
  set_bits(in, DType::kFloat64, 0, encode(DType::kFloat64, 1.0 + 0x1p-8 + 0x1p-40));
  const Bytes brain = run_convert(in, DType::kFloat64, DType::kBFloat16);
  EXPECT_EQ(decode(DType::kBFloat16, get_bits(brain, DType::kBFloat16, 0)), 1.0 + 0x1p-7);
}

TEST(Convert, Scales) {
  Bytes in(3 * 4);
  for (size_t i = 0; i < 3; ++i) set_bits(in, DType::kFloat32, i, encode(DType::kFloat32, 1.0 + i));
  const Bytes out = run_convert(in, DType::kFloat32, DType::kBFloat16, 0.25);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(decode(DType::kBFloat16, get_bits(out, DType::kBFloat16, i)), (1.0 + i) / 4);
  }
}

}  // namespace
}  // namespace herring::reduce
