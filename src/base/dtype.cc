#include "base/dtype.h"

namespace herring {
namespace {

constexpr const char* kDTypeNames[kNumDTypes] = {"float32", "float64", "float16", "bfloat16",
                                                 "int8",    "int16",   "int32",   "int64",
                                                 "uint8",   "bool"};
constexpr size_t kDTypeSizes[kNumDTypes] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
constexpr const char* kWireNames[kNumWireDTypes - kNumDTypes] = {
    "fp8_e4m3",          "fp8_e5m2",          "int8",
    "fp8_e4m3/bfloat16", "fp8_e5m2/bfloat16", "int8/bfloat16",
    "fp8_e4m3/float16",  "fp8_e5m2/float16",  "int8/float16",
    "fp8_e4m3/float32",  "fp8_e5m2/float32",  "int8/float32",
    "topk:0.005", "topk:0.01", "topk:0.02", "topk:0.05", "topk:0.1",
};
constexpr const char* kOpNames[kNumReduceOps] = {"sum", "average", "min", "max", "product"};

template <size_t N>
std::string join(const char* const (&names)[N]) {
  std::string all;
  for (const char* name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

}  // namespace

size_t size_of(DType dtype) {
  return is_packed(dtype) ? kPackBytes : kDTypeSizes[static_cast<int>(dtype)];
}
const char* name_of(DType dtype) {
  const int number = static_cast<int>(dtype);
  return is_packed(dtype) ? kWireNames[number - kNumDTypes] : kDTypeNames[number];
}
const char* name_of(ReduceOp op) { return kOpNames[static_cast<int>(op)]; }

bool is_float(DType dtype) { return dtype <= DType::kBFloat16 || is_packed(dtype); }
bool is_packed(DType dtype) { return dtype >= DType::kMxE4M3; }
bool is_sparse(DType dtype) { return dtype >= kFirstSparse; }

size_t pack_numbers(DType dtype) {
  if (!is_packed(dtype)) return 1;
  if (!is_sparse(dtype)) return kPackNumbers;
  return kSparseNumbers[static_cast<int>(dtype) - static_cast<int>(kFirstSparse)];
}

int pack_kind(DType dtype) { return (static_cast<int>(dtype) - kNumDTypes) % kNumPacked; }

DType result_of(DType dtype) {
  if (dtype < kFirstPair || is_sparse(dtype)) return dtype;
  return kResultDTypes[(static_cast<int>(dtype) - static_cast<int>(kFirstPair)) / kNumPacked];
}

size_t result_bytes(size_t bytes, DType dtype) {
  const DType result = result_of(dtype);
  return result == dtype ? bytes : bytes_for(numbers_in(bytes, dtype), result);
}

size_t numbers_in(size_t bytes, DType dtype) {
  return bytes / size_of(dtype) * pack_numbers(dtype);
}

size_t bytes_for(size_t numbers, DType dtype) {
  const size_t together = pack_numbers(dtype);
  return (numbers + together - 1) / together * size_of(dtype);
}

Result<DType> parse_dtype(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == kDTypeNames[i]) return static_cast<DType>(i);
  }
  return Status(Code::kInvalidArgument,
                concat("dtype '", name, "' is not supported; use one of ", join(kDTypeNames)));
}

Result<DType> parse_wire_dtype(const std::string& name) {
  if (name == "float16") return DType::kFloat16;
  if (name == "bfloat16") return DType::kBFloat16;
  const bool brief = name == "fp8" || name.starts_with("fp8/");
  const std::string whole = brief ? concat(kWireNames[0], name.substr(3)) : name;
  for (int i = 0; i < kNumWireDTypes - kNumDTypes; ++i) {
    if (whole == kWireNames[i]) return static_cast<DType>(kNumDTypes + i);
  }
  return Status(Code::kInvalidArgument,
                concat("wire_dtype '", name, "' is not supported; use one of float16, bfloat16, ",
                       "fp8, fp8_e4m3, fp8_e5m2, int8, or an 8-bit type and the type of results, ",
                       "such as fp8/bfloat16, fp8/float16 or fp8/float32, or the largest numbers, ",
                       "as topk:0.005, topk:0.01, topk:0.02, topk:0.05 or topk:0.1"));
}

Result<ReduceOp> parse_reduce_op(const std::string& name) {
  for (int i = 0; i < kNumReduceOps; ++i) {
    if (name == kOpNames[i]) return static_cast<ReduceOp>(i);
  }
  return Status(Code::kInvalidArgument,
                concat("reduction '", name, "' is not supported; use one of ", join(kOpNames)));
}

DType accumulator_of(DType dtype) {
  return is_float(dtype) && dtype != DType::kFloat64 ? DType::kFloat32 : dtype;
}

double divisor_of(const Reduction& reduction, uint64_t contributors) {
  if (reduction.op != ReduceOp::kAverage) return 1.0;
  return static_cast<double>(reduction.divisor != 0 ? reduction.divisor : contributors);
}

Status check_reducible(DType dtype, const Reduction& reduction) {
  const auto [op, prescale, postscale, divisor] = reduction;
  if (is_float(dtype)) return {};
  if (op == ReduceOp::kAverage) {
    return {Code::kInvalidArgument,
            concat("op 'average' with dtype ", name_of(dtype),
                   " would drop the fraction; use op 'sum' and divide, or a float dtype")};
  }
  if (prescale != 1.0 || postscale != 1.0) {
    return {Code::kInvalidArgument,
            concat("prescale ", prescale, " and postscale ", postscale,
                   " need a float dtype, but this array is ", name_of(dtype))};
  }
  return {};
}

}  // namespace herring
