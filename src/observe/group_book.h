// What a worker knows of the groups that it is in, and of what it does in them. Reports tell each
// group once, and later only what has changed, a bounded part at a time. Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "observe/entry.h"

namespace herring::observe {

// What one rank tells of one group.
struct GroupNews {
  uint32_t group = 0;
  bool gone = false;           // the rank has left the group
  uint64_t rounds = 0, calls = 0, in_flight = 0;
  Nanos age = 0;               // for how long something is in flight and nothing has ended
  std::string name;            // of a group that is told for the first time
  std::vector<uint32_t> ranks;  // the same; ascending. Empty later, and for the group of all ranks
};

inline constexpr size_t kMostGroupNews = 64;      // in a report or a record
inline constexpr size_t kMostGroupRanks = 8192;   // of all groups there; a larger one is not told
inline constexpr size_t kMostGroupNameBytes = 80;

class GroupBook {
 public:
  // A book that is off counts nothing and has no news.
  explicit GroupBook(bool on);

  // This rank is a member of a group from now on; the group of all ranks is known.
  void add(uint32_t group, std::string name, std::vector<uint32_t> ranks);
  void remove(uint32_t group);
  // Gives a group the name that people know.
  void rename(uint32_t group, const std::string& name);
  // The program begins a round or a call in the group, or one has ended there. A time of 0 is not
  // known.
  void begin(uint32_t group, Kind kind, Nanos now) noexcept;
  void end(uint32_t group, Nanos now) noexcept;

  // Returns what was not told yet, at most kMostGroupNews of it, oldest first.
  std::vector<GroupNews> news(Nanos now);
  // What was told may not have arrived, so that all is told again.
  void tell_again();

 private:
  struct GroupEntry {
    uint32_t number = 0;
    std::string name;
    std::vector<uint32_t> ranks;
    uint64_t rounds = 0, calls = 0, over = 0;
    Nanos since = 0;           // when something was first in flight, or when the last one ended
    bool told = false;         // its name and its ranks
    bool queued = false;       // it is in changed_
    std::list<GroupEntry*>::iterator place;  // in changed_ or in quiet_
  };

  void change(GroupEntry& known) noexcept;
  GroupEntry* find(uint32_t group) noexcept;

  const bool on_;
  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;                  // guards everything below
  std::map<uint32_t, GroupEntry> groups_;  // by number
  std::list<GroupEntry*> changed_, quiet_;  // groups that have news, and the others
  std::deque<uint32_t> gone_;         // told groups that this rank has left
};

}  // namespace herring::observe
