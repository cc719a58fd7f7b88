// Compiles the text of the kernels for the host. Its results must have the same bits as those of
// reduce::combine().
#include "device/cuda/kernels.cu"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "device/combination.h"
#include "reduce/reduce.h"
#include "tests/unit/device/standin_driver.h"

namespace herring::device {
namespace {

namespace kernels = herring_kernels;

static_assert(sizeof(Combination) == sizeof(kernels::Combination) &&
              offsetof(Combination, targets) == offsetof(kernels::Combination, targets) &&
              offsetof(Combination, command) == offsetof(kernels::Combination, command) &&
              offsetof(Combination, elements) == offsetof(kernels::Combination, elements) &&
              offsetof(Combination, postscale) == offsetof(kernels::Combination, postscale) &&
              offsetof(Combination, number_of_sources) ==
                  offsetof(kernels::Combination, number_of_sources));
static_assert(offsetof(Command, stop) == offsetof(kernels::Command, stop) &&
              offsetof(Command, active) == offsetof(kernels::Command, active) &&
              offsetof(Command, divisor) == offsetof(kernels::Command, divisor));
static_assert(kMostSources == kernels::kMostSources && kMostSources == reduce::kTreeGroup);

using KernelFunction = void (*)(const kernels::Combination&, const kernels::Command&,
                                kernels::U64 first, kernels::U64 step);

template <typename T>
KernelFunction of_type(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return kernels::combine<T, kernels::Sum>;
    case ReduceOp::kMin: return kernels::combine<T, kernels::Min>;
    case ReduceOp::kMax: return kernels::combine<T, kernels::Max>;
    case ReduceOp::kProduct: return kernels::combine<T, kernels::Product>;
  }
  return nullptr;
}

KernelFunction kernel_of(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32: return of_type<kernels::Float32>(op);
    case DType::kFloat64: return of_type<kernels::Float64>(op);
    case DType::kFloat16: return of_type<kernels::Float16>(op);
    case DType::kBFloat16: return of_type<kernels::BFloat16>(op);
    case DType::kInt8: return of_type<kernels::Int8>(op);
    case DType::kInt16: return of_type<kernels::Int16>(op);
    case DType::kInt32: return of_type<kernels::Int32>(op);
    case DType::kInt64: return of_type<kernels::Int64>(op);
    case DType::kUInt8: return of_type<kernels::UInt8>(op);
    case DType::kBool:
      return op == ReduceOp::kMin || op == ReduceOp::kProduct
                 ? kernels::combine<kernels::Bool, kernels::And>
                 : kernels::combine<kernels::Bool, kernels::Or>;
    case DType::kMxE4M3:  // no kernel adds them
    case DType::kMxE5M2:
    case DType::kMxInt8: break;
  }
  return nullptr;
}

class Kernels : public testing::TestWithParam<int> {};

