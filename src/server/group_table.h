// The groups of a job as a server knows them. Members define a group at its servers before they use
// it. Any thread.
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

// The text `how` of a rank that has left the job.
inline constexpr const char* kLeftJob = "has left the job";
inline constexpr const char* kDestroyedGroup = "has destroyed the group";

struct JobGroup {
  JobGroup(const control::Cluster& cluster, control::Group members, uint16_t credit)
      : members(std::move(members)),
        owners(control::shard_map(cluster, this->members).owners),
        credit(credit) {}

  const control::Group members;
  const std::vector<uint32_t> owners;  // servers that may serve it
  std::atomic<uint16_t> credit;     // segments; steered by the first rank
  // Set when a member has died or given up: operations that move bytes in the group are called off.
  std::atomic<bool> called_off{false};

  // The fields below belong to the coordinator.
  struct Gone {
    uint32_t index;
    std::string how;  // kLeftJob, or other text that follows the rank's name in a message
  };
  std::vector<Gone> gone;  // members that make no more calls in the group, in order of departure
  uint32_t next_ticket = 0;
  // The calls of one home that are answered here.
  struct Sequence {
    uint32_t epoch = 0;     // of the reign
    uint64_t answered = 0;  // number of the latest answer
    uint32_t servers = 0;   // epoch of the latest set of servers that a member has told
  };
  std::map<uint32_t, Sequence> sequences;  // by home
  bool told = false;       // members were told that one of them has called the group off

  bool is_gone(uint32_t index) const;
  // Returns whether the member is gone from the group alone, and by its own will.
  bool has_destroyed(uint32_t index) const;
  // Adds the rank unless it is not a member, or already known to be gone.
  void add_gone(uint32_t rank, const std::string& how);
};

class GroupTable {
 public:
  // The maximum number of groups at a time.
  static constexpr size_t kMost = 1 << 16;

  // Creates a table that contains the world.
  explicit GroupTable(const control::Cluster& cluster, uint16_t credit = 1);

  // Returns null if nobody has defined the group.
  std::shared_ptr<JobGroup> find(uint32_t id) const;
  const std::shared_ptr<JobGroup>& world() const { return world_; }
  // Records what `rank` says about group `id` in its operation `call`, which take_defined() answers
  // once: when all members have defined the group, or at once if it is `formed` already, at other
  // servers. Returns kInvalidArgument if there are too many groups, kMismatch if other ranks say
  // something else, and kProtocol if the definition makes no sense.
  Status define(uint32_t id, std::string name, std::vector<uint32_t> ranks, uint32_t rank,
                uint64_t call = 0, bool formed = false);
  // A rank that has defined a group which all its members have defined, or which some member never
  // will define. All members get the same status.
  struct Defined {
    uint32_t group, rank;
    uint64_t call;
    Status status;
  };
  std::vector<Defined> take_defined();
  // Removes `rank` from the group. The group is forgotten when no member is left.
  void leave(uint32_t id, uint32_t rank);
  // Handles a rank that makes no more calls: it has left the job or is dead. `how`: text that
  // follows the rank's name in a message, for example kLeftJob.
  void rank_gone(uint32_t rank, const std::string& how);
  bool is_gone(uint32_t rank) const;
  // Adds the ranks that are already gone to a new group.
  void note_gone(JobGroup& group) const;
  // Returns all groups of which `rank` is a member, the world first.
  std::vector<std::shared_ptr<JobGroup>> of_rank(uint32_t rank) const;
  // Returns whether there is a group without this rank that is not called off.
  bool any_without(uint32_t rank) const;

 private:
  struct Entry {
    std::shared_ptr<JobGroup> group;
    std::vector<bool> defined, left;  // by index
    std::vector<std::pair<uint32_t, uint64_t>> waiting;  // ranks that defined it, their calls
  };

  bool nobody_left(const Entry& entry) const;

  const control::Cluster& cluster_;
  const std::shared_ptr<JobGroup> world_;
  mutable std::mutex mutex_;  // guards everything below
  std::map<uint32_t, Entry> groups_;           // all but the world
  std::set<uint32_t> forming_;                 // groups in which some rank waits for an answer
  std::vector<Defined> answered_;              // not taken yet
  std::map<uint32_t, std::string> gone_;       // ranks, and how they went
};

}  // namespace herring::server
