// Rounds of a planned operation whose gradients lie on a device. Gradients are copied out as they
// are produced, averaged in host memory, and copied back as fusion buffers complete. The user's
// threads queue all of this work, and the device and the engine signal each other with flags. Only
// streams of the device wait for the device; no thread does.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/copier.h"
#include "rounds/device_casts.h"
#include "rounds/device_node.h"
#include "rounds/planned.h"

namespace herring::rounds {

// The calling threads must be allowed to call the device's driver. kDevice means that the driver
// failed; the job then ends with that error on all ranks.
class DeviceRounds {
 public:
  // Takes the arguments of Planned::create(), and a copier that only this object uses. `casts`: see
  // DeviceCasts; null means that gradients leave the device as they are.
  static Result<std::unique_ptr<DeviceRounds>> create(Rounds& all,
                                                      const std::vector<plan::Gradient>& gradients,
                                                      PlannedOptions options,
                                                      std::shared_ptr<device::Copier> copier,
                                                      std::shared_ptr<DeviceCasts> casts);
  // Calls end().
  ~DeviceRounds();
  // Ends the rounds; nothing else may be called afterwards. Waits until no copy is under way: for
  // the job's timeout if gradients of the running round are being copied, otherwise for
  // Copier::kPatience. Returns false if the device has not reached its copies. Host memory that the
  // device may still access is then kept forever, which is logged, and the caller must keep the
  // arenas on the device. Inside a round the job fails, as with ~Planned().
  bool end();

  Planned& planned() { return *planned_; }
  // Returns the plan with the arenas and ranges on the device.
  const plan::Plan& plan() const { return wide_ ? *wide_ : planned_->plan(); }
  const std::shared_ptr<device::Copier>& copier() const { return copier_; }
  // Returns whether a neighbour's device may still write to the arenas. It may if the round has
  // failed and the neighbour does not know yet.
  bool may_be_written() const;
  // Returns a share of the memory on the device that this object has allocated; null if there is
  // none.
  std::shared_ptr<void> memory() const { return casts_ ? casts_->memory() : nullptr; }
  // Returns which processor adds in the node, from the current round on.
  DeviceNode::Level level() const { return node_->level(); }

  // Sets the addresses of the plan's arenas on the device. Must be called before the first round.
  // The memory must outlive this object.
  Status place(std::vector<device::Address> arenas);
  // Starts a round. Averages are written after the work that is queued in the stream.
  Status begin(device::Stream stream, bool active);
  // Declares gradients ready: they are in their places on the device once all work queued in the
  // stream is done. They are then copied out and given to the plan. Any thread.
  Status ready(device::Stream stream, const std::vector<size_t>& indices);
  // Makes work that is queued in the stream from now on wait for the averages. Must be called when
  // the round is over. If it has failed, the averages are undefined and its future has the error.
  Status join(device::Stream stream);
  // Poisons the arenas if the running round has failed; has no effect otherwise. All their floats
  // become NaNs, so that nobody takes what lies there for averages. If neighbours' devices may read
  // the arenas, this holds for the parts that they leave alone. Work that is queued in `consumers`
  // from now on sees that; without consumers, this waits for it, but at most for
  // Copier::kPatienceAfterError. Until the next begin(), ready() returns the round's error.
  void poison(const std::vector<device::Stream>& consumers);
  // Returns a future that is done when the averages of a complete round are on the device.
  Result<std::shared_ptr<Future>> when_back();
  // Returns an error that the device is in, without waiting; the job then ends with it.
  Status check() { return failed(copier_->check()); }
  // Returns the future of the running round, as Planned::waiting() does. Gradients that are being
  // copied out count as ready.
  Result<std::shared_ptr<Future>> waiting();

 private:
  // Flags that the engine sets when a fusion buffer is averaged. The engine may do so after this
  // object is gone.
  struct Flags {
    std::vector<device::Flag> of_buffers;
    std::vector<uint32_t> values;  // that mean the running round
  };
  // Lets copies on their way out find this object, or find that it is gone.
  struct Alive {
    std::mutex mutex;
    DeviceRounds* rounds;
  };

  DeviceRounds(std::shared_ptr<device::Copier> copier, std::shared_ptr<DeviceCasts> casts,
               std::shared_ptr<Flags> flags, std::shared_ptr<DeviceNode> node)
      : copier_(std::move(copier)), casts_(std::move(casts)), flags_(std::move(flags)),
        node_(std::move(node)), alive_(new Alive{{}, this}) {}
  Status take_flags();
  // The round has failed: streams that wait for it go on. Any thread.
  static void release(const Flags& flags, DeviceNode& node);
  // These functions make their calls of the driver together.
  Status begin_there(device::Stream stream, bool active);
  Status ready_there(device::Stream stream, const std::vector<size_t>& indices);
  Status queue_out(device::Stream stream, const std::vector<size_t>& indices);
  // Queues the node stage and the copy back for buffers whose gradients are all being copied out,
  // in plan order.
  Status queue_back();
  Status queue_rest();
  std::vector<device::Stretch> to_poison() const;
  bool is_pinned() const;  // whether all arenas in host memory are
  // Wraps `call` for the watcher, which calls it only if this object still exists.
  template <typename Call>
  device::Watcher::Then later(Call call) {
    return [alive = alive_, call = std::move(call)](const Status& status) {
      std::lock_guard lock(alive->mutex);
      if (alive->rounds != nullptr) call(*alive->rounds, status);
    };
  }
  // The part of a gradient in one fusion buffer.
  struct Part {
    size_t gradient;
    uint32_t buffer;
  };
  // What is queued together.
  struct Batch {
    std::vector<device::Launch> casts;
    std::vector<device::Copy> copies;
    std::vector<Part> parts;  // are given to the plan when they are in host memory
    size_t bytes = 0;
    uint32_t last_arena = 0;
  };
  void add(uint32_t arena, uint32_t buffer, const plan::Range& range, Batch& batch) const;
  Status queue_out(const std::vector<device::Stream>& producers, Batch batch);
  void is_out(const std::vector<Part>& parts, const Status& status);
  Status failed(const Status& why);
  device::Copy place_of(uint32_t arena, const plan::Range& range) const;  // on device and host

  const std::shared_ptr<device::Copier> copier_;
  const std::shared_ptr<DeviceCasts> casts_;  // may be null
  const std::shared_ptr<Flags> flags_;
  const std::shared_ptr<DeviceNode> node_;
  const std::shared_ptr<Alive> alive_;
  std::unique_ptr<Planned> planned_;
  std::optional<plan::Plan> wide_;        // if there are casts
  std::vector<device::Address> arenas_;   // that travel
  bool pinned_ = false;                   // see is_pinned()
  bool ended_ = false;

  std::mutex mutex_;  // guards what follows, and the order in which work is queued
  std::vector<bool> out_;          // gradients that are being copied out, or have been
  std::vector<uint32_t> missing_;  // by buffer: how many of its gradients are not in out_
  size_t next_back_ = 0;           // next buffer to queue the copy back for
  std::vector<device::Copy> late_;  // copies back that cannot be queued before the round is over
  bool rest_queued_ = true;        // see queue_rest(); true if there is no round
  bool poisoned_ = false;          // see poison()
};

}  // namespace herring::rounds
