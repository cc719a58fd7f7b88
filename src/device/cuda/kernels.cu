// Sums on a GPU, with the bits of reduce::combine(). NVRTC compiles this text for the GPU at hand;
// the tests compile it for the host as well. Whoever compiles it may define
//   HERRING_TYPE       an element type below, such as Float32
//   HERRING_OPERATOR   Sum, Product, Min, Max, Or or And
// and gets the kernel herring_combine for these. Fused multiply-adds must be off.

#if defined(__CUDACC__)
#define HERRING_INLINE __device__ __forceinline__
#else
#define HERRING_INLINE inline __attribute__((always_inline))
#endif

namespace herring_kernels {

typedef unsigned char U8;
typedef unsigned short U16;
typedef unsigned int U32;
typedef unsigned long long U64;
static_assert(sizeof(U16) == 2 && sizeof(U32) == 4 && sizeof(U64) == 8, "widths");

constexpr int kMostSources = 8;  // reduce::kTreeGroup

// The layout of device::Command, which is read when the kernel begins.
struct Command {
  U32 stop;      // not 0: the kernel touches nothing
  U32 active;    // bit i: source i counts
  double divisor;
};

// The layout of device::Combination.
struct Combination {
  U64 sources[kMostSources];
  U64 targets[kMostSources];
  U64 command;
  U64 elements;
  double prescale, postscale;
  U32 number_of_sources, number_of_targets;
};

template <typename To, typename From>
HERRING_INLINE To bits_of(From from) {
  union {
    From from;
    To to;
  } both;
  both.from = from;
  return both.to;
}

HERRING_INLINE float canonical(float v) { return v != v ? bits_of<float>(0x7fc00000u) : v; }
HERRING_INLINE double canonical(double v) {
  return v != v ? bits_of<double>(0x7ff8000000000000ull) : v;
}

// Element types. Memory holds Bits; sums are computed in Accumulator.
template <typename Word, typename Value>
struct Float {
  typedef Word Bits;
  typedef Value Accumulator;
  static constexpr bool kFloat = true;
  static HERRING_INLINE Value load(Bits b) { return bits_of<Value>(b); }
  static HERRING_INLINE Bits store(Value v) { return bits_of<Word>(v); }
};
typedef Float<U32, float> Float32;
typedef Float<U64, double> Float64;

struct Float16 {
  typedef U16 Bits;
  typedef float Accumulator;
  static constexpr bool kFloat = true;
  static HERRING_INLINE float load(Bits half) {
    const U32 magnitude = (half & 0x7fffu) << 13;
    // The exponent biases differ by 112. A multiplication corrects that, and normalizes subnormals.
    const U32 finite = bits_of<U32>(bits_of<float>(magnitude) * 0x1p112f);
    const U32 result = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
    return bits_of<float>(result | (half & 0x8000u) << 16);
  }
  // Rounds to nearest even. A NaN must be canonical.
  static HERRING_INLINE Bits store(float v) {
    const U32 bits = bits_of<U32>(v), magnitude = bits & 0x7fffffffu;
    const U32 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // 0.5 has the spacing of half's subnormals, so the addition rounds at the right bit.
    const U32 subnormal = bits_of<U32>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000u;
    U32 result = magnitude < 0x38800000u ? subnormal : normal;
    if (magnitude >= 0x47800000u) result = 0x7c00u;
    if (magnitude > 0x7f800000u) result = 0x7e00u;
    return static_cast<Bits>(result | (bits >> 16 & 0x8000u));
  }
};

struct BFloat16 {
  typedef U16 Bits;
  typedef float Accumulator;
  static constexpr bool kFloat = true;
  static HERRING_INLINE float load(Bits b) { return bits_of<float>(static_cast<U32>(b) << 16); }
  // Rounds to nearest even. A NaN must be canonical: the carry could turn it into infinity.
  static HERRING_INLINE Bits store(float v) {
    const U32 bits = bits_of<U32>(v);
    return static_cast<Bits>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};

// Sums and products wrap around. Signed tells how values are compared.
template <typename Unsigned, typename Order>
struct Integer {
  typedef Unsigned Bits;
  typedef Unsigned Accumulator;
  typedef Order Signed;
  static constexpr bool kFloat = false;
  static HERRING_INLINE Bits load(Bits b) { return b; }
  static HERRING_INLINE Bits store(Bits v) { return v; }
};
typedef Integer<U8, signed char> Int8;
typedef Integer<U16, short> Int16;
typedef Integer<U32, int> Int32;
typedef Integer<U64, long long> Int64;
typedef Integer<U8, U8> UInt8;

struct Bool : Integer<U8, U8> {
  static HERRING_INLINE Bits load(Bits b) { return b != 0; }
};

template <typename T>
using Accumulator = typename T::Accumulator;

struct Sum {
  template <typename T>
  static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
    return static_cast<Accumulator<T>>(a + b);
  }
};

struct Product {
  template <typename T>
  static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
    // Computes in unsigned int at least: shorter types would be widened to int, which may overflow.
    return static_cast<Accumulator<T>>(1u * a * b);
  }
};
template <>
HERRING_INLINE float Product::apply<Float32>(float a, float b) { return a * b; }
template <>
HERRING_INLINE double Product::apply<Float64>(double a, double b) { return a * b; }
template <>
HERRING_INLINE float Product::apply<Float16>(float a, float b) { return a * b; }
template <>
HERRING_INLINE float Product::apply<BFloat16>(float a, float b) { return a * b; }

