#include "links/check.h"

#include <algorithm>

namespace herring::links {

Result<ResultPlace> check_result(const Transfer* transfer, uint32_t server,
                                 const wire::FrameHeader& header, size_t segment_bytes,
                                 size_t outstanding) {
  const auto nonsense = [&](const char* what) {
    return breach("server ", server, " sent a result ", what, " (stream ", header.stream,
                  ", round ", header.round, ", buffer ", header.buffer, ", segments ",
                  header.first_segment, "+", header.segments, ")");
  };
  if (transfer == nullptr) return nonsense("that no transfer waits for");
  const uint32_t home = header.home == 0 ? server : header.home - 1u;
  uint32_t r = 0;
  for (; r < transfer->runs.size(); ++r) {
    if (home_of(*transfer, r) == home) break;
  }
  if (r == transfer->runs.size()) return nonsense("of a shard that another server owns");
  const plan::SegmentRun& run = transfer->runs[r];
  const uint64_t first = header.first_segment, count = header.segments;
  if (first < run.first || first + count > uint64_t{run.first} + run.count) {
    return nonsense("of segments that were not pushed");
  }
  const RunRoute* const way = transfer->ways.empty() ? nullptr : &transfer->ways[r];
  const bool elsewhere = is_elsewhere(*transfer, r, server, header);
  if (way == nullptr && home != server) return nonsense("of a shard that another server owns");
  const bool empty = header.flags & wire::kFlagEmpty;
  const bool unused = elsewhere || (header.flags & wire::kFlagMoved);
  // A server acknowledges results that were given to it.
  bool given = way != nullptr && way->again && empty;
  for (uint64_t s = first; s < first + count; ++s) {
    const bool answered = transfer->answered[r][s - run.first];
    given &= answered;
    if (answered && !unused && !(empty && way != nullptr && way->again)) return nonsense("twice");
  }
  const plan::Shard& shard = transfer->shards[run.shard];
  const size_t begin = first * segment_bytes;
  const size_t bytes = std::min(count * segment_bytes, shard.bytes - begin);
  const bool lacks = (header.flags & wire::kFlagCalledOff) || unused || given;
  if ((empty != (transfer->receive == nullptr) && !(empty && lacks) && !elsewhere) ||
      header.payload != (empty ? 0 : result_bytes(bytes, transfer->open.dtype))) {
    return nonsense("of the wrong length");
  }
  const RunRoute::Outstanding* const old =
      elsewhere ? elsewhere_of(*transfer, r, server, header.epoch) : nullptr;
  const uint32_t on_the_way =
      elsewhere ? (old == nullptr ? 0 : old->segments) : transfer->on_the_way[r];
  if (count > on_the_way || count > outstanding) return nonsense("beyond what is outstanding");
  return ResultPlace{r, {shard.offset + begin, bytes}, empty, unused};
}

}  // namespace herring::links
