#include "reduce/reduce.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#include "base/settings.h"
#include "reduce/kernels.h"
#include "reduce/sparse.h"

namespace herring::reduce {
namespace {

static_assert(kTreeGroup == kMaxFanIn);

// Bytes of one intermediate result. kMaxFanIn of these, and the matching part of a source, fit in a
// 32 KiB L1 cache.
constexpr size_t kBlockBytes = 2048;

struct alignas(64) Block {
  char bytes[kBlockBytes];
};

// Sets the default floating-point mode. A process may run with subnormals flushed
// (torch.set_flush_denormal, or any library linked with -ffast-math), and threads inherit that
// mode. Results must not depend on it.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f;      // sticky exception flags
  static constexpr unsigned kDefault = 0x1f80;  // all masked, nearest even, nothing flushed
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(uint64_t{0}) : "memory");
  }
  ~DefaultFloatMode() {
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(saved_) : "memory");
  }

 private:
  uint64_t saved_;
#else
  DefaultFloatMode() {}
#endif
 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

// SIMD levels in ascending order, without those that this CPU lacks.
struct Levels {
  const KernelTable* table[3];
  size_t count;
};

Levels supported_levels() {
  Levels levels = {{&kBaselineKernels}, 1};
#if defined(HERRING_REDUCE_X86_LEVELS)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // Clang 14's builtin does not know F16C
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2")) return levels;
  levels.table[levels.count++] = &kAvx2Kernels;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    levels.table[levels.count++] = &kAvx512Kernels;
  }
#endif
  return levels;
}

const KernelTable* pick_level() {
  const Levels levels = supported_levels();
  size_t last = levels.count - 1;
  const char* given = std::getenv("HERRING_SIMD");
  const auto cap = parse_setting(*find_setting("simd"), given == nullptr ? "" : given, "");
  if (cap.ok() && cap->text == "baseline") last = 0;
  if (cap.ok() && cap->text == "avx2") last = std::min<size_t>(last, 1);
  return levels.table[last];
}

std::atomic<const KernelTable*> g_active{nullptr};

const KernelTable& active() {
  const KernelTable* table = g_active.load(std::memory_order_relaxed);
  if (table == nullptr) {
    table = pick_level();
    g_active.store(table, std::memory_order_relaxed);
  }
  return *table;
}

Scaled scaled_by(const Scaling& scaling) {
  if (scaling.divisor != 1.0 || scaling.postscale != 1.0) return Scaled::kFully;
  return scaling.prescale != 1.0 ? Scaled::kSources : Scaled::kNot;
}

constexpr Scaling kUnscaled = {1.0, 1.0, 1.0};

// What each step of a combination in blocks needs.
struct Steps {
  const Kernel* leaf;    // sources -> accumulator, with the prescale
  const Kernel* middle;  // accumulators -> accumulator
  const Kernel* last;    // accumulators -> out; if null, middle and then finish run instead
  Kernel finish;         // accumulator -> out, with divisor and postscale
  size_t fan_in;         // of leaf, middle and last
  Scaling leaf_scaling;
  Scaling last_scaling;
  size_t in_size;
  size_t out_size;
};

const char* at(const void* base, size_t offset) { return static_cast<const char*>(base) + offset; }

// Returns the largest power of the fan-in below n: the size of each branch of the top node. As
// every fan-in is a power of two, all of them make the same tree.
size_t branch_size(size_t n, size_t fan_in) {
  size_t size = fan_in;
  while (size * fan_in < n) size *= fan_in;
  return size;
}

void combine_subtree(const void* const* sources, size_t n, size_t first, size_t count, void* out,
                     const Steps& steps);

// Fills one accumulator block per branch; returns the number of branches.
size_t combine_branches(const void* const* sources, size_t n, size_t first, size_t count,
                        Block* blocks, const void** results, const Steps& steps) {
  const size_t branch = branch_size(n, steps.fan_in);
  size_t used = 0;
  for (size_t i = 0; i < n; i += branch, ++used) {
    combine_subtree(sources + i, n - i < branch ? n - i : branch, first, count, &blocks[used],
                    steps);
    results[used] = &blocks[used];
  }
  return used;
}

// Combines elements [first, first + count) of n sources into one block. Recursion is as deep as a
// tree of this fan-in.
void combine_subtree(const void* const* sources, size_t n, size_t first, size_t count, void* out,
                     const Steps& steps) {
  const void* results[kTreeGroup];
  if (n <= steps.fan_in) {
    for (size_t i = 0; i < n; ++i) results[i] = at(sources[i], first * steps.in_size);
    steps.leaf[n - 1](results, out, count, steps.leaf_scaling);
    return;
  }
  Block blocks[kTreeGroup];
  const size_t used = combine_branches(sources, n, first, count, blocks, results, steps);
  steps.middle[used - 1](results, out, count, kUnscaled);
}

