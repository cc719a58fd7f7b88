#include "observe/deadlock.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/lists.h"
#include "base/status.h"

namespace herring::observe {
namespace {

// More calls than this are counted.
constexpr size_t kMostCalls = 8;

}  // namespace

bool is_deadlocked(std::span<const Stillness> all, Nanos now) {
  Nanos latest_begin = -kEndless, earliest_end = kEndless;
  for (const Stillness& one : all) {
    const auto& [since, until] = one.still;
    if (!one.takes_part || one.error < 0 || one.error > kCertain || until == 0) return false;
    if (until - since < kCertain || now - until + one.error > kLatest) return false;
    latest_begin = std::max(latest_begin, since + one.error);
    earliest_end = std::min(earliest_end, until - one.error);
  }
  return !all.empty() && latest_begin < earliest_end;
}

std::string describe_deadlock(std::span<const Waiting> ranks) {
  struct Place {
    std::string_view where;  // "waits in allreduce 'a'"
    std::vector<uint32_t> ranks;
    Nanos longest = 0;
  };
  std::vector<Place> places;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& [where, age] = ranks[rank];
    auto place = std::ranges::find(places, where, &Place::where);
    if (place == places.end()) place = places.insert(place, {where, {}, 0});
    place->ranks.push_back(rank);
    place->longest = std::max(place->longest, age);
  }
  const auto show = [](const Place& place) {
    const auto& [where, there, longest] = place;
    const std::string_view in = where.substr(std::min(where.size(), where.find(' ')));
    return concat(list_ranks(there), there.size() == 1 ? " waits" : " wait", in, " (",
                  in_seconds(longest), ")");
  };
  const size_t shown = std::min(places.size(), kMostCalls);
  std::string who = list_of(std::span(places).first(shown), show, "; ");
  if (places.size() > kMostCalls) {
    who += concat("; others in ", counted(places.size() - kMostCalls, "more call"));
  }
  return concat(ranks.size() == 1 ? "the only rank waits"
                                  : concat("all ", ranks.size(), " ranks wait"),
                ", and no thread is left that could end a wait: ", who,
                "; make the same calls on all ranks of a group, and give each message its other "
                "side");
}

}  // namespace herring::observe
