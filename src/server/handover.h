// Takes over the names of a home in one group from a server that is gone. The calls that wait
// there, their numbers, and answers on their way are lost. So every rank says which answers it has,
// and announces again what is not answered. Until all have done so, announcements are held.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/streams.h"
#include "server/group_table.h"
#include "server/pending.h"
#include "wire/handover.h"

namespace herring::server {

struct Handover {
  Reign reign;
  std::shared_ptr<JobGroup> group;
  bool warned = false;
  std::vector<std::optional<wire::Handover>> said;  // by index
  std::vector<Announcement> held;                   // in order of arrival

  // Returns the first call of that name that is held for a member.
  std::vector<Announcement>::iterator find(uint32_t index, const std::string& name);
  // Returns the members that have not said which answers they have, and are not gone.
  std::vector<uint32_t> missing() const;
};

// An answer that some ranks have and others, of these indices, have not.
struct Lacked {
  const wire::KeptAnswer* answer = nullptr;
  std::vector<uint32_t> by;
};

// What follows from all that was said.
struct KnownAnswers {
  uint64_t highest = 0;        // number of an answer
  std::vector<Lacked> lacked;  // in the order of their numbers
};

// Returns kPeerLost if a rank lacks an answer that another rank had and no longer keeps. The result
// refers to the hand-over.
Result<KnownAnswers> what_is_known(const Handover& handover);

}  // namespace herring::server
