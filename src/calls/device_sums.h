// An all-reduce by messages between workers, for an array on a device that does the sums. This is
// the implementation of collective::DeviceSide. Before the operation starts, the caller's thread
// queues all work of the device. After that, the engine and the device only look at flags.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calls/call.h"
#include "collective/device_side.h"
#include "device/copiers.h"
#include "node/shared_memory.h"
#include "transport/event_loop.h"

namespace herring::calls {

// The members of a group that are on this rank's node and take part in a call that could keep its
// data on the node's GPUs. All of them find the same, whatever their settings and their GPUs are.
struct NearMembers {
  std::vector<uint32_t> indices;  // in the group
  std::vector<device::Neighbours::Owner> owners;

  // Returns nothing for a member that is not near.
  std::optional<device::Neighbours::Owner> owner_of(uint32_t index) const {
    const auto place = std::find(indices.begin(), indices.end(), index);
    if (place == indices.end()) return {};
    return owners[static_cast<size_t>(place - indices.begin())];
  }
};
NearMembers near_members(const Call& call, uint32_t incarnation);

class DeviceSums : public collective::DeviceSide,
                   public std::enable_shared_from_this<DeviceSums> {
 public:
  // Prepares a call with one array on a device, whose data may go from GPU to GPU between this rank
  // and the near members. Returns null if the host's processors do the sums;
  // a lasting reason is logged once. create(), queue() and check() run on a thread that may call
  // the driver.
  static Result<std::shared_ptr<DeviceSums>> create(
      const Call& call, NearMembers near, const std::shared_ptr<SharedHeap>& heap,
      const std::shared_ptr<transport::EventLoop>& loop);
  ~DeviceSums() override;

  char* image() const { return image_; }
  Status queue(const Call& call);
  // Returns an error of the device without waiting for the device. The operation then fails with
  // that error.
  Status check();
  // Tells the device that the operation has ended. If it failed, sums that have not begun touch no
  // memory. Loop thread, or before the operation starts.
  void end(const Status& why);
  // Returns whether the device has read memory of a neighbour's. Loop thread.
  bool reads_neighbours() const { return reads_neighbours_; }

  const std::vector<collective::Piece>& pieces() const override { return pieces_; }
  uint32_t outs() const override;
  uint32_t ins() const override;
  // Any thread.
  bool through() const override { return through_.load(); }
  Status failure() const override;
  void arrived(uint32_t ins) override;
  std::string card_for(uint32_t peer) override;
  Result<Shown> meet(uint32_t peer, std::string_view card) override;
  void on_progress(std::function<void()> call) override { on_progress_ = std::move(call); }

 private:
  using Imports = std::vector<std::shared_ptr<const device::Import>>;

  DeviceSums(std::shared_ptr<SharedHeap> heap, std::shared_ptr<transport::EventLoop> loop)
      : heap_(std::move(heap)), loop_(std::move(loop)) {}
  // Finds the messages that may go from GPU to GPU.
  void share(NearMembers near, size_t bytes);
  const Imports& imports_of(uint32_t peer) const;
  device::Relay::Piece piece_of(const Call& call, const collective::Piece& piece) const;
  device::Relay::Piece two_ways(device::Relay::Piece queued, const Call& call,
                                const collective::Piece& piece) const;
  std::shared_ptr<device::Relay> relay() const;
  void drop_if_through();
  void moved(const Status& status);

  const std::shared_ptr<SharedHeap> heap_;
  const std::shared_ptr<transport::EventLoop> loop_;
  char* image_ = nullptr;
  device::Address image_on_device_ = 0;
  device::Kernel kernel_ = 0;
  int device_ = 0;
  collective::Schedule schedule_;
  std::vector<collective::Piece> pieces_;
  NearMembers near_;
  device::Card card_;                  // without what depends on the other rank
  device::Address shared_ = 0;         // the image on the device; 0: nothing goes from GPU to GPU
  std::vector<uint32_t> ways_;         // by operation
  std::map<uint32_t, Imports> imports_;  // by index: what kernels may read
  bool reads_neighbours_ = false;      // loop thread
  uint32_t all_outs_ = 0, all_ins_ = 0;
  std::function<void()> on_progress_;  // loop thread
  std::atomic<bool> through_{true};    // nothing is queued, or all is done

  mutable std::mutex mutex_;
  // Null if done; guarded by mutex_, as all below. Neighbours may read the image on the device
  // until the operation ends.
  std::shared_ptr<device::Relay> relay_;
  bool ended_ = false;
  uint32_t last_outs_ = 0, last_ins_ = 0;  // counters of a relay that is done
  Status failure_;
};

}  // namespace herring::calls
