// What the rendezvous knows of the groups of a job: who is in them, as members have told, and what
// each member does there. Its size is bounded, however many groups a job makes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "observe/group_book.h"

namespace herring::observe {

class Groups {
 public:
  // Groups beyond these, and members beyond these in all groups but that of all ranks, are not
  // kept.
  static constexpr size_t kMost = 4096, kMostMembers = 1 << 17;

  // What all members do in a group at one moment.
  struct View {
    uint32_t group = 0;
    std::string name;
    std::shared_ptr<const std::vector<uint32_t>> ranks;  // ascending
    uint64_t rounds = 0, calls = 0, in_flight = 0;       // of the member with the most
    Nanos age = 0;  // for how long something is in flight on some member and nothing has ended
    std::vector<uint32_t> absent;  // members with nothing in flight, if others wait for long
    bool outlier = false;          // a program waits, and nothing has ended for long
  };

  // All ranks of the job, 0 to `size` - 1, are group 0.
  explicit Groups(uint32_t size);

  // A rank has told of a group. News that contradict what is known are dropped.
  void add(uint32_t rank, const GroupNews& news, Nanos now);
  // A rank has died or left: nothing of it is in flight any more.
  void gone(uint32_t rank);
  // Returns all groups by number. `waits`: whether the program of a rank waits for long.
  std::vector<View> views(Nanos now, const std::function<bool(uint32_t rank)>& waits) const;

 private:
  struct Member {
    bool told = false, gone = false;
    uint64_t rounds = 0, calls = 0, in_flight = 0;
    Nanos age = 0, at = 0;  // as told at that time
  };
  struct Group {
    std::string name;
    std::shared_ptr<const std::vector<uint32_t>> ranks;
    std::vector<Member> members;  // in the order of their ranks
  };

  Member* member(Group& group, uint32_t rank);
  bool learn(uint32_t rank, const GroupNews& news);

  const uint32_t size_;
  std::map<uint32_t, Group> groups_;
  size_t members_ = 0;            // in all groups but that of all ranks
  std::vector<bool> gone_;        // by rank
};

}  // namespace herring::observe
