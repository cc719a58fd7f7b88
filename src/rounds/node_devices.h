// What the devices of a node's ranks do in the rounds of a plan: the interface to them, and what
// they have to know of the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "node/node_work.h"
#include "node/shared_memory.h"
#include "plan/plan.h"
#include "rounds/rounds.h"

namespace herring::rounds {

// A plan as it lies in the host memory of a node. The plan and the arenas live as long as the
// planned operation or a round of it.
struct PlanOnNode {
  const plan::Plan* plan = nullptr;
  std::shared_ptr<Group> group;
  std::string name;
  ReduceOp op = ReduceOp::kAverage;
  bool narrow = false;                 // what travels between nodes has another dtype
  std::string node_stage;              // value of the setting node_stage
  std::shared_ptr<SharedHeap> heap;
  std::vector<char*> arenas;           // in the heap
  // The part of each fusion buffer that the rank with each local index combines, by buffer.
  std::vector<std::vector<plan::Range>> slices;
};

// Engine thread, unless stated otherwise. See DeviceNode.
class PlannedDevices {
 public:
  // Size of the card that each rank of a node gives the others, and number of rounds in which it
  // does.
  static constexpr size_t kCardBytes = 1024;
  static constexpr uint32_t kCardRounds = 2;

  virtual ~PlannedDevices() = default;
  // Writes the card of this rank; called on the thread that begins the round.
  virtual void write_card(uint32_t round, char* card) = 0;
  // Called before the end of such a round with the cards of all ranks, sorted by local index.
  virtual void read_cards(const std::vector<char>& cards) = 0;
  // Called when all ranks of the node have posted a buffer in the first round. `memory` says where,
  // sorted by local index.
  virtual void learn(uint32_t buffer, std::vector<PostedMemory> memory) = 0;
  // Returns null if the processor combines this rank's slice of the buffer.
  virtual std::shared_ptr<SliceAdder> adder(uint32_t buffer) = 0;
};

}  // namespace herring::rounds
