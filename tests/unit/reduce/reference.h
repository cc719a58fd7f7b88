// A slow, obvious reduction to compare with: one element at a time, the tree level by level. Types
// are converted by arithmetic on doubles instead of bits. This code shares nothing with src/reduce.
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

// Returns the bits of one element. A `value` outside the type's range of exponents rounds, to
// nearest even, to a subnormal, zero or infinity. NaN gives the canonical pattern.
uint64_t encode(DType dtype, double value);
double decode(DType dtype, uint64_t bits);

uint64_t get_bits(const Bytes& array, DType dtype, size_t index);
void set_bits(Bytes& array, DType dtype, size_t index, uint64_t bits);

// Returns n arrays of random elements. With `specials`, some are NaN (quiet and signalling, with
// payloads and signs), infinite, subnormal, -0 or the largest finite value. A bool may be any byte.
std::vector<Bytes> random_sources(DType dtype, size_t n, size_t count, bool specials,
                                  uint64_t seed);

Bytes reference_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage);

// Runs combine() on copies that are aligned to the element only, and checks guard bytes around
// them.
Bytes run_combine(const std::vector<Bytes>& sources, size_t count, const Stage& stage);

// Returns where the arrays differ, or an empty string if they are equal.
std::string difference(const Bytes& got, const Bytes& expected, DType dtype);

std::string describe(const Stage& stage, size_t n, size_t count);

// Returns the levels that this CPU has. set_simd_level() accepts each of them.
std::vector<const char*> available_levels();

// Restores the active level at the end of the scope.
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
