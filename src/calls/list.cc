#include "calls/list.h"

#include <algorithm>
#include <cstring>

#include "plan/split.h"
#include "wire/messages.h"

namespace herring::calls {
namespace {

constexpr size_t kAlignment = 64;  // of bundles in the staging memory
constexpr uint64_t kMostRows = uint64_t{1} << 48;

}  // namespace

List::List(wire::Collective what, std::vector<wire::Array> arrays, uint32_t rank, uint32_t size)
    : what_(std::move(what)), arrays_(std::move(arrays)), rank_(rank), size_(size) {
  const bool reduces = wire::reduction_of(what_) != nullptr;
  const auto add = [this](DType dtype) {
    Bundle& bundle = bundles_.emplace_back();
    bundle.array = {dtype, {0}};
    return bundles_.end() - 1;
  };
  // Ranks meet over an empty list, too, so there is always at least one bundle.
  if (arrays_.empty() || !reduces) add(reduces ? DType::kFloat32 : DType::kUInt8);
  // The data that each rank gathers begins with the row counts of its arrays.
  if (gathers()) bundles_[0].array.shape[0] = arrays_.size() * sizeof(uint64_t);
  for (uint32_t i = 0; i < arrays_.size(); ++i) {
    auto bundle = bundles_.begin();
    if (reduces) {
      bundle = std::ranges::find(bundles_, arrays_[i].dtype,
                                 [](const Bundle& one) { return one.array.dtype; });
      if (bundle == bundles_.end()) bundle = add(arrays_[i].dtype);
    }
    bundle->members.push_back(i);
    bundle->array.shape[0] += reduces ? arrays_[i].elements() : arrays_[i].bytes();
  }
  for (Bundle& bundle : bundles_) {
    bundle.offset = staging_bytes_;
    staging_bytes_ += (bundle.array.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

Status List::check() const {
  const bool takes = wire::goes_without_joined(what_) || wire::is<wire::Broadcast>(what_) ||
                     gathers() || scatters();
  if (!takes) return {Code::kInvalidArgument, concat(wire::name_of(what_), " takes no list")};
  for (size_t i = 0; i < arrays_.size(); ++i) {
    if ((gathers() || scatters()) && arrays_[i].shape.empty()) {
      return {Code::kInvalidArgument,
              concat("array ", i, " of the list: it needs at least one dimension")};
    }
    const Reduction* reduction = wire::reduction_of(what_);
    if (reduction == nullptr) continue;
    if (Status fits = check_reducible(arrays_[i].dtype, *reduction); !fits.ok()) {
      return {fits.code(), concat("array ", i, " of the list: ", fits.message())};
    }
  }
  return {};
}

std::string List::describe() const {
  std::string text = concat(arrays_.size(), arrays_.size() == 1 ? " array" : " arrays");
  for (size_t i = 0; i < arrays_.size(); ++i) {
    text += concat(i == 0 ? ": " : ", ", name_of(arrays_[i].dtype), " [");
    for (size_t d = 0; d < arrays_[i].shape.size(); ++d) {
      if (d > 0) text += ", ";
      text += d == 0 && gathers() ? "n" : std::to_string(arrays_[i].shape[d]);
    }
    text += "]";
  }
  return wire::agreement_of(std::move(text));
}

std::vector<uint64_t> List::splits() const {
  std::vector<uint64_t> splits;
  for (const Bundle& bundle : bundles_) {
    for (uint32_t to = 0; to < size_; ++to) {
      uint64_t& elements = splits.emplace_back(0);
      for (const uint32_t i : bundle.members) {
        elements += plan::even_split(arrays_[i].rows(), size_, to).count *
                    arrays_[i].row_elements();
      }
    }
  }
  return splits;
}

void List::pack(char* staging, const Move& copy) const {
  for (const Bundle& bundle : bundles_) {
    char* at = staging + bundle.offset;
    for (size_t i = 0; gathers() && i < arrays_.size(); ++i, at += sizeof(uint64_t)) {
      const uint64_t rows = arrays_[i].rows();
      std::memcpy(at, &rows, sizeof rows);
    }
    // In a reduce-scatter, the parts that go to one rank lie together.
    const uint32_t parts = scatters() ? size_ : 1;
    for (uint32_t part = 0; part < parts; ++part) {
      for (const uint32_t i : bundle.members) {
        const auto [first, count] = plan::even_split(arrays_[i].rows(), parts, part);
        const size_t row = arrays_[i].row_bytes();
        if (count * row > 0) copy(at, i, first * row, count * row);
        at += count * row;
      }
    }
  }
}

void List::pack(const std::vector<Buffer>& buffers, char* staging) const {
  pack(staging, [&](char* staged, uint32_t i, size_t first, size_t bytes) {
    std::memcpy(staged, buffers[i].send + first, bytes);
  });
}

Status List::read(const char* from, size_t bytes, const std::vector<uint64_t>& counts) {
  const size_t table = gathers() ? arrays_.size() * sizeof(uint64_t) : 0;
  result_rows_.assign(arrays_.size(), 0);
  gathered_rows_.clear();
  size_t expected = 0;
  for (size_t i = 0; !gathers() && i < arrays_.size(); ++i) {
    result_rows_[i] = plan::even_split(arrays_[i].rows(), scatters() ? size_ : 1,
                                       scatters() ? rank_ : 0).count;
    expected += result_rows_[i] * arrays_[i].row_bytes();
  }
  for (uint32_t r = 0; gathers() && r < size_; ++r) {
    const uint64_t theirs = r < counts.size() ? counts[r] : 0;
    uint64_t all = table, part = 0;
    bool fits = all <= theirs && theirs <= bytes - expected;
    for (size_t i = 0; fits && i < arrays_.size(); ++i) {
      uint64_t rows = 0;
      std::memcpy(&rows, from + expected + i * sizeof rows, sizeof rows);
      fits = rows <= kMostRows && !__builtin_mul_overflow(rows, arrays_[i].row_bytes(), &part) &&
             !__builtin_add_overflow(all, part, &all) && all <= theirs;
      gathered_rows_.push_back(rows);
      result_rows_[i] += rows;
    }
    if (!fits || all != theirs) {
      return breach("the bytes that rank ", r, " gathered do not match its list");
    }
    expected += theirs;
  }
  const bool comes = gathers() || scatters();
  if (comes && expected != bytes) {
    return breach("the results of a list have ", bytes, " bytes, not ", expected);
  }
  return {};
}

void List::unpack(char* from, const Move& copy) const {
  if (gathers()) {
    std::vector<size_t> at(arrays_.size(), 0);
    for (uint32_t r = 0; r < size_; ++r) {
      from += arrays_.size() * sizeof(uint64_t);
      for (uint32_t i = 0; i < arrays_.size(); ++i) {
        const size_t bytes = gathered_rows_[r * arrays_.size() + i] * arrays_[i].row_bytes();
        if (bytes > 0) copy(from, i, at[i], bytes);
        from += bytes;
        at[i] += bytes;
      }
    }
    return;
  }
  for (const Bundle& bundle : bundles_) {
    char* source = scatters() ? from : from + bundle.offset;
    for (const uint32_t i : bundle.members) {
      const size_t bytes = result_rows_[i] * arrays_[i].row_bytes();
      if (bytes > 0) copy(source, i, 0, bytes);
      source += bytes;
    }
    if (scatters()) from = source;
  }
}

void List::unpack(char* from, const std::vector<char*>& to) const {
  unpack(from, [&](char* staged, uint32_t i, size_t first, size_t bytes) {
    std::memcpy(to[i] + first, staged, bytes);
  });
}

}  // namespace herring::calls
