// The numbers of groups that are formed: each one gets a number that no other group of the job has.
//
// A server may be lost when it has told the number to some members only. None of these uses the
// group before all servers that are left, and replacements that come meanwhile, know it from all
// members. Until then, they announce the number to the server that answers instead, which gives it
// to the others. Members that use the group already announce nothing: nobody lacks the number.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/streams.h"
#include "server/pending.h"

namespace herring::server {

using Home = std::pair<uint32_t, uint32_t>;   // number of the group, and home
using Name = std::pair<Home, std::string>;

// Returns the place of a call. A group is known by its ranks, too, until it is formed. One member
// may form the next group of that name while others still wait for this one.
Name name_of(const Home& home, const wire::Announce& message);

class GroupNumbers {
 public:
  // `servers`: of the job.
  explicit GroupNumbers(uint32_t servers) : servers_(servers) {}

  // Notes that a member has the group's number from a server that is lost.
  Status note(const Name& name, uint32_t number, uint32_t rank, uint32_t index);
  // Members that have the number need not call again.
  void count(const Name& name, Pending& pending) const;
  // Returns the number of a group that all members form, or nothing if there are too many.
  std::optional<uint32_t> take(const Name& name, const Reign& reign);

 private:
  // The number of a group that a server gave before it was lost, and which members say so.
  struct Numbered {
    uint32_t number = 0;
    std::vector<uint32_t> by;  // by index
  };

  const uint32_t servers_;
  std::map<Reign, uint32_t> formed_;   // how many groups were formed here
  std::map<Name, Numbered> numbered_;  // groups that some members have yet to hear of
};

}  // namespace herring::server