// Random bits include NaN, infinities and subnormals. Some elements are made ordinary numbers, so
// that not every sum ends in one of those.
TEST_P(Kernels, HaveTheBitsOfTheHost) {
  const DType dtype = static_cast<DType>(GetParam());
  std::mt19937_64 random(42 + GetParam());
  constexpr size_t kCount = 1003;  // ends in single elements
  const size_t item = size_of(dtype);
  for (size_t n = 1; n <= kMostSources; ++n) {
    for (int number = 0; number < kNumReduceOps; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      if (op == ReduceOp::kAverage && !is_float(dtype)) continue;
      for (const size_t shift : {size_t{0}, item}) {  // whole words, and single elements only
        std::vector<std::vector<char>> sources;
        Combination what;
        Command command;
        std::vector<const void*> active;
        for (size_t s = 0; s < n; ++s) {
          std::vector<char>& bytes = sources.emplace_back((kCount + 1) * item + 16);
          for (char& byte : bytes) byte = static_cast<char>(random());
          if (dtype == DType::kFloat32 && s % 2 == 0) {
            for (size_t i = 0; i < kCount; i += 2) {
              const float value = static_cast<float>(random() % 2000) / 7 - 100;
              std::memcpy(bytes.data() + i * item, &value, item);
            }
          }
          char* const first = bytes.data() + shift;
          what.sources[s] = reinterpret_cast<uint64_t>(first);
          if (n > 1 && s == n / 2 && random() % 2 == 0) continue;  // this source has nothing to add
          command.active |= 1u << s;
          active.push_back(first);
        }
        what.number_of_sources = static_cast<uint32_t>(n);
        if (is_float(dtype) && random() % 2 == 0) {
          what.prescale = 0.3;
          command.divisor = 3;
          what.postscale = 1.7;
        }
        const reduce::Stage stage{dtype,         dtype, op, what.prescale, command.divisor,
                                  what.postscale};
        std::vector<char> expected((kCount + 1) * item), found(expected.size()), other(found);
        reduce::combine(active.data(), active.size(), expected.data(), kCount, stage);
        what.targets[0] = reinterpret_cast<uint64_t>(found.data());
        what.targets[1] = reinterpret_cast<uint64_t>(other.data());
        what.number_of_targets = 2;
        what.elements = kCount;
        kernels::Combination told;
        kernels::Command commanded;
        std::memcpy(&told, &what, sizeof told);
        commanded.stop = 0;
        commanded.active = command.active;
        commanded.divisor = command.divisor;
        for (kernels::U64 thread = 0; thread < 3; ++thread) {
          kernel_of(dtype, op)(told, commanded, thread, 3);
        }
        const std::string which = concat(name_of(dtype), " ", name_of(op), " of ", n, ", shift ",
                                         shift);
        ASSERT_EQ(std::memcmp(expected.data(), found.data(), kCount * item), 0) << which;
        ASSERT_EQ(std::memcmp(expected.data(), other.data(), kCount * item), 0) << which;
        commanded.stop = 1;
        std::vector<char> untouched(found.size(), 'x');
        told.targets[0] = reinterpret_cast<uint64_t>(untouched.data());
        told.number_of_targets = 1;
        kernel_of(dtype, op)(told, commanded, 0, 1);
        ASSERT_EQ(untouched, std::vector<char>(found.size(), 'x'));
        commanded.stop = 0;
        commanded.active = 0;
        kernel_of(dtype, op)(told, commanded, 0, 1);
        ASSERT_EQ(untouched[kCount * item - 1], 0);
        ASSERT_EQ(untouched[kCount * item], 'x');
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Kernels, testing::Range(0, kNumDTypes),
                         [](const auto& info) {
                           return std::string(name_of(static_cast<DType>(info.param)));
                         });

template <typename From, typename To>
void expect_bits_of_convert(DType from, DType to) {
  std::mt19937_64 random(7);
  constexpr size_t kCount = 1003;
  const size_t item = size_of(from), item_to = size_of(to);
  for (const bool aligned : {true, false}) {
    std::vector<char> source((kCount + 1) * item), expected((kCount + 1) * item_to, 'x');
    for (char& byte : source) byte = static_cast<char>(random());
    for (size_t i = 0; from == DType::kFloat32 && i < kCount; i += 3) {
      const float value = static_cast<float>(random() % 200000) / 3 - 1000;  // too much for float16
      std::memcpy(source.data() + i * item, &value, item);
    }
    std::vector<char> found(expected);
    const size_t at = aligned ? 0 : 1;
    kernels::Combination what = {};
    what.sources[0] = reinterpret_cast<uint64_t>(source.data() + at * item);
    what.targets[0] = reinterpret_cast<uint64_t>(found.data() + at * item_to);
    what.number_of_sources = what.number_of_targets = 1;
    what.elements = kCount - at;
    what.prescale = what.postscale = 1.0;
    reduce::convert(source.data() + at * item, from, expected.data() + at * item_to, to,
                    kCount - at, 1.0);
    for (kernels::U64 thread = 0; thread < 3; ++thread) {
      kernels::combine<From, kernels::Sum, To>(what, kernels::undivided(), thread, 3);
    }
    ASSERT_EQ(expected, found) << name_of(from) << " to " << name_of(to) << ", shift " << at;
  }
}

TEST(Casts, HaveTheBitsOfTheHost) {
  expect_bits_of_convert<kernels::Float32, kernels::Float16>(DType::kFloat32, DType::kFloat16);
  expect_bits_of_convert<kernels::Float32, kernels::BFloat16>(DType::kFloat32, DType::kBFloat16);
  expect_bits_of_convert<kernels::Float16, kernels::Float32>(DType::kFloat16, DType::kFloat32);
  expect_bits_of_convert<kernels::BFloat16, kernels::Float32>(DType::kBFloat16, DType::kFloat32);
}

}  // namespace
}  // namespace herring::device