Steps steps_of(const Stage& stage, const KernelTable& kernels) {
  const DType accumulator = accumulator_of(stage.in);
  const Scaling leaf_scaling = {stage.prescale, 1.0, 1.0};
  const Scaling last_scaling = {1.0, stage.divisor, stage.postscale};
  const Row leaf = kernels.row(stage.in, accumulator, stage.op, scaled_by(leaf_scaling));
  return {
      leaf.kernels,
      kernels.row(accumulator, accumulator, stage.op, Scaled::kNot).kernels,
      kernels.row(accumulator, stage.out, stage.op, scaled_by(last_scaling)).kernels,
      is_float(stage.in) ? kernels.finish(accumulator, stage.out) : nullptr,
      leaf.fan_in,
      leaf_scaling,
      last_scaling,
      size_of(stage.in),
      size_of(stage.out),
  };
}

void combine_in_blocks(const void* const* sources, size_t n, void* out, size_t count,
                       const Stage& stage, const KernelTable& kernels) {
  const Steps steps = steps_of(stage, kernels);
  const size_t per_block = kBlockBytes / size_of(accumulator_of(stage.in));
  Block blocks[kTreeGroup];
  Block sum;
  const void* results[kTreeGroup];
  for (size_t first = 0; first < count; first += per_block) {
    const size_t here = count - first < per_block ? count - first : per_block;
    char* const to = static_cast<char*>(out) + first * steps.out_size;
    if (n > steps.fan_in) {
      const size_t used = combine_branches(sources, n, first, here, blocks, results, steps);
      if (steps.last != nullptr) {
        steps.last[used - 1](results, to, here, steps.last_scaling);
        continue;
      }
      steps.middle[used - 1](results, &sum, here, kUnscaled);
    } else {
      combine_subtree(sources, n, first, here, &sum, steps);
    }
    const void* const whole = &sum;
    steps.finish(&whole, to, here, steps.last_scaling);
  }
}

struct alignas(64) Numbers {
  float values[kPackNumbers];
};

// Sums pack `index` of n sources, with the prescale.
void sum_packs(const void* const* sources, size_t n, size_t index, Numbers& sum,
               const Stage& stage, const KernelTable& kernels) {
  Numbers parts[kTreeGroup];
  const void* added[kTreeGroup];
  const bool leaf = n <= kTreeGroup;
  const size_t branch = leaf ? 1 : branch_size(n, kTreeGroup);
  const UnpackKernel unpack = kernels.unpack[pack_kind(stage.in)];
  size_t used = 0;
  for (size_t i = 0; i < n; i += branch, ++used) {
    added[used] = &parts[used];
    if (leaf) {
      unpack(at(sources[i], index * kPackBytes), parts[used].values);
    } else {
      sum_packs(sources + i, std::min(branch, n - i), index, parts[used], stage, kernels);
    }
  }
  const Scaling scaling = {leaf ? stage.prescale : 1.0, 1.0, 1.0};
  kernels.row(DType::kFloat32, DType::kFloat32, ReduceOp::kSum, scaled_by(scaling))
      .kernels[used - 1](added, &sum, kPackNumbers, scaling);
}

// Combines one pack after the other in float32, then rounds it.
void combine_packs(const void* const* sources, size_t n, void* out, size_t count,
                   const Stage& stage, const KernelTable& kernels) {
  const Scaling last = {1.0, stage.divisor, stage.postscale};
  const Kernel finish =
      kernels.finish(DType::kFloat32, is_packed(stage.out) ? DType::kFloat32 : stage.out);
  const size_t out_bytes = bytes_for(kPackNumbers, stage.out);
  Numbers sum;
  for (size_t i = 0; i < count / kPackNumbers; ++i) {
    if (is_packed(stage.in)) {
      sum_packs(sources, n, i, sum, stage, kernels);
    } else {
      const Steps steps =
          steps_of({stage.in, DType::kFloat32, stage.op, stage.prescale}, kernels);
      constexpr size_t kStep = kBlockBytes / sizeof(float);
      for (size_t from = 0; from < kPackNumbers; from += kStep) {
        combine_subtree(sources, n, i * kPackNumbers + from,
                        std::min(kStep, kPackNumbers - from), sum.values + from, steps);
      }
    }
    const void* const whole = &sum;
    char* const to = static_cast<char*>(out) + i * out_bytes;
    if (!is_packed(stage.out)) {
      finish(&whole, to, kPackNumbers, last);
      continue;
    }
    if (scaled_by(last) != Scaled::kNot) finish(&whole, &sum, kPackNumbers, last);
    kernels.pack[pack_kind(stage.out)](sum.values, to, nullptr);
  }
}

