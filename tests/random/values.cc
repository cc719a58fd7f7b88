#include "tests/random/values.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/status.h"
#include "tests/random/random.h"

namespace herring::random_test {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

template <typename T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, Half> ||
                                 std::is_same_v<T, Brain>;

// Converts whole numbers and halves of small size only, so nothing is rounded or subnormal.
Half half_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value == 0) return {0};
  const uint32_t exponent = (bits >> 23 & 255) - 127 + 15;
  return {static_cast<uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff))};
}

Brain brain_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}

template <typename T>
T store(double value) {
  if constexpr (std::is_same_v<T, Half>) return half_of(static_cast<float>(value));
  if constexpr (std::is_same_v<T, Brain>) return brain_of(static_cast<float>(value));
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value);
  return T{};
}

// The index is mixed once for all ranks. Each rank then takes its own bits by another
// multiplication.
inline uint64_t place(const Values& values, uint64_t index) {
  uint64_t h = (index + 1) * 0x9e3779b97f4a7c15 ^ values.salt;
  return h ^ (h >> 32);
}

inline uint32_t bits_of(uint64_t place, uint32_t rank) {
  const uint64_t h = (place + rank * 0xd1b54a32d192ed03) * 0xbf58476d1ce4e5b9;
  return static_cast<uint32_t>(h >> 32);
}

// A range of `range` whole numbers, beginning with `least`.
struct Range {
  int64_t least;
  uint32_t range;
  int64_t factor = 1;
};

Range range_of(const Values& values) {
  const bool floating = is_float(values.dtype);
  const bool coarse = values.dtype == DType::kFloat16 || values.dtype == DType::kBFloat16;
  if (values.dtype == DType::kBool) return {0, 2};
  switch (values.op) {
    case ReduceOp::kSum: return floating ? Range{-4, 9} : Range{-90, 181};
    case ReduceOp::kAverage:
      if (values.divisor != 0) return {-1, 3, values.divisor};
      return coarse ? Range{-1, 3, 1} : Range{-900, 1801};
    case ReduceOp::kProduct:
      return floating || values.dtype != DType::kUInt8 ? Range{-1, 4} : Range{1, 3};
    default: return values.dtype == DType::kUInt8 ? Range{0, 201} : Range{-100, 201};
  }
}

inline int64_t value_of(const Range& range, const Values& values, uint64_t place, uint32_t rank) {
  if (values.lone != 0 && mix(place) % values.lone != rank) return 0;
  const uint32_t bits = bits_of(place, rank);
  if (values.op == ReduceOp::kProduct && range.least < 0) {
    return std::initializer_list<int64_t>{1, -1, 2, 1}.begin()[bits >> 30];
  }
  return (range.least + static_cast<int64_t>(uint64_t{bits} * range.range >> 32)) * range.factor;
}

template <typename T>
void fill_as(const Values& values, uint32_t rank, uint64_t first, uint64_t count, T* out) {
  const Range range = range_of(values);
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t value = value_of(range, values, place(values, first + i), rank);
    if constexpr (kIsFloat<T>) {
      out[i] = store<T>(static_cast<double>(value));
    } else {
      out[i] = static_cast<T>(value);
    }
  }
}

template <typename T>
void reduce_as(const Values& values, const std::vector<uint32_t>& ranks, uint64_t first,
               uint64_t count, T* out) {
  const Range range = range_of(values);
  const bool is_bool = values.dtype == DType::kBool;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = place(values, first + i);
    int64_t sum = 0;
    int factors = 0;  // how often prescale is applied
    for (size_t r = 0; r < ranks.size(); ++r) {
      const int64_t value = value_of(range, values, at, ranks[r]);
      ++factors;
      if (r == 0) {
        sum = value;
        continue;
      }
      switch (values.op) {
        case ReduceOp::kSum:
        case ReduceOp::kAverage: sum = is_bool ? (sum | value) : sum + value; break;
        case ReduceOp::kProduct: sum = is_bool ? (sum & value) : sum * value; break;
        case ReduceOp::kMin: sum = std::min(sum, value); break;
        case ReduceOp::kMax: sum = std::max(sum, value); break;
      }
    }
    if constexpr (kIsFloat<T>) {
      double total = static_cast<double>(sum);
      const int times = values.op == ReduceOp::kProduct ? factors : 1;
      for (int k = 0; k < times; ++k) total *= values.prescale;
      const double divisor = static_cast<double>(std::max<size_t>(ranks.size(), 1));
      if (values.op == ReduceOp::kAverage) {
        // This is the only rounding. It happens in the type itself, as in the core.
        total = values.dtype == DType::kFloat64
                    ? total / divisor
                    : static_cast<float>(total) / static_cast<float>(divisor);
      }
      out[i] = store<T>(total * values.postscale);
    } else {
      out[i] = static_cast<T>(sum);
    }
  }
}

// Calls `f` with a null pointer of the type that holds elements of `dtype`.
template <typename F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32: return f(static_cast<float*>(nullptr));
    case DType::kFloat64: return f(static_cast<double*>(nullptr));
    case DType::kFloat16: return f(static_cast<Half*>(nullptr));
    case DType::kBFloat16: return f(static_cast<Brain*>(nullptr));
    case DType::kInt8: return f(static_cast<int8_t*>(nullptr));
    case DType::kInt16: return f(static_cast<int16_t*>(nullptr));
    case DType::kInt32: return f(static_cast<int32_t*>(nullptr));
    case DType::kInt64: return f(static_cast<int64_t*>(nullptr));
    case DType::kUInt8:
    case DType::kBool: return f(static_cast<uint8_t*>(nullptr));
    case DType::kMxE4M3:  // only on their way
    case DType::kMxE5M2:
    case DType::kMxInt8: break;
  }
}

}  // namespace

void fill(const Values& values, uint32_t rank, uint64_t first, uint64_t count, void* out) {
  with_type(values.dtype, [&](auto* type) {
    fill_as(values, rank, first, count, static_cast<decltype(type)>(out));
  });
}

void reduce(const Values& values, const std::vector<uint32_t>& ranks, uint64_t first,
            uint64_t count, void* out) {
  with_type(values.dtype, [&](auto* type) {
    reduce_as(values, ranks, first, count, static_cast<decltype(type)>(out));
  });
}

std::string difference(DType dtype, const void* got, const void* expected, uint64_t count) {
  const size_t item = size_of(dtype);
  if (count == 0 || std::memcmp(got, expected, count * item) == 0) return {};
  const auto* a = static_cast<const unsigned char*>(got);
  const auto* b = static_cast<const unsigned char*>(expected);
  uint64_t wrong = 0, first = 0, last = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * item, b + i * item, item) == 0) continue;
    if (wrong++ == 0) first = i;
    last = i;
  }
  const auto hex = [item](const unsigned char* bytes) {
    std::string text = "0x";
    for (size_t i = item; i-- > 0;) {
      text += "0123456789abcdef"[bytes[i] >> 4];
      text += "0123456789abcdef"[bytes[i] & 15];
    }
    return text;
  };
  return concat(wrong, " of ", count, " elements of ", name_of(dtype), " are wrong, from ", first,
                " to ", last, "; element ", first, " is ", hex(a + first * item), ", not ",
                hex(b + first * item));
}

}  // namespace herring::random_test
