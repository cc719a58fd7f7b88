// The news of groups in reports and records.
#pragma once

#include <vector>

#include "base/fields.h"
#include "observe/group_book.h"

namespace herring::observe {

template <typename Io>
void fields(Io& io, Of<Io, GroupNews>& one) {
  io(one.group, one.gone, one.rounds, one.calls, one.in_flight);
  io.times(one.age);
  io.people(one.name, kMostGroupNameBytes);
  io(one.ranks);
}

template <typename Io>
void group_fields(Io& io, Of<Io, std::vector<GroupNews>>& groups) {
  io.list(groups, kMostGroupNews);
  size_t ranks = 0;
  for (const GroupNews& one : groups) ranks += one.ranks.size();
  io.check(ranks <= kMostGroupRanks);
}

}  // namespace herring::observe
