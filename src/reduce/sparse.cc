#include "reduce/sparse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "reduce/reduce.h"

namespace herring::reduce {
namespace {

struct Pack {
  uint16_t count, nothing;
  uint16_t indices[kSparseEntries];
  uint16_t values[kSparseEntries];

  size_t entries() const { return std::min<size_t>(count, kSparseEntries); }
  bool has(uint16_t index) const {
    return std::binary_search(indices, indices + entries(), index);
  }
};
static_assert(sizeof(Pack) == kPackBytes);

const Pack& pack_at(const void* packs, size_t index) {
  return static_cast<const Pack*>(packs)[index];
}

uint16_t bfloat16_of(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of(uint16_t bfloat16) { return std::bit_cast<float>(uint32_t{bfloat16} << 16); }

// Returns bits that are larger for a number of larger magnitude.
uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

struct Entry {
  uint32_t magnitude;
  uint16_t index;
};

bool comes_first(const Entry& one, const Entry& other) {
  return one.magnitude != other.magnitude ? one.magnitude > other.magnitude
                                          : one.index < other.index;
}

// Leaves the `most` largest entries, in the order of their indices.
void keep_largest(std::vector<Entry>& entries, size_t most) {
  if (entries.size() > most) {
    const auto end = entries.begin() + static_cast<ptrdiff_t>(most);
    std::nth_element(entries.begin(), end, entries.end(), comes_first);
    entries.erase(end, entries.end());
  }
  std::ranges::sort(entries, {}, &Entry::index);
}

// What one thread needs, kept between calls.
struct Scratch {
  std::vector<Entry> entries;
  std::vector<float> sums;      // of the values and the residual
  std::vector<float> numbers;   // all 0 between calls of combine_sparse()
  std::vector<uint64_t> named;  // bits: the numbers that some pack names; likewise
  std::vector<uint16_t> touched;  // the same as indices
};

Scratch& scratch() {
  thread_local Scratch one;
  return one;
}

// Writes the entries, whose values are those in `numbers`.
void write(const std::vector<Entry>& entries, const float* numbers, void* pack) {
  Pack made = {};
  for (const Entry& entry : entries) {
    made.indices[made.count] = entry.index;
    made.values[made.count++] = bfloat16_of(numbers[entry.index]);
  }
  std::memcpy(pack, &made, sizeof made);
}

// Fills `entries` with the largest numbers, and perhaps with some that are almost as large: all
// that share the first bits with the smallest of them.
void find_largest(const float* values, size_t count, std::vector<Entry>& entries) {
  constexpr int kShift = 19;
  std::array<uint32_t, 1u << (31 - kShift)> many = {};
  for (size_t i = 0; i < count; ++i) ++many[magnitude(values[i]) >> kShift];
  size_t least = many.size(), found = 0;
  while (least > 0 && found < kSparseEntries) found += many[--least];
  const uint32_t bound = std::max<uint32_t>(static_cast<uint32_t>(least) << kShift, 1);
  entries.clear();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t size = magnitude(values[i]);
    if (size >= bound) entries.push_back({size, static_cast<uint16_t>(i)});
  }
}

// Calls visit(index, value) for the entries of a pack that stands for `count` numbers.
template <typename Visit>
void for_each(const Pack& pack, size_t count, const Visit& visit) {
  for (size_t i = 0; i < pack.entries(); ++i) {
    if (pack.indices[i] < count) visit(pack.indices[i], float_of(pack.values[i]));
  }
}

// Returns whether all numbers are finite. If any of a block is not, its pack has one: it is larger.
bool is_finite(const Pack& pack) {
  return std::ranges::all_of(pack.values, pack.values + pack.entries(), [](uint16_t value) {
    return std::isfinite(float_of(value));
  });
}

// Sums pack `at` of all sources into `all.numbers`, and lists which numbers have a part.
void sum(const void* const* sources, size_t n, size_t at, size_t count, float scale, Scratch& all) {
  all.numbers.resize(std::max(all.numbers.size(), count));
  all.named.resize(std::max(all.named.size(), (count + 63) / 64));
  for (size_t source = 0; source < n; ++source) {
    for_each(pack_at(sources[source], at), count, [&](uint16_t index, float value) {
      all.numbers[index] += value * scale;
      all.named[index / 64] |= uint64_t{1} << index % 64;
    });
  }
  all.touched.clear();
  for (size_t word = 0; word < all.named.size(); ++word) {
    for (uint64_t bits = std::exchange(all.named[word], 0); bits != 0; bits &= bits - 1) {
      const auto bit = static_cast<size_t>(std::countr_zero(bits));
      all.touched.push_back(static_cast<uint16_t>(word * 64 + bit));
    }
  }
}

// Sums the numbers of all sources, and packs the largest.
void pack_sums(const void* const* sources, size_t n, void* out, size_t count, const Stage& stage) {
  const size_t together = pack_numbers(stage.out);
  std::vector<const void*> from(n);
  std::vector<float> sums(together);
  Stage adds = stage;
  adds.out = DType::kFloat32;
  for (size_t at = 0; at < count / together; ++at) {
    for (size_t i = 0; i < n; ++i) {
      from[i] = static_cast<const char*>(sources[i]) + at * together * size_of(stage.in);
    }
    combine(from.data(), n, sums.data(), together, adds);
    pack_largest(sums.data(), together, static_cast<Pack*>(out) + at, nullptr);
  }
}

}  // namespace

void pack_largest(const float* values, size_t count, void* pack, float* residual) {
  Scratch& all = scratch();
  if (residual != nullptr) {
    all.sums.resize(std::max(all.sums.size(), count));
    for (size_t i = 0; i < count; ++i) all.sums[i] = residual[i] + values[i];
    values = all.sums.data();
  }
  find_largest(values, count, all.entries);
  keep_largest(all.entries, kSparseEntries);
  write(all.entries, values, pack);
  if (residual == nullptr || !is_finite(*static_cast<const Pack*>(pack))) return;
  std::copy_n(values, count, residual);
  for (const Entry& entry : all.entries) {
    residual[entry.index] -= float_of(bfloat16_of(values[entry.index]));
  }
}

void combine_sparse(const void* const* sources, size_t n, void* out, size_t count,
                    const Stage& stage) {
  if (!is_sparse(stage.in)) return pack_sums(sources, n, out, count, stage);
  Scratch& all = scratch();
  const size_t together = pack_numbers(stage.in), out_bytes = bytes_for(together, stage.out);
  const auto scale = static_cast<float>(stage.prescale);
  for (size_t at = 0; at < count / together; ++at) {
    char* const to = static_cast<char*>(out) + at * out_bytes;
    sum(sources, n, at, together, scale, all);
    if (!is_sparse(stage.out)) {
      const void* const numbers = all.numbers.data();
      combine(&numbers, 1, to, together,
              {DType::kFloat32, stage.out, stage.op, 1.0, stage.divisor, stage.postscale});
    } else {
      all.entries.clear();
      for (const uint16_t index : all.touched) {
        float& number = all.numbers[index];
        number = number / static_cast<float>(stage.divisor) * static_cast<float>(stage.postscale);
        all.entries.push_back({magnitude(number), index});
      }
      keep_largest(all.entries, kSparseEntries);
      write(all.entries, all.numbers.data(), to);
    }
    for (const uint16_t index : all.touched) all.numbers[index] = 0;
  }
}

void add_missing(const void* sent, const void* result, size_t count, float* residual) {
  if (!is_finite(pack_at(sent, 0))) return;
  const Pack& here = pack_at(result, 0);
  for_each(pack_at(sent, 0), count, [&](uint16_t index, float value) {
    if (!here.has(index)) residual[index] += value;
  });
}

}  // namespace herring::reduce
