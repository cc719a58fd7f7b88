#include "reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace herring::reduce {
namespace {

// A binary floating-point format narrower than double.
struct Format {
  int precision;     // bits of the significand, the hidden one included
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number
  int width;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {11, -14, 15, 16};
    case DType::kBFloat16: return {8, -126, 127, 16};
    default: return {24, -126, 127, 32};
  }
}

bool is_signed_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kInt64; }

int64_t sign_extend(DType dtype, uint64_t bits) {
  const int shift = 64 - 8 * static_cast<int>(size_of(dtype));
  return static_cast<int64_t>(bits << shift) >> shift;
}

template <typename T>
T combine_two_floats(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  const bool a_first = a < b || (a == b && std::signbit(a) && !std::signbit(b));
  return (op == ReduceOp::kMin) == a_first ? a : b;
}

uint64_t combine_two_integers(DType dtype, ReduceOp op, uint64_t a, uint64_t b) {
  if (dtype == DType::kBool) {
    const bool either = op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kMax;
    return either ? (a != 0 || b != 0) : (a != 0 && b != 0);
  }
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  const bool a_first =
      is_signed_integer(dtype) ? sign_extend(dtype, a) < sign_extend(dtype, b) : a < b;
  return (op == ReduceOp::kMin) == a_first ? a : b;
}

// Pairs neighbours level by level. A value without a neighbour moves up unchanged.
template <typename T, typename Pair>
T tree(std::vector<T> values, Pair pair) {
  while (values.size() > 1) {
    std::vector<T> next;
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
      next.push_back(pair(values[i], values[i + 1]));
    }
    if (values.size() % 2 == 1) next.push_back(values.back());
    values = next;
  }
  return values[0];
}

template <typename T>
uint64_t combine_floats(const std::vector<uint64_t>& column, const Stage& stage) {
  std::vector<T> values;
  for (const uint64_t bits : column) {
    values.push_back(static_cast<T>(decode(stage.in, bits)) * static_cast<T>(stage.prescale));
  }
  const T sum = tree(values, [&](T a, T b) { return combine_two_floats(stage.op, a, b); });
  const T divided = sum / static_cast<T>(stage.divisor);
  return encode(stage.out, static_cast<double>(divided * static_cast<T>(stage.postscale)));
}

uint64_t mask_of(DType dtype) {
  return size_of(dtype) == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * size_of(dtype))) - 1;
}

}  // namespace