// Checks that a factor survives rounding to the type in which it is applied.
Status check_factor(const char* name, double value, bool may_be_zero, DType in) {
  const bool narrow = accumulator_of(in) == DType::kFloat32;
  const double magnitude = std::fabs(value);
  const bool fits = !narrow || value == 0.0 ||
                    (magnitude <= 0x1.fffffefffffffp127 && magnitude > 0x1p-150);
  if (std::isfinite(value) && fits && (value != 0.0 || may_be_zero)) return {};
  return {Code::kInvalidArgument,
          concat(name, " ", value, " cannot be applied to ", name_of(in), ", which is scaled in ",
                 name_of(accumulator_of(in)), ": it must be finite",
                 may_be_zero ? "" : ", not 0", " and in that type's range")};
}

}  // namespace

void combine(const void* const* sources, size_t n, void* out, size_t count, const Stage& stage) {
  const DefaultFloatMode mode;
  const KernelTable& kernels = active();
  if (is_sparse(stage.in) || is_sparse(stage.out)) {
    return combine_sparse(sources, n, out, count, stage);
  }
  if (is_packed(stage.in) || is_packed(stage.out)) {
    return combine_packs(sources, n, out, count, stage, kernels);
  }
  if (n <= kTreeGroup) {
    const Scaling scaling = {stage.prescale, stage.divisor, stage.postscale};
    const Row row = kernels.row(stage.in, stage.out, stage.op, scaled_by(scaling));
    if (n <= row.fan_in) return row.kernels[n - 1](sources, out, count, scaling);
  }
  combine_in_blocks(sources, n, out, count, stage, kernels);
}

Status check_stage(const Stage& stage) {
  const int in = static_cast<int>(stage.in);
  const int out = static_cast<int>(stage.out);
  const int op = static_cast<int>(stage.op);
  if (in >= kNumWireDTypes || out >= kNumWireDTypes || op >= kNumReduceOps) {
    return {Code::kInvalidArgument,
            concat("dtype numbers ", in, " and ", out, " must be below ", kNumWireDTypes,
                   ", reduction number ", op, " below ", kNumReduceOps)};
  }
  HERRING_RETURN_IF_ERROR(
      check_reducible(stage.in, {stage.op, stage.prescale, stage.postscale}));
  if (stage.out != stage.in && !(is_float(stage.in) && is_float(stage.out))) {
    return {Code::kInvalidArgument,
            concat("a reduction of ", name_of(stage.in), " cannot give ", name_of(stage.out),
                   "; only float types convert")};
  }
  if (is_packed(stage.in) || is_packed(stage.out)) {
    if (stage.op != ReduceOp::kSum && stage.op != ReduceOp::kAverage) {
      return {Code::kInvalidArgument,
              concat("op '", name_of(stage.op), "' has no meaning for ",
                     name_of(is_packed(stage.in) ? stage.in : stage.out),
                     ", which is for sums; use 'sum' or 'average'")};
    }
    if (stage.in == DType::kFloat64) {
      return {Code::kInvalidArgument,
              concat("float64 cannot be rounded to ", name_of(stage.out),
                     "; use float32, float16 or bfloat16")};
    }
  }
  if (!is_float(stage.in)) {
    if (stage.divisor == 1.0) return {};
    return {Code::kInvalidArgument, concat("divisor ", stage.divisor,
                                           " needs a float dtype, but this array is ",
                                           name_of(stage.in))};
  }
  HERRING_RETURN_IF_ERROR(check_factor("prescale", stage.prescale, true, stage.in));
  HERRING_RETURN_IF_ERROR(check_factor("divisor", stage.divisor, false, stage.in));
  return check_factor("postscale", stage.postscale, true, stage.in);
}

void convert(const void* in, DType in_type, void* out, DType out_type, size_t count,
             double scale) {
  combine(&in, 1, out, count, {in_type, out_type, ReduceOp::kSum, scale, 1.0, 1.0});
}

void pack(const float* values, size_t count, DType packed, void* pack, float* residual) {
  const DefaultFloatMode mode;
  if (is_sparse(packed)) return pack_largest(values, count, pack, residual);
  const PackKernel kernel = active().pack[pack_kind(packed)];
  if (count == kPackNumbers) return kernel(values, pack, residual);
  Numbers all = {}, rest = {};
  std::copy_n(values, count, all.values);
  if (residual != nullptr) std::copy_n(residual, count, rest.values);
  kernel(all.values, pack, residual == nullptr ? nullptr : rest.values);
  if (residual != nullptr) std::copy_n(rest.values, count, residual);
}

void give_back(const void* sent, const void* result, size_t count, float* residual) {
  const DefaultFloatMode mode;
  add_missing(sent, result, count, residual);
}

const char* simd_level() { return active().name; }

bool set_simd_level(const char* level) {
  const Levels levels = supported_levels();
  for (size_t i = 0; i < levels.count; ++i) {
    if (std::strcmp(levels.table[i]->name, level) != 0) continue;
    g_active.store(levels.table[i], std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace herring::reduce
