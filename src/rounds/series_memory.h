// What a rank keeps of a series of partial all-reduces, so that another server can become the owner
// (server/series_take_over.cc). It outlives the series for a while: other ranks may lack the end.
// Engine thread.
#pragma once

#include <cstdint>

#include "engine/group.h"
#include "engine/owners.h"
#include "partial/series_state.h"
#include "wire/partial.h"

namespace herring::links {
class Links;
}

namespace herring::rounds {

using engine::Group, engine::Owner;

class SeriesMemory {
 public:
  // `enlist`: what the owner is told. `pushes` means the same as in partial::Memory.
  SeriesMemory(const Group& group, wire::Enlist enlist, bool pushes);

  uint32_t group() const { return group_; }
  uint32_t home() const { return home_; }  // of the series' name
  uint64_t id() const { return wire::series_id(enlist_.name, group_, enlist_.number); }
  // Tells the next owner everything.
  void tell(links::Links& links, const Owner& owner);

  partial::Memory known;

 private:
  const uint32_t group_, home_;
  const wire::Enlist enlist_;
};

// Tells the next owner of series of a home that this rank has told everything.
void end_telling(links::Links& links, uint32_t group, const Owner& owner);

}  // namespace herring::rounds
