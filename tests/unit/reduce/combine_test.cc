#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reference.h"

namespace herring::reduce {
namespace {

constexpr size_t kSourceCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
// These counts are below, at and above every vector width, and above one block of every accumulator
// type.
constexpr size_t kElementCounts[] = {0, 1, 3, 15, 17, 63, 65, 129, 2501};

// Runs combine() on every SIMD level and compares the results with the reference.
void expect_reference(const std::vector<Bytes>& sources, size_t count, const Stage& stage) {
  const KeepLevel keep;
  ASSERT_TRUE(check_stage(stage).ok()) << check_stage(stage).message();
  const Bytes expected = reference_combine(sources, count, stage);
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    ASSERT_EQ(difference(run_combine(sources, count, stage), expected, stage.out), "")
        << describe(stage, sources.size(), count);
  }
}

class CombineTest : public testing::TestWithParam<DType> {};

TEST_P(CombineTest, EqualsReferenceForEveryOpAndSourceCount) {
  for (const ReduceOp op : kAllOps) {
    const Stage stage = {GetParam(), GetParam(), op};
    if (!check_stage(stage).ok()) continue;
    for (const size_t n : kSourceCounts) {
      for (const size_t count : kElementCounts) {
        if (count > 1000 && n % 2 == 0) continue;  // keep the slow reference short
        expect_reference(random_sources(GetParam(), n, count, count % 4 != 1, count), count, stage);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CombineTest, EqualsReferenceWithManySources) {
  for (const size_t n : {63, 64, 65, 130, 513}) {
    const Stage stage = {GetParam(), GetParam(), ReduceOp::kSum};
    expect_reference(random_sources(GetParam(), n, 37, false, n), 37, stage);
  }
}

TEST_P(CombineTest, OutputMayBeAnySource) {
  const KeepLevel keep;
  constexpr size_t kCount = 1301;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (const size_t n : {1, 2, 5, 8, 9, 17}) {
      const Stage stage = {GetParam(), GetParam(), op};
      const std::vector<Bytes> sources = random_sources(GetParam(), n, kCount, true, n);
      const Bytes expected = reference_combine(sources, kCount, stage);
      for (const char* level : available_levels()) {
        ASSERT_TRUE(set_simd_level(level));
        for (size_t target = 0; target < n; ++target) {
          std::vector<Bytes> copies = sources;
          std::vector<const void*> pointers;
          for (const Bytes& copy : copies) pointers.push_back(copy.data());
          combine(pointers.data(), n, copies[target].data(), kCount, stage);
          ASSERT_EQ(difference(copies[target], expected, GetParam()), "")
              << describe(stage, n, kCount) << ", into source " << target;
        }
      }
    }
  }
}

TEST_P(CombineTest, StepsOfTreeGroupsGiveTheBitsOfOneCall) {
  const KeepLevel keep;
  constexpr size_t kCount = 261;
  const DType accumulator = accumulator_of(GetParam());
  const bool scaled = is_float(GetParam());
  for (const ReduceOp op : kAllOps) {
    Stage whole = {GetParam(), GetParam(), op};
    if (!check_stage(whole).ok()) continue;
    if (scaled) whole = {GetParam(), GetParam(), op, 0.3, 3.0, 0.7};
    Stage first = {GetParam(), accumulator, op, whole.prescale};
    Stage second = {accumulator, GetParam(), op, 1.0, whole.divisor, whole.postscale};
    for (const size_t n : {1, 8, 9, 16, 17, 33, 64}) {
      const std::vector<Bytes> sources = random_sources(GetParam(), n, kCount, true, n + 7);
      for (const char* level : available_levels()) {
        ASSERT_TRUE(set_simd_level(level));
        std::vector<Bytes> groups;
        for (size_t i = 0; i < n; i += kTreeGroup) {
          const auto begin = sources.begin() + static_cast<ptrdiff_t>(i);
          const auto end = begin + static_cast<ptrdiff_t>(std::min(kTreeGroup, n - i));
          groups.push_back(run_combine(std::vector<Bytes>(begin, end), kCount, first));
        }
        ASSERT_EQ(difference(run_combine(groups, kCount, second),
                             run_combine(sources, kCount, whole), GetParam()),
                  "")
            << describe(whole, n, kCount);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CombineTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Combine, ScalesAndConvertsAsTheReference) {
  const Stage factors[] = {
      {.prescale = 0.125, .divisor = 1.0, .postscale = 1.0},
      {.prescale = 1.0, .divisor = 8.0, .postscale = 1.0},
      {.prescale = 1.0, .divisor = 3.0, .postscale = 1.0},
      {.prescale = 1.0, .divisor = 1.0, .postscale = -0.1},
      {.prescale = 0.1, .divisor = -7.0, .postscale = 1e3},
      {.prescale = 0.0, .divisor = 1.0, .postscale = 0.0},
  };
  for (const DType in : kFloatDTypes) {
    for (const DType out : kFloatDTypes) {
      for (const ReduceOp op : kAllOps) {
        for (Stage stage : factors) {
          stage.in = in;
          stage.out = out;
          stage.op = op;
          for (const size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
            expect_reference(random_sources(in, n, 45, true, n), 45, stage);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Combine, ConvertsInPlaceBetweenTypesOfOneSize) {
  const KeepLevel keep;
  const Stage stage = {DType::kFloat16, DType::kBFloat16, ReduceOp::kMin};
  for (const size_t n : {1, 3, 9}) {
    const std::vector<Bytes> sources = random_sources(stage.in, n, 1501, true, 5);
    const Bytes expected = reference_combine(sources, 1501, stage);
    for (const char* level : available_levels()) {
      ASSERT_TRUE(set_simd_level(level));
      for (size_t target = 0; target < n; ++target) {
        std::vector<Bytes> copies = sources;
        std::vector<const void*> pointers;
        for (const Bytes& copy : copies) pointers.push_back(copy.data());
        combine(pointers.data(), n, copies[target].data(), 1501, stage);
        ASSERT_EQ(difference(copies[target], expected, stage.out), "") << level;
      }
    }
  }
}

// These values are worked out by hand, so that a mistake in the reference shows as well.

Bytes floats(std::initializer_list<float> values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

float sum_of(std::initializer_list<float> values) {
  std::vector<Bytes> sources;
  for (const float value : values) sources.push_back(floats({value}));
  const Bytes out = run_combine(sources, 1, {});
  float result;
  std::memcpy(&result, out.data(), sizeof(result));
  return result;
}

TEST(Combine, AddsInATreeOfAdjacentPairs) {
  const float big = 0x1p30f;
  EXPECT_EQ(sum_of({big, 1, -big, 1}), 0.0f);       // (big + 1) + (-big + 1); a chain gives 1
  EXPECT_EQ(sum_of({1, big, -big}), 0.0f);          // (1 + big) + -big
  EXPECT_EQ(sum_of({big, -big, 1}), 1.0f);          // (big + -big) + 1
  EXPECT_EQ(sum_of({1, 1, big, -big, 1}), 3.0f);    // ((1 + 1) + (big + -big)) + 1
  EXPECT_EQ(sum_of({1, 1, 1, big, -big}), 0.0f);    // ((1 + 1) + (1 + big)) + -big
  EXPECT_EQ(sum_of({1, 1, 1, 1, 1, 1, 1, 1, 1}), 9.0f);
}

TEST(Combine, NanIsCanonicalAndSpreadsThroughMinAndMax) {
  const KeepLevel keep;
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    for (const DType dtype : kFloatDTypes) {
      const uint64_t canonical = dtype == DType::kFloat32   ? 0x7fc00000
                                 : dtype == DType::kFloat64 ? 0x7ff8000000000000
                                 : dtype == DType::kFloat16 ? 0x7e00
                                                            : 0x7fc0;
      const uint64_t sign = uint64_t{1} << (8 * size_of(dtype) - 1);
      const uint64_t one = encode(dtype, 1.0);
      const uint64_t nans[] = {canonical, canonical | sign | 5, (canonical & (canonical << 1)) | 1};
      for (const ReduceOp op : kAllOps) {
        for (const uint64_t nan : nans) {
          for (const auto& pair : {std::pair(nan, one), std::pair(one, nan), std::pair(nan, nan)}) {
            std::vector<Bytes> sources(2, Bytes(size_of(dtype)));
            set_bits(sources[0], dtype, 0, pair.first);
            set_bits(sources[1], dtype, 0, pair.second);
            EXPECT_EQ(get_bits(run_combine(sources, 1, {dtype, dtype, op}), dtype, 0), canonical)
                << describe({dtype, dtype, op}, 2, 1) << ", NaN " << std::hex << nan;
          }
        }
        Bytes alone(size_of(dtype));
        set_bits(alone, dtype, 0, nans[1]);
        EXPECT_EQ(get_bits(run_combine({alone}, 1, {dtype, dtype, op}), dtype, 0), canonical);
      }
    }
  }
}

TEST(Combine, MinAndMaxOrderZeroesWhateverTheirOrder) {
  const KeepLevel keep;
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    for (const auto& sources : {std::vector<Bytes>{floats({0.0f}), floats({-0.0f})},
                                std::vector<Bytes>{floats({-0.0f}), floats({0.0f})}}) {
      const DType f = DType::kFloat32;
      EXPECT_EQ(run_combine(sources, 1, {f, f, ReduceOp::kMin}), floats({-0.0f}));
      EXPECT_EQ(run_combine(sources, 1, {f, f, ReduceOp::kMax}), floats({0.0f}));
      EXPECT_EQ(run_combine(sources, 1, {f, f, ReduceOp::kSum}), floats({0.0f}));
    }
    EXPECT_EQ(run_combine({floats({-0.0f}), floats({-0.0f})}, 1, {}), floats({-0.0f}));
  }
}

TEST(Combine, SixteenBitSumsRoundOnce) {
  // 256 + 0.75 + 0.75 is 257.5, which rounds to 258. Rounded after each addition, bfloat16 (spacing
  // 2) would stay at 256.
  std::vector<Bytes> sources(3, Bytes(2));
  set_bits(sources[0], DType::kBFloat16, 0, encode(DType::kBFloat16, 256));
  set_bits(sources[1], DType::kBFloat16, 0, encode(DType::kBFloat16, 0.75));
  set_bits(sources[2], DType::kBFloat16, 0, encode(DType::kBFloat16, 0.75));
  const Stage stage = {DType::kBFloat16, DType::kBFloat16, ReduceOp::kSum};
  EXPECT_EQ(decode(DType::kBFloat16, get_bits(run_combine(sources, 1, stage), stage.out, 0)), 258);
}

TEST(Combine, BooleansAreOrAndAnd) {
  const std::vector<Bytes> sources = {{0, 0, 7, 128}, {0, 2, 0, 1}};
  const DType b = DType::kBool;
  EXPECT_EQ(run_combine(sources, 4, {b, b, ReduceOp::kSum}), (Bytes{0, 1, 1, 1}));
  EXPECT_EQ(run_combine(sources, 4, {b, b, ReduceOp::kMax}), (Bytes{0, 1, 1, 1}));
  EXPECT_EQ(run_combine(sources, 4, {b, b, ReduceOp::kMin}), (Bytes{0, 0, 0, 1}));
  EXPECT_EQ(run_combine(sources, 4, {b, b, ReduceOp::kProduct}), (Bytes{0, 0, 0, 1}));
  EXPECT_EQ(run_combine({sources[0]}, 4, {b, b, ReduceOp::kMin}), (Bytes{0, 0, 1, 1}));
}

TEST(Combine, IntegersWrapAndCompareWithTheirSign) {
  const std::vector<Bytes> sources = {{200, 255, 1}, {100, 1, 128}};
  const DType u = DType::kUInt8;
  const DType i = DType::kInt8;
  EXPECT_EQ(run_combine(sources, 3, {u, u, ReduceOp::kSum}), (Bytes{44, 0, 129}));
  EXPECT_EQ(run_combine(sources, 3, {i, i, ReduceOp::kProduct}), (Bytes{32, 255, 128}));
  EXPECT_EQ(run_combine(sources, 3, {u, u, ReduceOp::kMax}), (Bytes{200, 255, 128}));
  EXPECT_EQ(run_combine(sources, 3, {i, i, ReduceOp::kMax}), (Bytes{100, 1, 1}));
}

#if defined(__x86_64__)
TEST(Combine, IgnoresAndRestoresTheCallersFloatMode) {
  const KeepLevel keep;
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<Bytes> sources = {floats({tiny, 1.0f}), floats({tiny, 0x1p-24f})};
  const Bytes expected = floats({2 * tiny, 1.0f});
  const Bytes half = Bytes{3, 0};  // 3 * 2^-24
  const unsigned before = _mm_getcsr();
  for (const char* level : available_levels()) {
    ASSERT_TRUE(set_simd_level(level));
    // The mode flushes to zero, treats denormals as zero and rounds up.
    const unsigned odd_mode = (before & ~0x3fu) | 0x8000 | 0x0040 | 0x4000;
    Bytes out(8), widened(4), narrowed(2);
    const void* pointers[] = {sources[0].data(), sources[1].data()};
    _mm_setcsr(odd_mode);
    combine(pointers, 2, out.data(), 2, {});
    convert(half.data(), DType::kFloat16, widened.data(), DType::kFloat32, 1, 1.0);
    convert(widened.data(), DType::kFloat32, narrowed.data(), DType::kFloat16, 1, 1.0);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & ~0x3fu, odd_mode) << level;
    EXPECT_EQ(out, expected) << level;
    EXPECT_EQ(widened, floats({0x3p-24f})) << level;
    EXPECT_EQ(narrowed, half) << level;
  }
}
#endif

TEST(SimdLevel, UnknownLevelIsRefusedAndChangesNothing) {
  const std::string before = simd_level();
  EXPECT_FALSE(set_simd_level("mmx"));
  EXPECT_EQ(simd_level(), before);
}

// Each death test runs in a fresh process, where no level has been picked yet.
TEST(SimdLevelDeathTest, EnvironmentCapsIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("HERRING_SIMD", "baseline", 1);
        std::exit(std::strcmp(simd_level(), "baseline") == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        setenv("HERRING_SIMD", "avx2", 1);
        std::exit(std::strcmp(simd_level(), "avx512") != 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace herring::reduce
