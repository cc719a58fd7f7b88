// Finds out which results, ends of series and answers no rank of a group can lack any more, and
// tells the ranks, which keep them for each other (wire/settled.h). Pure bookkeeping without I/O;
// the caller holds a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/group_table.h"
#include "wire/settled.h"

namespace herring::server {

class Settlements {
 public:
  // What a group can have open at most. Of more than this nothing is noted, so ranks keep it until
  // they destroy the group.
  static constexpr size_t kMostOpen = 1 << 16;

  explicit Settlements(const GroupTable& groups) : groups_(groups) {}

  // Notes the statements of a rank; `text` is the payload of kSettled.
  Status say(uint32_t rank, uint32_t group, std::string_view text);
  // Ranks are gone, from the job or from a group, so others no longer keep anything for them.
  void some_gone() { some_gone_ = true; }
  // Appends what has become settled. Statements that come together are answered together, so this
  // is to be called now and then, not after each.
  void settle(std::vector<Answer>& out);

  size_t open() const;  // how many subjects have statements that do not agree

 private:
  struct Statements {
    std::map<uint32_t, uint64_t> by;  // index of a rank, and up to where it lacks nothing
    uint64_t told = 0;                // what all ranks know
  };
  using Subjects = std::map<wire::Subject, Statements>;

  bool is_gone(const JobGroup& group, uint32_t index) const;
  bool agree(const JobGroup& group, const Statements& said, uint64_t* settled) const;

  const GroupTable& groups_;
  std::map<uint32_t, Subjects> said_;                     // by group
  std::set<std::pair<uint32_t, wire::Subject>> changed_;  // since the last settle()
  bool some_gone_ = false;
};

}  // namespace herring::server
