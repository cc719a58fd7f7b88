// The work that the GPUs of a node's ranks do together for one plan. Each GPU combines its slice of
// every fusion buffer, and all get the slices' results (paper, III-B, steps 1, 2 and 5).
//
//   kHost     the processors of the ranks combine, in host memory
//   kStaged   a GPU combines: copy engines bring it what its neighbours' copy engines have put into
//             pinned host memory, and copy its slice back there. It takes the other slices' results
//             from where they are
//   kIpc      a GPU reads and writes the memory of its neighbours' GPUs. If there are other nodes,
//             only the sum of its slice leaves it, and only the slice's result comes back, which it
//             gives to its neighbours
//
// In the first two rounds, the processors combine. Meanwhile the ranks exchange cards that say what
// each of them has and can reach. So all ranks change over in the same round without negotiation.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/copier.h"
#include "rounds/node_devices.h"

namespace herring::rounds {

class DeviceNode final : public PlannedDevices {
 public:
  enum Level : uint8_t { kHost, kStaged, kIpc };

  explicit DeviceNode(device::Copier& copier) : copier_(copier), device_(copier.device()) {}
  ~DeviceNode() override;

  // The following calls come from threads that may call the device's driver, one call at a time.

  // `plan` must have been created with this object. It and the copier must outlive all calls
  // except the destructor, which may run on the engine's thread. `arenas`: addresses on the device.
  void attach(PlanOnNode plan, std::vector<device::Address> arenas);
  // Prepares round `round`, which has not begun. The round before it must have succeeded.
  void prepare(uint32_t round);
  Level level() const { return level_; }

  // Returns which parts of `range`, a part of the buffer in its arena, the neighbours need in host
  // memory.
  std::vector<plan::Range> to_copy_out(uint32_t buffer, const plan::Range& range) const;
  // Queues this rank's part of a buffer whose gradients are all on their way. `added` and `given`
  // are called after these steps; see NodeStage and Copier.
  Status queue(uint32_t buffer, device::Watcher::Then added, device::Watcher::Then given);
  // Returns the copies that bring a buffer back when it is averaged.
  std::vector<device::Copy> to_copy_back(uint32_t buffer) const;
  // Returns the part of an arena on this device that no neighbour's device reads or writes in the
  // running round, because this rank combines it.
  plan::Range own_slice(uint32_t buffer) const;
  // Advances the flag values for a new round, when the running one is over.
  void count_on();
  // Returns the flags for other uses, once no stream waits for them any more.
  void give_back_flags();
  // After the last round: keeps the arenas in host memory from being reused. Neighbours may still
  // copy from them at any later time.
  void part_with_arenas();
  // Releases what this object has on the device, once no work queued here is running any more.
  void let_go();

  // The round has failed: work that has not begun does nothing, and no stream waits. Any thread.
  void release();

  void write_card(uint32_t round, char* card) override;
  void read_cards(const std::vector<char>& cards) override;
  void learn(uint32_t buffer, std::vector<PostedMemory> memory) override;
  std::shared_ptr<SliceAdder> adder(uint32_t buffer) override;

 private:
  class Adder;
  struct Step;
  struct Card;
  // One rank's copy of one arena, as this rank reaches it.
  struct Part {
    PostedMemory host;                       // a neighbour's; guarded by mutex_ in the first round
    char* memory = nullptr;                  // the host memory as mapped here
    device::Address address = 0;             // on a device; 0 if this rank cannot reach it
    std::unique_ptr<device::Exported> from;  // the import to close
  };

  Status usable() const;
  std::vector<char> last_cards();
  // Returns the highest level that this rank can use, given the cards of the others.
  Result<Level> meet(const std::vector<char>& cards);
  Status reach_host_memory();
  Status reach_devices(const std::vector<char>& cards);
  Status load_kernels();
  Status make_adders();
  Status take_scratch();
  size_t largest_slice() const;
  device::Copier::Sum sum_of(uint32_t buffer) const;
  device::Copier::Sum gift_of(uint32_t buffer) const;
  // Returns where this rank's slice of a buffer begins in an arena.
  size_t own_offset(uint32_t buffer) const;
  // Returns what both have: a kernel for this rank's slice that reads its command.
  device::Copier::Sum step_of(uint32_t buffer, bool gift) const;
  // Returns whether this rank gives the results of its slices to its neighbours' devices.
  bool gives() const { return level_ == kIpc && !one_node(); }
  // Returns how many steps there may be for each buffer: a sum, and the gift of its result.
  size_t steps() const { return one_node() ? 1 : 2; }
  void give_back_flags(const std::vector<std::shared_ptr<Adder>>& adders);
  const plan::Plan& plan() const { return *planned_.plan; }
  uint32_t places() const { return planned_.group->local_size(); }
  uint32_t own_place() const { return planned_.group->local_index(); }
  bool one_node() const { return planned_.group->members().nodes() == 1; }

  device::Copier& copier_;
  device::Device& device_;
  PlanOnNode planned_;
  std::vector<device::Address> arenas_;
  Level level_ = kHost, reached_ = kHost;
  std::vector<device::Kernel> kernels_;    // by arena
  // Memory on the device for commands, and for the neighbours' parts of the slice being combined.
  device::Address scratch_ = 0;
  size_t parts_scratch_ = 0;               // offset of these parts
  std::vector<std::vector<Part>> parts_;   // by place, by arena
  std::mutex mutex_;
  std::vector<char> cards_;                // of the last round that had some; guarded by mutex_
  std::vector<std::shared_ptr<Adder>> adders_;  // by buffer; set once, before the first use
};

// Returns the value that the setting node_stage has for this level.
const char* name_of(DeviceNode::Level level);

}  // namespace herring::rounds
