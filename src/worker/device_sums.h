// An all-reduce by messages between workers, for an array on a device that does the sums. This is
// the device's side of collective::Elsewhere. Before the operation starts, the caller's thread
// queues all work of the device. After that, the engine and the device only look at flags.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "collective/elsewhere.h"
#include "device/copiers.h"
#include "node/shared_memory.h"
#include "transport/event_loop.h"
#include "worker/call.h"

namespace herring::worker {

class DeviceSums : public collective::Elsewhere,
                   public std::enable_shared_from_this<DeviceSums> {
 public:
  // Prepares a call with one array on a device. Returns null if the host's processors do the sums;
  // a lasting reason is logged once. create(), queue() and check() run on a thread that may call
  // the driver.
  static Result<std::shared_ptr<DeviceSums>> create(
      const Call& call, const std::shared_ptr<SharedHeap>& heap,
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

  const std::vector<collective::Piece>& pieces() const override { return pieces_; }
  uint32_t outs() const override;
  uint32_t ins() const override;
  // Any thread.
  bool through() const override { return through_.load(); }
  Status failure() const override;
  void arrived(uint32_t ins) override;
  void on_progress(std::function<void()> call) override { on_progress_ = std::move(call); }

 private:
  DeviceSums(std::shared_ptr<SharedHeap> heap, std::shared_ptr<transport::EventLoop> loop)
      : heap_(std::move(heap)), loop_(std::move(loop)) {}
  device::Relay::Piece piece_of(const Call& call, const collective::Piece& piece) const;
  std::shared_ptr<device::Relay> relay() const;
  void moved(const Status& status);

  const std::shared_ptr<SharedHeap> heap_;
  const std::shared_ptr<transport::EventLoop> loop_;
  char* image_ = nullptr;
  device::Address image_on_device_ = 0;
  device::Kernel kernel_ = 0;
  std::vector<collective::Piece> pieces_;
  uint32_t all_outs_ = 0, all_ins_ = 0;
  std::function<void()> on_progress_;  // loop thread
  std::atomic<bool> through_{true};    // nothing is queued, or all is done

  mutable std::mutex mutex_;
  std::shared_ptr<device::Relay> relay_;  // null if done; guarded by mutex_, as all below
  uint32_t last_outs_ = 0, last_ins_ = 0;  // counters of a relay that is done
  Status failure_;
};

}  // namespace herring::worker
