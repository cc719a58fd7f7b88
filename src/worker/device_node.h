// What the GPUs of a node's ranks do together for one plan: each combines its slice of every fusion
// buffer, and takes the others' results from where they are (paper, III-B, steps 1, 2 and 5).
//
//   kHost     the ranks' processors do it, in host memory
//   kStaged   a GPU does it: copy engines bring it what its neighbours' copy engines have put into
//             pinned host memory, and its slice back there
//   kIpc      a GPU reads and writes the memory of its neighbours' GPUs
//
// In the first two rounds processors do it, and the ranks tell each other, on cards, what they have
// and what they can reach. So all of them change over in the same round, and nobody asks anybody.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/copier.h"
#include "worker/planned.h"

namespace herring::worker {

class DeviceNode final : public PlannedDevices {
 public:
  enum Level : uint8_t { kHost, kStaged, kIpc };

  explicit DeviceNode(device::Copier& copier) : copier_(copier), device_(copier.device()) {}
  ~DeviceNode() override;

  // What follows is called by threads that may call the device's driver, one at a time.

  // `planned`: made with this; it and the copier outlive all calls but the destructor, which may
  // run on the engine's thread. `arenas`: on the device.
  void attach(const Planned& planned, std::vector<device::Address> arenas);
  // Before round `round` begins; the one before it has succeeded.
  void prepare(uint32_t round);
  Level level() const { return level_; }

  // What of gradient bytes [range) of an arena the neighbours need in host memory.
  std::vector<plan::Range> to_copy_out(size_t gradient, uint32_t arena,
                                       const plan::Range& range) const;
  // Queues this rank's part of a buffer, of which all is on its way. `then`: see Copier.
  Status queue(uint32_t buffer, device::Watcher::Then then);
  // What comes back when a buffer is averaged.
  std::vector<device::Copy> to_copy_back(uint32_t buffer) const;
  // Of a new round: the running one is over.
  void count_on();
  // No stream waits for a flag of this any more: they may be used for other things.
  void give_back_flags();
  // The last round is over: what neighbours copy back from the arenas in host memory, they may
  // still do, for as long as they like.
  void part_with_arenas();
  // Nothing that was queued here is under way any more: lets go of what the device has.
  void let_go();

  // Any thread. The round fails: nothing that has not begun runs any more, and no stream waits.
  void release();

  void write_card(uint32_t round, char* card) override;
  void learn(uint32_t buffer, std::vector<PostedMemory> memory) override;
  std::shared_ptr<SliceAdder> adder(uint32_t buffer) override;

 private:
  class Adder;
  struct Card;
  // What one rank of the node has of one arena.
  struct Part {
    PostedMemory host;                       // a neighbour's; guarded by mutex_ in the first round
    char* memory = nullptr;                  // the same
    device::Address address = 0;             // on a device; 0: this one does not reach it
    std::unique_ptr<device::Exported> from;  // what was imported for it
  };

  Status usable() const;
  // The most that this rank can do with what the others have told.
  Result<Level> meet(const std::vector<char>& cards);
  Status reach_host_memory();
  Status reach_devices(const std::vector<char>& cards);
  Status load_kernels();
  Status make_adders();
  Status take_scratch();
  size_t largest_slice() const;
  device::Copier::Sum sum_of(uint32_t buffer) const;
  const plan::Plan& plan() const { return planned_->plan(); }
  uint32_t places() const { return planned_->group().local_size(); }
  uint32_t own_place() const { return planned_->group().local_index(); }
  bool one_node() const { return planned_->group().members().nodes() == 1; }

  device::Copier& copier_;
  device::Device& device_;
  const Planned* planned_ = nullptr;
  std::vector<device::Address> arenas_;
  Level level_ = kHost, reached_ = kHost;
  std::vector<device::Kernel> kernels_;    // by arena
  // On the device: commands, and the neighbours' parts of the slice that is being combined.
  device::Address scratch_ = 0;
  size_t parts_scratch_ = 0;               // where they begin there
  std::vector<std::vector<Part>> parts_;   // by place, by arena
  std::mutex mutex_;
  std::vector<std::shared_ptr<Adder>> adders_;  // by buffer; set once, before the first is used
};

// As the setting node_stage has it.
const char* name_of(DeviceNode::Level level);

}  // namespace herring::worker