// Floats: a NaN wins, and -0 counts as less than +0.
template <bool kLess>
HERRING_INLINE float extreme(float a, float b) {
  if (a != a) return a;
  if (a == b) {
    const U32 x = bits_of<U32>(a), y = bits_of<U32>(b);
    return bits_of<float>(kLess ? x | y : x & y);
  }
  return (kLess ? a < b : a > b) ? a : b;  // a NaN in b gives b
}
template <bool kLess>
HERRING_INLINE double extreme(double a, double b) {
  if (a != a) return a;
  if (a == b) {
    const U64 x = bits_of<U64>(a), y = bits_of<U64>(b);
    return bits_of<double>(kLess ? x | y : x & y);
  }
  return (kLess ? a < b : a > b) ? a : b;
}

template <bool kLess>
struct Extreme {
  template <typename T, bool kFloat = T::kFloat>
  struct Of {
    static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
      return extreme<kLess>(a, b);
    }
  };
  template <typename T>
  struct Of<T, false> {
    static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
      const typename T::Signed x = static_cast<typename T::Signed>(a),
                               y = static_cast<typename T::Signed>(b);
      return (kLess ? x < y : x > y) ? a : b;
    }
  };
  template <typename T>
  static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
    return Of<T>::apply(a, b);
  }
};
typedef Extreme<true> Min;
typedef Extreme<false> Max;

struct Or {
  template <typename T>
  static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
    return a | b;
  }
};

struct And {
  template <typename T>
  static HERRING_INLINE Accumulator<T> apply(Accumulator<T> a, Accumulator<T> b) {
    return a & b;
  }
};

// The factors, in the type in which they are applied. Floats are always scaled, because a factor of
// 1 changes no bit.
template <typename T, bool kFloat = T::kFloat>
struct Factors {
  typedef Accumulator<T> Value;
  HERRING_INLINE Factors(const Combination& what, double divisor)
      : prescale(static_cast<Value>(what.prescale)),
        divisor(static_cast<Value>(divisor)),
        postscale(static_cast<Value>(what.postscale)) {}
  HERRING_INLINE Value before(Value v) const { return v * prescale; }
  HERRING_INLINE Value after(Value v) const { return canonical(v / divisor * postscale); }
  Value prescale, divisor, postscale;
};
template <typename T>
struct Factors<T, false> {
  typedef Accumulator<T> Value;
  HERRING_INLINE Factors(const Combination&, double) {}
  HERRING_INLINE Value before(Value v) const { return v; }
  HERRING_INLINE Value after(Value v) const { return v; }
};

// Combines the sources' elements at one position in the fixed tree: an aligned power of two on the
// left, the rest on the right.
template <typename T, typename Operator, int kFirst, int kCount>
struct Tree {
  static constexpr int kLeft = kCount > 4 ? 4 : kCount > 2 ? 2 : 1;
  static HERRING_INLINE Accumulator<T> of(const typename T::Bits* elements,
                                          const Factors<T>& factors) {
    return Operator::template apply<T>(
        Tree<T, Operator, kFirst, kLeft>::of(elements, factors),
        Tree<T, Operator, kFirst + kLeft, kCount - kLeft>::of(elements, factors));
  }
};
template <typename T, typename Operator, int kFirst>
struct Tree<T, Operator, kFirst, 1> {
  static HERRING_INLINE Accumulator<T> of(const typename T::Bits* elements,
                                          const Factors<T>& factors) {
    return factors.before(T::load(elements[kFirst]));
  }
};

