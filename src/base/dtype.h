// Element types and reduction operators, and the rules for what may be combined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/status.h"

namespace herring {

enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  // On the wire only, in packs: 8 bits for each number, and one scale for 32 of them.
  kMxE4M3,
  kMxE5M2,
  kMxInt8,
  // From kFirstPair on, each of these three again for each dtype of kResultDTypes: contributions
  // travel in packs, and results in that dtype. From kFirstSparse on, for each of kSparseNumbers:
  // the largest of so many numbers travel, in packs too.
};
inline constexpr int kNumDTypes = 10;  // that an array may have
inline constexpr int kNumPacked = 3;
inline constexpr DType kResultDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
inline constexpr DType kFirstPair = static_cast<DType>(kNumDTypes + kNumPacked);
inline constexpr size_t kSparseNumbers[] = {51000, 25500, 12750, 5100, 2550};
inline constexpr DType kFirstSparse =
    static_cast<DType>(static_cast<size_t>(kFirstPair) + std::size(kResultDTypes) * kNumPacked);
inline constexpr int kNumWireDTypes =  // that may travel
    static_cast<int>(static_cast<size_t>(kFirstSparse) + std::size(kSparseNumbers));

// The 8-bit types are those of the OCP Microscaling Formats (MX) Specification 1.0: MXFP8 E4M3,
// MXFP8 E5M2 and MXINT8. A block is 32 numbers with one scale, a power of two. A pack is the
// smallest amount that travels: 31 scales, a byte that is 0, then the 31 blocks. So segments of
// whole KiB have no block in two, and every block is aligned.
inline constexpr size_t kBlockNumbers = 32, kPackBlocks = 31;
inline constexpr size_t kPackNumbers = kPackBlocks * kBlockNumbers;
inline constexpr size_t kPackBytes = 1024;
// The other packs: how many of kSparseNumbers numbers travel. Each takes the 4 bytes of a float32
// with its index, so these dtypes send from 0.5 % to 10 % of float32's bytes.
inline constexpr size_t kSparseEntries = 255;

enum class ReduceOp : uint8_t { kSum = 0, kAverage, kMin, kMax, kProduct };
inline constexpr int kNumReduceOps = 5;

size_t size_of(DType dtype);  // of packed types: the size of a pack
const char* name_of(DType dtype);  // "float32", ...
const char* name_of(ReduceOp op);  // "sum", ...
bool is_float(DType dtype);
bool is_packed(DType dtype);  // whether contributions travel in packs
bool is_sparse(DType dtype);  // and only the largest numbers
size_t pack_numbers(DType dtype);  // of one pack; 1 for other types
// Returns the number of a pack's 8-bit type, from 0 on.
int pack_kind(DType dtype);
// Returns the dtype in which results of contributions in this wire dtype travel.
DType result_of(DType dtype);
// Returns the bytes of the results of so many bytes of contributions.
size_t result_bytes(size_t bytes, DType dtype);
// Returns how many numbers lie in so many bytes, and how many bytes they take at least.
size_t numbers_in(size_t bytes, DType dtype);
size_t bytes_for(size_t numbers, DType dtype);
Result<DType> parse_dtype(const std::string& name);
// Parses "float16", "bfloat16", "fp8" (that is "fp8_e4m3"), "fp8_e5m2" or "int8", or one of the
// last four with the dtype of results, such as "fp8/bfloat16"; or "topk:0.01", for the share of
// numbers that travel.
Result<DType> parse_wire_dtype(const std::string& name);
Result<ReduceOp> parse_reduce_op(const std::string& name);

// Returns the type in which `dtype` is summed: float32 for 8-bit and 16-bit floats, otherwise
// `dtype` itself.
DType accumulator_of(DType dtype);

// How values are combined: each rank's value is multiplied by `prescale`, and the result by
// `postscale`.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0, postscale = 1.0;
  uint32_t divisor = 0;  // of averages; 0: the number of ranks that have contributed
  bool operator==(const Reduction&) const = default;
};

// Returns the number by which a sum of so many ranks' values is divided.
double divisor_of(const Reduction& reduction, uint64_t contributors);

// Returns kInvalidArgument for reductions without a meaning: averaging or scaling integers or bool.
Status check_reducible(DType dtype, const Reduction& reduction);

}  // namespace herring
