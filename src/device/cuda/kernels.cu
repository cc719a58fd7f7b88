// Sums and casts on a GPU, with the bits of reduce::combine(). NVRTC compiles this text for the GPU
// at hand; the tests compile it for the host as well. Whoever compiles it may define
//   HERRING_TYPE       the element type of the sources, one of those below, such as Float32
//   HERRING_TARGET     the element type of the targets
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

// The command of a combination that has none.
HERRING_INLINE Command undivided() {
  Command command;
  command.stop = 0;
  command.active = ~0u;
  command.divisor = 1.0;
  return command;
}

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

// What a thread reads or writes at once.
struct alignas(16) Words {
  U64 word[2];
};
template <int kBytes>
struct Unit;
template <>
struct Unit<16> { typedef Words Type; };
template <>
struct Unit<8> { typedef U64 Type; };
template <>
struct Unit<4> { typedef U32 Type; };
template <>
struct Unit<2> { typedef U16 Type; };
template <>
struct Unit<1> { typedef U8 Type; };

template <typename T, int kLanes>
struct Lanes {
  typedef typename Unit<kLanes * sizeof(typename T::Bits)>::Type Whole;
  union {
    Whole unit;
    typename T::Bits element[kLanes];
  };
};

// Computes the units first, first + step, ... of `units` units that begin at element `begin`.
template <typename T, typename To, typename Operator, int kLanes, int kSources>
HERRING_INLINE void combine_units(const Combination& what, const U64* sources, double divisor,
                                  U64 first, U64 step, U64 units, U64 begin) {
  typedef Lanes<T, kLanes> In;
  typedef Lanes<To, kLanes> Out;
  const Factors<T> factors(what, divisor);
  for (U64 i = first; i < units; i += step) {
    In in[kSources > 0 ? kSources : 1];
    Out out;
    for (int s = 0; s < kSources; ++s) {
      const U64 from = sources[s] + begin * sizeof(typename T::Bits);
      in[s].unit = reinterpret_cast<const typename In::Whole*>(from)[i];
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      if constexpr (kSources == 0) {
        out.element[lane] = 0;
      } else {
        typename T::Bits elements[kSources];
        for (int s = 0; s < kSources; ++s) elements[s] = in[s].element[lane];
        out.element[lane] =
            To::store(factors.after(Tree<T, Operator, 0, kSources>::of(elements, factors)));
      }
    }
    for (U32 t = 0; t < what.number_of_targets; ++t) {
      const U64 to = what.targets[t] + begin * sizeof(typename To::Bits);
      reinterpret_cast<typename Out::Whole*>(to)[i] = out.unit;
    }
  }
}

template <typename T, typename To, typename Operator, int kSources>
HERRING_INLINE void combine_all(const Combination& what, const U64* sources, double divisor,
                                U64 first, U64 step) {
  constexpr U64 kItem = sizeof(typename T::Bits), kItemTo = sizeof(typename To::Bits);
  constexpr int kLanes = sizeof(Words) / (kItem > kItemTo ? kItem : kItemTo);
  bool aligned = true;
  for (int s = 0; s < kSources; ++s) aligned = aligned && sources[s] % (kLanes * kItem) == 0;
  for (U32 t = 0; t < what.number_of_targets; ++t) {
    aligned = aligned && what.targets[t] % (kLanes * kItemTo) == 0;
  }
  const U64 whole = aligned ? what.elements / kLanes : 0;
  combine_units<T, To, Operator, kLanes, kSources>(what, sources, divisor, first, step, whole, 0);
  const U64 rest = whole * kLanes;
  combine_units<T, To, Operator, 1, kSources>(what, sources, divisor, first, step,
                                              what.elements - rest, rest);
}

// Computes the units first, first + step, ... of the combination. `command` has the parameters that
// are known only now.
template <typename T, typename Operator, typename To = T>
HERRING_INLINE void combine(const Combination& what, const Command& command, U64 first, U64 step) {
  if (command.stop != 0) return;
  U64 sources[kMostSources];
  int n = 0;
  for (U32 s = 0; s < what.number_of_sources; ++s) {
    if (command.active >> s & 1u) sources[n++] = what.sources[s];
  }
  switch (n) {
    case 0: return combine_all<T, To, Operator, 0>(what, sources, command.divisor, first, step);
    case 1: return combine_all<T, To, Operator, 1>(what, sources, command.divisor, first, step);
    case 2: return combine_all<T, To, Operator, 2>(what, sources, command.divisor, first, step);
    case 3: return combine_all<T, To, Operator, 3>(what, sources, command.divisor, first, step);
    case 4: return combine_all<T, To, Operator, 4>(what, sources, command.divisor, first, step);
    case 5: return combine_all<T, To, Operator, 5>(what, sources, command.divisor, first, step);
    case 6: return combine_all<T, To, Operator, 6>(what, sources, command.divisor, first, step);
    case 7: return combine_all<T, To, Operator, 7>(what, sources, command.divisor, first, step);
    default: return combine_all<T, To, Operator, 8>(what, sources, command.divisor, first, step);
  }
}

}  // namespace herring_kernels

#if defined(__CUDACC__) && defined(HERRING_TYPE)
extern "C" __global__ void herring_combine(const herring_kernels::Combination what) {
  using namespace herring_kernels;
  __shared__ Command command;
  if (threadIdx.x == 0) {
    command = undivided();
    if (what.command != 0) {
      const volatile Command* const told = reinterpret_cast<const volatile Command*>(what.command);
      command.stop = told->stop;
      command.active = told->active;
      command.divisor = told->divisor;
    }
  }
  __syncthreads();
  combine<HERRING_TYPE, HERRING_OPERATOR, HERRING_TARGET>(
      what, command, blockIdx.x * static_cast<U64>(blockDim.x) + threadIdx.x,
      gridDim.x * static_cast<U64>(blockDim.x));
}
#endif