struct alignas(16) Words {
  U64 word[2];
};

// A unit of 16 bytes, or of one element.
template <typename T, typename Unit>
struct Lanes {
  static constexpr int kLanes = sizeof(Unit) / sizeof(typename T::Bits);
  union {
    Unit unit;
    typename T::Bits element[kLanes];
  };
};

template <typename T, typename Operator, typename Unit, int kSources>
HERRING_INLINE void combine_units(const Combination& what, const U64* sources, double divisor,
                                  U64 first, U64 step, U64 units, U64 offset) {
  constexpr int kLanes = Lanes<T, Unit>::kLanes;
  const Factors<T> factors(what, divisor);
  for (U64 i = first; i < units; i += step) {
    Lanes<T, Unit> in[kSources > 0 ? kSources : 1], out;
    for (int s = 0; s < kSources; ++s) {
      in[s].unit = reinterpret_cast<const Unit*>(sources[s] + offset)[i];
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      if constexpr (kSources == 0) {
        out.element[lane] = 0;
      } else {
        typename T::Bits elements[kSources];
        for (int s = 0; s < kSources; ++s) elements[s] = in[s].element[lane];
        out.element[lane] =
            T::store(factors.after(Tree<T, Operator, 0, kSources>::of(elements, factors)));
      }
    }
    for (U32 t = 0; t < what.number_of_targets; ++t) {
      reinterpret_cast<Unit*>(what.targets[t] + offset)[i] = out.unit;
    }
  }
}

template <typename T, typename Operator, int kSources>
HERRING_INLINE void combine_all(const Combination& what, const U64* sources, double divisor,
                                U64 first, U64 step) {
  typedef typename T::Bits Bits;
  U64 places = 0;
  for (int s = 0; s < kSources; ++s) places |= sources[s];
  for (U32 t = 0; t < what.number_of_targets; ++t) places |= what.targets[t];
  const U64 whole = places % sizeof(Words) == 0 ? what.elements * sizeof(Bits) / sizeof(Words) : 0;
  combine_units<T, Operator, Words, kSources>(what, sources, divisor, first, step, whole, 0);
  const U64 offset = whole * sizeof(Words);
  combine_units<T, Operator, Bits, kSources>(what, sources, divisor, first, step,
                                             what.elements - offset / sizeof(Bits), offset);
}

// Computes the units first, first + step, ... of the combination. `command` has the parameters that
// are known only now.
template <typename T, typename Operator>
HERRING_INLINE void combine(const Combination& what, const Command& command, U64 first, U64 step) {
  if (command.stop != 0) return;
  U64 sources[kMostSources];
  int n = 0;
  for (U32 s = 0; s < what.number_of_sources; ++s) {
    if (command.active >> s & 1u) sources[n++] = what.sources[s];
  }
  switch (n) {
    case 0: return combine_all<T, Operator, 0>(what, sources, command.divisor, first, step);
    case 1: return combine_all<T, Operator, 1>(what, sources, command.divisor, first, step);
    case 2: return combine_all<T, Operator, 2>(what, sources, command.divisor, first, step);
    case 3: return combine_all<T, Operator, 3>(what, sources, command.divisor, first, step);
    case 4: return combine_all<T, Operator, 4>(what, sources, command.divisor, first, step);
    case 5: return combine_all<T, Operator, 5>(what, sources, command.divisor, first, step);
    case 6: return combine_all<T, Operator, 6>(what, sources, command.divisor, first, step);
    case 7: return combine_all<T, Operator, 7>(what, sources, command.divisor, first, step);
    default: return combine_all<T, Operator, 8>(what, sources, command.divisor, first, step);
  }
}

}  // namespace herring_kernels

#if defined(__CUDACC__) && defined(HERRING_TYPE) && defined(HERRING_OPERATOR)
extern "C" __global__ void herring_combine(const herring_kernels::Combination what) {
  using namespace herring_kernels;
  __shared__ Command command;
  if (threadIdx.x == 0) {
    const volatile Command* const told = reinterpret_cast<const volatile Command*>(what.command);
    command.stop = told->stop;
    command.active = told->active;
    command.divisor = told->divisor;
  }
  __syncthreads();
  combine<HERRING_TYPE, HERRING_OPERATOR>(
      what, command, blockIdx.x * static_cast<U64>(blockDim.x) + threadIdx.x,
      gridDim.x * static_cast<U64>(blockDim.x));
}
#endif
