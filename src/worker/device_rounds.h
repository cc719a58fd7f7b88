// Rounds of a planned operation whose gradients lie on a device: copied out as they are made,
// averaged in the host's memory, and copied back as fusion buffers are complete. Threads of the
// user's queue all of it; the device and the engine tell each other by flags. Nobody waits for the
// device but streams of its.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/copier.h"
#include "worker/device_node.h"
#include "worker/planned.h"

namespace herring::worker {

// Calls are made by threads that may call the device's driver. kDevice: it has failed, and the job
// ends with that on all ranks.
class DeviceRounds {
 public:
  // As Planned::create(). The copier is for this alone.
  static Result<std::unique_ptr<DeviceRounds>> create(Engine& engine,
                                                      const std::vector<plan::Gradient>& gradients,
                                                      PlannedOptions options,
                                                      std::shared_ptr<device::Copier> copier);
  // As end().
  ~DeviceRounds();
  // Ends it, after which nothing else may be called. Waits until no copy of it is on its way: for
  // the job's time-out, where gradients of the running round are, and for Copier::kPatience
  // otherwise. False: the device has not come to its copies. What it may still touch in the host's
  // memory is kept for ever, which is logged; the caller keeps the arenas on the device. Inside a
  // round the job fails, as with ~Planned().
  bool end();

  Planned& planned() { return *planned_; }
  const std::shared_ptr<device::Copier>& copier() const { return copier_; }
  // Whether a neighbour's device may still write to the arenas: the round has failed, and it may
  // not have heard of that.
  bool may_be_written() const;
  // What adds in the node, in the rounds from now on.
  DeviceNode::Level level() const { return node_->level(); }

  // Where the plan's arenas lie on the device; before the first round. They outlive this.
  Status place(std::vector<device::Address> arenas);
  // Starts a round; averages come after what is queued in the stream.
  Status begin(device::Stream stream, bool active);
  // When all that is queued in the stream is through, these gradients are in their places on the
  // device; then they are copied out, and ready. Any thread.
  Status ready(device::Stream stream, const std::vector<size_t>& indices);
  // What is queued in the stream from now on comes after the averages. Where the round fails, they
  // are undefined, and its future tells.
  Status join(device::Stream stream);
  // Done when the averages of a round that is complete are on the device.
  Result<std::shared_ptr<Future>> when_back();
  // As Planned::waiting(); gradients that are on their way out count as ready.
  Result<std::shared_ptr<Future>> waiting();

 private:
  // Those that the engine sets when a fusion buffer is averaged; it may do so after this has gone.
  struct Flags {
    std::vector<device::Flag> of_buffers;
    std::vector<uint32_t> values;  // that mean the running round
  };
  // What copies on their way out find of this, or that it has gone.
  struct Alive {
    std::mutex mutex;
    DeviceRounds* rounds;
  };

  DeviceRounds(std::shared_ptr<device::Copier> copier, std::shared_ptr<Flags> flags,
               std::shared_ptr<DeviceNode> node)
      : copier_(std::move(copier)), flags_(std::move(flags)), node_(std::move(node)),
        alive_(new Alive{{}, this}) {}
  Status take_flags();
  Status queue_out(device::Stream stream, const std::vector<size_t>& indices);
  // Queues the node stage, and the way back, of the buffers of which all gradients are on their way
  // out, in plan order.
  Status queue_back();
  // What the watcher is to call, if this is still there then.
  template <typename Call>
  device::Watcher::Then later(Call call) {
    return [alive = alive_, call = std::move(call)](const Status& status) {
      std::lock_guard lock(alive->mutex);
      if (alive->rounds != nullptr) call(*alive->rounds, status);
    };
  }
  void is_out(const std::vector<size_t>& indices, const Status& status);
  Status failed(const Status& why);
  device::Copy place_of(uint32_t arena, const plan::Range& range) const;  // both its places

  const std::shared_ptr<device::Copier> copier_;
  const std::shared_ptr<Flags> flags_;
  const std::shared_ptr<DeviceNode> node_;
  const std::shared_ptr<Alive> alive_;
  std::unique_ptr<Planned> planned_;
  std::vector<device::Address> arenas_;
  bool ended_ = false;

  std::mutex mutex_;  // guards what follows, and the order of what is queued
  std::vector<bool> out_;          // gradients on their way out, or there
  std::vector<uint32_t> missing_;  // gradients that are not, by buffer
  size_t next_back_ = 0;           // buffer
};

}  // namespace herring::worker
