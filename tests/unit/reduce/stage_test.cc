#include <gtest/gtest.h>

#include <limits>

#include "reference.h"

namespace herring::reduce {
namespace {

// Returns the message of a refused stage. The error must be an invalid argument.
std::string refusal(const Stage& stage) {
  const Status status = check_stage(stage);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

void expect_names(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" not in: " << message;
  }
}

TEST(CheckStage, AcceptsWhatCombineCanDo) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_TRUE(check_stage({dtype, dtype, ReduceOp::kSum}).ok());
    EXPECT_TRUE(check_stage({dtype, accumulator_of(dtype), ReduceOp::kProduct}).ok());
  }
  for (const DType in : kFloatDTypes) {
    for (const DType out : kFloatDTypes) {
      EXPECT_TRUE(check_stage({in, out, ReduceOp::kAverage, 0.5, 6.0, 2.0}).ok());
    }
  }
  EXPECT_TRUE(check_stage({DType::kFloat64, DType::kFloat64, ReduceOp::kSum, 1e300, 1e-300}).ok());
  EXPECT_TRUE(check_stage({DType::kFloat32, DType::kFloat32, ReduceOp::kSum, 0.0, 1.0, 0.0}).ok());
}

TEST(CheckStage, NamesTypesThatDoNotConvert) {
  expect_names(refusal({DType::kInt32, DType::kFloat32, ReduceOp::kSum}), {"int32", "float32"});
  expect_names(refusal({DType::kFloat16, DType::kInt64, ReduceOp::kMax}), {"float16", "int64"});
  expect_names(refusal({DType::kInt8, DType::kUInt8, ReduceOp::kSum}), {"int8", "uint8"});
}

TEST(CheckStage, NamesFactorsThatNeedFloats) {
  const DType i = DType::kInt16;
  expect_names(refusal({i, i, ReduceOp::kAverage}), {"average", "int16"});
  expect_names(refusal({i, i, ReduceOp::kSum, 0.5}), {"prescale", "0.5", "int16"});
  expect_names(refusal({i, i, ReduceOp::kSum, 1.0, 3.0}), {"divisor", "3", "int16"});
  expect_names(refusal({i, i, ReduceOp::kSum, 1.0, 1.0, 0.25}), {"postscale", "0.25", "int16"});
}

TEST(CheckStage, NamesFactorsOutOfRange) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const DType f = DType::kFloat32;
  expect_names(refusal({f, f, ReduceOp::kSum, 1.0, 0.0}), {"divisor", "0", "float32"});
  expect_names(refusal({f, f, ReduceOp::kSum, infinity}), {"prescale", "inf"});
  expect_names(refusal({f, f, ReduceOp::kSum, 1.0, 1.0, nan}), {"postscale", "nan"});
  expect_names(refusal({f, f, ReduceOp::kSum, 1e39}), {"prescale", "1e+39", "float32"});
  expect_names(refusal({f, f, ReduceOp::kSum, 1.0, 1e-46}), {"divisor", "1e-46"});
  expect_names(refusal({DType::kBFloat16, f, ReduceOp::kSum, 1.0, 1.0, 1e-60}),
               {"postscale", "1e-60", "bfloat16", "float32"});
}

TEST(CheckStage, RefusesNumbersThatAreNoTypeOrReduction) {
  const DType f = DType::kFloat32;
  expect_names(refusal({static_cast<DType>(99), f, ReduceOp::kSum}), {"99"});
  expect_names(refusal({f, static_cast<DType>(kNumWireDTypes), ReduceOp::kSum}), {"27"});
  expect_names(refusal({f, f, static_cast<ReduceOp>(77)}), {"77"});
}

}  // namespace
}  // namespace herring::reduce
