// Speed of the reduction kernels: bytes_per_second counts the bytes of all sources. A pack has 992
// numbers in 1,024 bytes, so 3.875 times as many bytes of float32.
//
//   cmake -B build -DCMAKE_BUILD_TYPE=Release -DHERRING_BUILD_BENCHMARKS=ON && cmake --build build
//   build/benchmarks/reduce_benchmark --benchmark_filter=float32
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "reduce/reduce.h"

namespace herring::reduce {
namespace {

// Lanes one after another in an arena that starts at a cache line, as a server has them.
class Lanes {
 public:
  Lanes(DType dtype, size_t n, size_t lane_bytes, size_t out_bytes)
      : storage_(n * lane_bytes + out_bytes + 64) {
    uint8_t* first = storage_.data() + 64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64;
    for (size_t i = 0; i < n; ++i) pointers_.push_back(first + i * lane_bytes);
    out_ = first + n * lane_bytes;
    // 1 in every type: repeated in-place sums stay far from subnormals, which would be slow.
    const std::vector<float> ones(numbers_in(lane_bytes, dtype) + 1, 1.0f);
    for (const void* pointer : pointers_) {
      if (is_float(dtype)) {
        convert(ones.data(), DType::kFloat32, const_cast<void*>(pointer), dtype,
                numbers_in(lane_bytes, dtype), 1.0);
      } else {
        std::memset(const_cast<void*>(pointer), 1, lane_bytes);
      }
    }
  }
  const void* const* sources() const { return pointers_.data(); }
  void* out() { return out_; }
  void* first() { return const_cast<void*>(pointers_[0]); }

 private:
  std::vector<uint8_t> storage_;
  std::vector<const void*> pointers_;
  void* out_ = nullptr;
};

void run(benchmark::State& state, const char* level, const Stage& stage, size_t n,
         size_t lane_bytes, bool in_place) {
  if (!set_simd_level(level)) {
    state.SkipWithError("this CPU lacks it");
    return;
  }
  const size_t count = numbers_in(lane_bytes, stage.in);
  Lanes lanes(stage.in, n, lane_bytes, bytes_for(count, stage.out));
  void* out = in_place ? lanes.first() : lanes.out();
  for (auto _ : state) {
    combine(lanes.sources(), n, out, count, stage);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * n * lane_bytes));
}

void add(const char* level, const Stage& stage, size_t n, size_t lane_bytes, bool in_place) {
  std::string name = std::string(level) + "/" + name_of(stage.op) + "/" + name_of(stage.in);
  if (stage.out != stage.in) name += std::string("_to_") + name_of(stage.out);
  if (stage.prescale != 1.0) name += "_prescaled";
  if (stage.divisor != 1.0) name += "_divided";
  name += "/n:" + std::to_string(n) + "/" + std::to_string(lane_bytes / 1024) + "KiB";
  if (in_place) name += "/in_place";
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    run(state, level, stage, n, lane_bytes, in_place);
  });
}

// Times rounding to packs, and counts the bytes of float32.
void add_packing(const char* level, DType packed, bool feedback) {
  const std::string name = std::string(level) + "/pack/" + name_of(packed) +
                           (feedback ? "/feedback" : "");
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    const size_t numbers = pack_numbers(packed), packs_made = (1 << 16) / numbers;
    const size_t count = packs_made * numbers;
    set_simd_level(level);
    std::vector<float> values(count), residual(count);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    std::vector<char> packs(packs_made * kPackBytes);
    for (auto _ : state) {
      for (size_t p = 0; p < packs_made; ++p) {
        pack(values.data() + p * numbers, numbers, packed, packs.data() + p * kPackBytes,
             feedback ? residual.data() + p * numbers : nullptr);
      }
      benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * count * sizeof(float)));
  });
}

void add_all(const char* level) {
  const DType f32 = DType::kFloat32;
  const DType f16 = DType::kFloat16;
  const DType bf16 = DType::kBFloat16;
  const ReduceOp sum = ReduceOp::kSum;
  for (const size_t n : {2, 4, 8}) {
    for (const size_t bytes : {8 << 10, 64 << 10}) add(level, {f32, f32, sum}, n, bytes, true);
  }
  add(level, {f32, f32, sum}, 8, 64 << 20, true);
  add(level, {f32, f32, sum, 1.0, 24.0}, 8, 64 << 10, true);
  for (const size_t n : {9, 16, 33, 64, 100}) add(level, {f32, f32, sum}, n, 8 << 10, true);
  for (const DType narrow : {f16, bf16}) {
    add(level, {narrow, narrow, sum}, 8, 8 << 10, true);
    add(level, {narrow, narrow, sum, 1.0, 24.0, 4.0}, 8, 8 << 10, true);
    add(level, {narrow, narrow, sum}, 16, 8 << 10, true);
    add(level, {f32, narrow, sum}, 1, 64 << 10, false);
    add(level, {f32, narrow, sum, 0.25}, 1, 64 << 10, false);
    add(level, {f32, narrow, sum, 0.25}, 4, 64 << 10, false);
    add(level, {narrow, f32, sum}, 1, 64 << 10, false);
  }
  const DType sparse = *parse_wire_dtype("topk:0.01");
  for (const DType packed : {DType::kMxE4M3, DType::kMxE5M2, DType::kMxInt8, sparse}) {
    for (const bool feedback : {false, true}) add_packing(level, packed, feedback);
    add(level, {packed, f32, sum}, 1, 64 << 10, false);
    add(level, {packed, packed, sum, 1.0, 8.0}, 8, 8 << 10, true);
  }
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const Stage stage = {static_cast<DType>(dtype), static_cast<DType>(dtype),
                           static_cast<ReduceOp>(op)};
      if (stage.op == ReduceOp::kAverage || !check_stage(stage).ok()) continue;
      add(level, stage, 4, 16 << 10, true);
    }
  }
}

}  // namespace
}  // namespace herring::reduce

int main(int argc, char** argv) {
  for (const char* level : {"baseline", "avx2", "avx512"}) {
    if (herring::reduce::set_simd_level(level)) herring::reduce::add_all(level);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