double decode(DType dtype, uint64_t bits) {
  if (dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const Format f = format_of(dtype);
  const int fraction_bits = f.precision - 1;
  const uint64_t fraction = bits & ((uint64_t{1} << fraction_bits) - 1);
  const int exponent =
      static_cast<int>(bits >> fraction_bits & ((uint64_t{1} << (f.width - f.precision)) - 1));
  const double sign = bits >> (f.width - 1) & 1 ? -1.0 : 1.0;
  if (exponent == f.max_exponent - f.min_exponent + 2) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const double significand =
      static_cast<double>(fraction) + (exponent == 0 ? 0.0 : std::ldexp(1.0, fraction_bits));
  return sign * std::ldexp(significand, f.min_exponent - fraction_bits + std::max(exponent - 1, 0));
}

uint64_t encode(DType dtype, double value) {
  if (dtype == DType::kFloat64) {
    if (std::isnan(value)) return 0x7ff8000000000000;
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  const Format f = format_of(dtype);
  const int fraction_bits = f.precision - 1;
  const uint64_t exponent_ones = f.max_exponent - f.min_exponent + 2;
  const uint64_t infinity = exponent_ones << fraction_bits;
  if (std::isnan(value)) return infinity | uint64_t{1} << (fraction_bits - 1);
  const uint64_t sign = static_cast<uint64_t>(std::signbit(value)) << (f.width - 1);
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0.0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  // `units` counts units of the last place at this exponent. nearbyint() rounds ties to even.
  const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  if (exponent > f.max_exponent) return sign | infinity;
  // Because the exponent is added, a carry out of the fraction runs into the exponent, up to
  // infinity.
  const uint64_t base = static_cast<uint64_t>(exponent - f.min_exponent) << fraction_bits;
  return sign | (base + static_cast<uint64_t>(units));
}

uint64_t get_bits(const Bytes& array, DType dtype, size_t index) {
  uint64_t bits = 0;
  std::memcpy(&bits, array.data() + index * size_of(dtype), size_of(dtype));
  return bits;
}

void set_bits(Bytes& array, DType dtype, size_t index, uint64_t bits) {
  std::memcpy(array.data() + index * size_of(dtype), &bits, size_of(dtype));
}

std::vector<Bytes> random_sources(DType dtype, size_t n, size_t count, bool specials,
                                  uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(dtype) * 101 + n);
  std::vector<Bytes> sources(n, Bytes(count * size_of(dtype)));
  for (Bytes& source : sources) {
    for (size_t i = 0; i < count; ++i) {
      uint64_t bits = random();
      if (dtype == DType::kBool && bits % 3 == 0) bits = 0;
      if (is_float(dtype)) {
        const double fraction = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
        const int exponent = static_cast<int>(bits % 9) - 4;
        double value = std::ldexp(bits & 512 ? -fraction : fraction, exponent);
        const int width = 8 * static_cast<int>(size_of(dtype));
        const uint64_t infinity = encode(dtype, std::numeric_limits<double>::infinity());
        const uint64_t sign = (bits >> 10 & 1) << (width - 1);
        bits = encode(dtype, value);
        if (specials && random() % 32 == 0) {
          const uint64_t choices[] = {
              infinity | sign,
              infinity | sign | (random() % 127 + 1),              // NaN with a payload
              (infinity + (infinity & (~infinity + 1)) / 2) | sign,  // quiet NaN
              (random() % 127 + 1) | sign,                         // subnormal
              (infinity - 1) | sign,                               // largest finite
              sign,                                                // zero
          };
          bits = choices[random() % 6];
        }
      }
      set_bits(source, dtype, i, bits);
    }
  }
  return sources;
}

Bytes reference_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage) {
  Bytes out(count * size_of(stage.out));
  for (size_t i = 0; i < count; ++i) {
    std::vector<uint64_t> column;
    for (const Bytes& source : sources) column.push_back(get_bits(source, stage.in, i));
    uint64_t result = 0;
    if (stage.in == DType::kFloat64) {
      result = combine_floats<double>(column, stage);
    } else if (is_float(stage.in)) {
      result = combine_floats<float>(column, stage);
    } else {
      if (stage.in == DType::kBool) {
        for (uint64_t& bits : column) bits = bits != 0;
      }
      result = tree(column, [&](uint64_t a, uint64_t b) {
                 return combine_two_integers(stage.in, stage.op, a, b) & mask_of(stage.in);
               });
    }
    set_bits(out, stage.out, i, result);
  }
  return out;
}

Bytes run_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage) {
  std::vector<Bytes> shifted;
  std::vector<const void*> pointers;
  for (const Bytes& source : sources) {
    const size_t shift = size_of(stage.in) * (shifted.size() % 3);
    Bytes copy(shift + source.size());
    if (!source.empty()) std::memcpy(copy.data() + shift, source.data(), source.size());
    shifted.push_back(std::move(copy));
    pointers.push_back(shifted.back().data() + shift);
  }
  const size_t guard = 2 * size_of(stage.out);
  Bytes out(count * size_of(stage.out) + 2 * guard, 0xa5);
  combine(pointers.data(), pointers.size(), out.data() + guard, count, stage);
  for (size_t i = 0; i < guard; ++i) {
    EXPECT_EQ(out[i], 0xa5) << "wrote before the output";
    EXPECT_EQ(out[out.size() - 1 - i], 0xa5) << "wrote past the output";
  }
  return Bytes(out.begin() + static_cast<ptrdiff_t>(guard),
               out.end() - static_cast<ptrdiff_t>(guard));
}

std::string difference(const Bytes& got, const Bytes& expected, DType dtype) {
  if (got == expected) return "";
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0;; ++i) {
    const uint64_t a = get_bits(got, dtype, i);
    const uint64_t b = get_bits(expected, dtype, i);
    if (a == b) continue;
    std::ostringstream text;
    text << "element " << i << " has bits 0x" << std::hex << a << ", expected 0x" << b;
    return text.str();
  }
}

std::string describe(const Stage& stage, size_t n, size_t count) {
  return concat(name_of(stage.op), " of ", n, " x ", count, " ", name_of(stage.in), " to ",
                name_of(stage.out), ", prescale ", stage.prescale, ", divisor ", stage.divisor,
                ", postscale ", stage.postscale, ", ", simd_level());
}

std::vector<const char*> available_levels() {
  const KeepLevel keep;
  std::vector<const char*> levels;
  for (const char* level : {"baseline", "avx2", "avx512"}) {
    if (set_simd_level(level)) levels.push_back(level);
  }
  return levels;
}

}  // namespace herring::reduce
