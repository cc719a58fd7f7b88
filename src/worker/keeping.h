// What this rank keeps for others, in a job that goes on when a server dies, and until when:
// results of transfers (Links), answers to calls (Handovers) and the ends of series
// (SeriesMemory). Engine thread.
//
// Most of it is settled by what comes later in the same stream. But nothing comes later once a
// plan or a series is closed, or while it rests. So what has rested for a moment is settled by
// statements (wire/settled.h): this rank says what it lacks no more, and frees what all ranks of
// the group have said. Why nobody can ask for it after that:
//
// - Only a rank that has pushed a segment, or made a call, can lack its result. Whoever has the
//   result knows that all those have pushed, or called.
// - A rank pushes the transfers of a stream in one order on all ranks, and gets the answers of a
//   home in the order of their numbers. So who has said "up to here" pushes nothing earlier, and
//   asks for no earlier answer, whichever servers die later.
// - This rank frees only what it has itself said. So a rank that has not begun is waited for.
//
// A statement stays true, so it is simply repeated to the server that takes over. What was settled
// a short time ago is repeated, too: others may have had no time to hear of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "calls/handovers.h"
#include "engine/core.h"
#include "rounds/series_list.h"
#include "wire/settled.h"

namespace herring::worker {

class Keeping {
 public:
  // While more than this is kept, nothing has to rest before it is settled.
  static constexpr size_t kAtEase = 16u << 20;

  Keeping(engine::Core& core, calls::Handovers& handovers, rounds::SeriesList& series)
      : core_(core), handovers_(handovers), series_(series) {}

  // To be called regularly: tells servers what this rank lacks no more.
  void tick(Nanos now);
  // Frees what no rank of the group lacks; `text` is the payload of kSettled.
  Status receive(uint32_t group, std::string_view text);
  // Returns how many bytes are kept for others.
  size_t bytes() const;

 private:
  using Where = std::pair<uint32_t, wire::Subject>;  // the group, and what in it
  struct Statement {
    uint64_t seen = 0;    // up to where nothing was lacked at the last look
    uint64_t upto = 0;    // what was said
    std::optional<engine::Owner> to;  // to whom; nobody yet, if it is new
    Nanos here = 0;       // when there was last something to say
  };

  std::vector<std::pair<Where, uint64_t>> complete() const;
  std::optional<engine::Owner> owner_of(const Where& where) const;

  engine::Core& core_;
  calls::Handovers& handovers_;
  rounds::SeriesList& series_;
  std::map<Where, Statement> said_;
  Nanos due_ = 0;
};

}  // namespace herring::worker
