// The groups of a job as a server knows them: their members say who is in them before they use
// them. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/group.h"

namespace herring::server {

// How a rank is gone that has said goodbye.
inline constexpr const char* kLeftJob = "has left the job";

struct JobGroup {
  JobGroup(control::Group members, uint16_t credit)
      : members(std::move(members)), credit(credit) {}

  const control::Group members;
  std::atomic<uint16_t> credit;     // segments; as its first rank steers it
  // A member is dead or has given up: what moves bytes in it is called off.
  std::atomic<bool> called_off{false};

  // The coordinator's.
  struct Gone {
    uint32_t index;
    std::string how;  // kLeftJob, or what else comes after its name in a message
  };
  std::vector<Gone> gone;  // who calls nothing in it any more, in that order
  uint32_t next_ticket = 0;
  bool told = false;       // its members, that one of them has called it off

  bool is_gone(uint32_t index) const;
  // Unless it is no member, or known to be gone.
  void add_gone(uint32_t rank, const std::string& how);
};

class GroupTable {
 public:
  // Groups that may be there at a time.
  static constexpr size_t kMost = 1 << 16;

  // With the world in it.
  explicit GroupTable(const control::Cluster& cluster, uint16_t credit = 1);

  // Null: nobody has defined it.
  std::shared_ptr<JobGroup> find(uint32_t id) const;
  const std::shared_ptr<JobGroup>& world() const { return world_; }
  // What `rank` says of group `id` in its operation `call`, which take_defined() answers once.
  // kInvalidArgument: there are too many; kMismatch: others say something else; kProtocol:
  // nonsense.
  Status define(uint32_t id, std::string name, std::vector<uint32_t> ranks, uint32_t rank,
                uint64_t call = 0);
  // Those who have defined a group that all its members have defined, or that one who has not never
  // will: all of them hear the same.
  struct Defined {
    uint32_t group, rank;
    uint64_t call;
    Status status;
  };
  std::vector<Defined> take_defined();
  // `rank` is not in it any more. It is forgotten when nobody is.
  void leave(uint32_t id, uint32_t rank);
  // The rank calls nothing any more: it has left the job, or is dead.
  // `how` goes on after the rank's name in a message, for example kLeftJob.
  void rank_gone(uint32_t rank, const std::string& how);
  bool is_gone(uint32_t rank) const;
  // Notes in a new group who is gone already.
  void note_gone(JobGroup& group) const;
  // All of which `rank` is a member; the world comes first.
  std::vector<std::shared_ptr<JobGroup>> of_rank(uint32_t rank) const;
  // Whether there are groups beside the world without this rank.
  bool any_without(uint32_t rank) const;

 private:
  struct Entry {
    std::shared_ptr<JobGroup> group;
    std::vector<bool> defined, left;  // by index
    std::vector<std::pair<uint32_t, uint64_t>> waiting;  // ranks that have defined it, and calls
  };

  bool nobody_left(const Entry& entry) const;

  const control::Cluster& cluster_;
  const std::shared_ptr<JobGroup> world_;
  mutable std::mutex mutex_;  // guards everything below
  std::map<uint32_t, Entry> groups_;           // without the world
  std::set<uint32_t> forming_;                 // groups in which somebody waits
  std::map<uint32_t, std::string> gone_;       // ranks, with how
};

}  // namespace herring::server
