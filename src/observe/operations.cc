#include "observe/operations.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace herring::observe {
namespace {

template <size_t kSize>
uint8_t place_in(const std::array<const char*, kSize>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end() - 1, name);
  return static_cast<uint8_t>(found - names.begin());
}

// Returns the collective that an entry is counted as, if it is counted.
std::optional<uint8_t> collective_of(const Entry& entry) {
  switch (entry.kind) {
    case Kind::kBuffer: return place_in(kCollectives, "allreduce");
    case Kind::kCall:
      // The name of a call begins with its collective: "allreduce 'x'".
      return place_in(kCollectives, entry.title().substr(0, entry.title().find(' ')));
    case Kind::kRound:
      // A series of partial rounds has no stream of its own; the streams of plans are never 0.
      if (entry.stream == 0) return place_in(kCollectives, "partial_allreduce");
      return std::nullopt;
    case Kind::kSum: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

void OperationCounts::add(const Entry& entry) noexcept {
  const std::optional<uint8_t> collective = collective_of(entry);
  const Nanos begin = entry.when(Moment::kReady) != 0 ? entry.when(Moment::kReady)
                                                      : entry.when(Moment::kCalled);
  const Nanos end = entry.when(Moment::kDone);
  // A partial round to which this rank gave nothing has no beginning here.
  if (!collective || begin == 0 || end < begin) return;
  const auto size = std::upper_bound(kSizeLimits.begin(), kSizeLimits.end(), entry.bytes);
  const auto place = static_cast<size_t>(size - kSizeLimits.begin());
  OperationCount& cell = cells_[*collective * kMessageSizes.size() + place];
  ++cell.ended;
  cell.bytes += entry.bytes;
  cell.time += end - begin;
}

std::vector<OperationCount> OperationCounts::all() const {
  std::vector<OperationCount> found;
  for (size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i].ended == 0) continue;
    found.push_back(cells_[i]);
    found.back().collective = static_cast<uint8_t>(i / kMessageSizes.size());
    found.back().size = static_cast<uint8_t>(i % kMessageSizes.size());
  }
  return found;
}

}  // namespace herring::observe
