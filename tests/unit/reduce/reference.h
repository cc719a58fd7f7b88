// A slow, obvious reduction to compare with: one element at a time, the tree level by level, types
// converted by arithmetic on doubles instead of bits. Shares no code with src/reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "reduce/reduce.h"

namespace herring::reduce {

using Bytes = std::vector<uint8_t>;

inline constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8,
    DType::kInt16,   DType::kInt32,   DType::kInt64,   DType::kUInt8,    DType::kBool};
inline constexpr DType kFloatDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kBFloat16};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                       ReduceOp::kMax, ReduceOp::kProduct};

// The bits of one element; `value` must be representable in the type's range of exponents or it
// rounds, to nearest even, to a subnormal, zero or infinity. NaN gives the canonical pattern.
uint64_t encode(DType dtype, double value);
double decode(DType dtype, uint64_t bits);

uint64_t get_bits(const Bytes& array, DType dtype, size_t index);
void set_bits(Bytes& array, DType dtype, size_t index, uint64_t bits);

// n arrays of random elements. With `specials` some are NaN (quiet and signalling, with payloads
// and signs), infinite, subnormal, -0 or the largest finite value. For bool any byte occurs.
std::vector<Bytes> random_sources(DType dtype, size_t n, size_t count, bool specials,
                                  uint64_t seed);

Bytes reference_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage);

// combine() on copies that lie at addresses aligned to the element only, with guard bytes checked.
Bytes run_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage);

// Empty when equal, else says where they differ.
std::string difference(const Bytes& got, const Bytes& expected, DType dtype);

std::string describe(const Stage& stage, size_t n, size_t count);

// The levels that this CPU has; set_simd_level() accepts each.
std::vector<const char*> available_levels();

// Puts the level that was active back.
class KeepLevel {
 public:
  KeepLevel() : level_(simd_level()) {}
  ~KeepLevel() { (void)set_simd_level(level_); }
  KeepLevel(const KeepLevel&) = delete;
  KeepLevel& operator=(const KeepLevel&) = delete;

 private:
  const char* level_;
};

}  // namespace herring::reduce
