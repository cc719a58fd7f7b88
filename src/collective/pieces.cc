#include "collective/pieces.h"

#include <algorithm>
#include <utility>

#include "collective/run.h"

namespace herring::collective {
namespace {

// Pieces this short let the next step begin early, and are long enough for copy engines.
constexpr size_t kShortest = size_t{1} << 20;
constexpr size_t kMostPieces = 8;  // of a range
static_assert(kShortest % kFrameBytes == 0);

std::vector<Range> parts_of(const Range& range) {
  const size_t even = (range.bytes + kMostPieces - 1) / kMostPieces;
  const size_t part = std::max(kShortest, (even + kFrameBytes - 1) / kFrameBytes * kFrameBytes);
  std::vector<Range> parts;
  for (size_t at = 0; at < range.bytes; at += part) {
    parts.push_back({range.offset + at, std::min(part, range.bytes - at)});
  }
  return parts;
}

// Ranges in which the image equals the device's array, in ascending order and without overlap.
class Current {
 public:
  void add(Range range) {
    remove(range);
    ranges_.push_back(range);
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.offset < b.offset; });
  }
  void remove(const Range& range) { ranges_ = without(ranges_, range); }
  // Returns the parts of a range that are not up to date in the image.
  std::vector<Range> missing(const Range& range) const {
    std::vector<Range> left = {range};
    for (const Range& one : ranges_) left = without(left, one);
    return left;
  }

 private:
  static std::vector<Range> without(const std::vector<Range>& ranges, const Range& hole) {
    std::vector<Range> left;
    for (const Range& one : ranges) {
      if (!overlap(one, hole)) {
        left.push_back(one);
        continue;
      }
      if (one.offset < hole.offset) left.push_back({one.offset, hole.offset - one.offset});
      if (one.end() > hole.end()) left.push_back({hole.end(), one.end() - hole.end()});
    }
    return left;
  }

  std::vector<Range> ranges_;
};

}  // namespace

std::vector<Piece> cut(const Schedule& schedule, size_t bytes, bool scales,
                       const std::vector<bool>& near) {
  std::vector<Piece> ins;
  std::vector<std::pair<size_t, Piece>> outs;  // with the number of `ins` that must come first
  if (scales && bytes > 0) ins.push_back({Piece::What::kScale, 0, {0, bytes}});
  Current current;
  size_t before = 0;
  for (uint32_t i = 0; i < schedule.size(); ++i) {
    const Operation& message = schedule[i];
    const bool is_near = !near.empty() && near[i];
    if (message.kind == Operation::Kind::kReceive) {
      Piece::What what = Piece::What::kCopy;
      if (message.sums()) {
        what = schedule[message.half].finishes ? Piece::What::kFinish : Piece::What::kReduce;
      }
      for (const Range& part : parts_of(message.range)) ins.push_back({what, i, part});
      const bool in_image = what == Piece::What::kCopy && !is_near;
      in_image ? current.add(message.range) : current.remove(message.range);
    }
    if (message.kind != Operation::Kind::kSend) continue;
    const std::vector<Range> missing =
        is_near ? std::vector<Range>{message.range} : current.missing(message.range);
    for (const Range& range : missing) {
      for (const Range& part : parts_of(range)) {
        for (size_t k = before; k < ins.size(); ++k) {
          if (overlap(ins[k].range, part)) before = k + 1;
        }
        outs.push_back({before, {Piece::What::kOut, i, part}});
      }
      if (!is_near) current.add(range);
    }
  }
  std::vector<Piece> all;
  auto out = outs.begin();
  for (size_t k = 0; k <= ins.size(); ++k) {
    for (; out != outs.end() && out->first <= k; ++out) all.push_back(out->second);
    if (k < ins.size()) all.push_back(ins[k]);
  }
  return all;
}

}  // namespace herring::collective
