// A named operation on one rank, as its caller sees it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "calls/call.h"
#include "calls/device_sums.h"
#include "calls/list.h"
#include "calls/staging.h"
#include "engine/future.h"

namespace herring::calls {

using engine::Future, engine::Where;

// The data that moves for a call: its array, or the arrays of its list that have one dtype.
struct Bundle {
  wire::Array array;
  const char* send = nullptr;
  char* receive = nullptr;  // the array itself
};

// The caller's handle of a named operation, with the memory of its call. What the engine notes of
// it meanwhile is in Underway.
class Operation : public Future, public std::enable_shared_from_this<Operation> {
 public:
  // Ends the job with this error on all ranks; engine thread.
  using EndJob = std::function<void(const Status& why)>;
  Operation(Call call, std::shared_ptr<transport::EventLoop> loop,
            std::shared_ptr<SharedHeap> heap, EndJob end_job);

  // The result of allgather, reduce_scatter and alltoall, valid once complete. `placed`: the result
  // was written to the memory that the call names; `result` is then empty.
  std::unique_ptr<char[]> result;
  bool placed = false;
  size_t result_bytes = 0;
  // See wire::Go. For an allgather, the rows of each rank. For a receive, the sender and its tag.
  // For a join, the rank that was last.
  std::vector<uint64_t> counts;
  std::shared_ptr<Group> formed;       // created by form_group; valid once complete

  // Once a list is complete: the row count of each result. If the list does not say where its
  // results go, take() copies them out; it must be called at most once.
  const std::vector<uint64_t>& result_rows() const { return list_->result_rows(); }
  void take(const std::vector<char*>& to);
  // Frees the copies of the arrays; take() also does so.
  void drop_staging() { staging_.drop(); }

  // Returns the call for use in messages, such as "allreduce 'x'" or "send 'x' (rank 3)".
  std::string where() const override;

  // Returns the copier of a call on a device; null if the call is not on a device.
  const std::shared_ptr<device::Copier>& copier() const { return call_.copier; }
  bool on_device() const { return copier() != nullptr; }
  // Returns whether the operation is complete and no device accesses its arrays before take_back().
  bool at_rest() const {
    return done() && !goes_out_.load() && (sums_ == nullptr || sums_->through());
  }
  // Once complete, queues the copies of the results back to the device arrays. These copies run
  // after the work queued in the streams so far and before later work. A further call copies
  // nothing: it only makes later work in its streams wait for the copies. Must run on a thread that
  // may call the device's driver.
  Status take_back(const std::vector<device::Stream>& streams);
  // Returns a future that is done when the copies of take_back() are done; null before take_back().
  const std::shared_ptr<Future>& taken_back() const { return taken_back_; }
  // Returns whether results must be taken back once the operation is complete.
  bool comes_back() const { return on_device() && sums_ == nullptr; }
  // Bytes on a device.
  struct Place {
    device::Address address = 0;
    size_t bytes = 0;
  };
  // Queues the copies of the results of a started list to `places` on a device, one for each array.
  // The list need not be complete yet. The copies run when it is complete, after the work queued in
  // the streams so far and before later work. Nothing waits on the host. If the operation fails,
  // `failed` is called, and the places then get bytes of 0xff, which are NaN in floats. `then` is
  // called when the device has the results, or is lost. Neither function may block its thread. If
  // this returns an error, neither is called. Must be called once at most, and must run on a thread
  // that may call the device's driver.
  //
  // If memory for the copies cannot be pinned, this waits until the list is complete, and returns
  // its error.
  Status return_to(std::vector<Place> places, const std::vector<device::Stream>& streams,
                   std::function<void()> failed, device::Watcher::Then then);
  // Returns an error of the device, which the operation then fails with. If the error stays, the
  // device is lost, and the job ends with it. Must run on a thread that may call the driver.
  Status check_device();

  // For the engine. Creates the bundles, and copies the arrays of a list unless this rank has
  // `joined`. `near`: see DeviceSums::create(). On the thread of the caller.
  Status prepare(const std::function<NearMembers(const Call&)>& near, bool joined);
  // Queues the copies out of the arrays that this rank gives; see Copier::out. `then` owns a share
  // of this. On the thread of the caller.
  Status bring_out(device::Watcher::Then then);
  // The engine's thread, once the operation has started.
  Call& call() { return call_; }
  const std::vector<Bundle>& bundles() const { return bundles_; }
  const std::shared_ptr<DeviceSums>& sums() const { return sums_; }
  size_t bytes() const;              // of all bundles
  char* stage(size_t bytes, Status& why);  // null: `why` says why
  char* place_result(size_t bytes);  // null if there is no memory
  Status unpack();                   // of a list: copies results to where they go

 private:
  struct Return;
  Status pack(bool gives);
  Status queue_back(const std::vector<device::Stream>& streams);
  // Ends the job if the device is lost. Otherwise the others would learn only that a rank has left.
  Status end_if_lost(const Status& why);
  std::vector<device::Copy> device_copies();
  Result<std::shared_ptr<Return>> plan_return(const std::vector<Place>& places);
  Status queue_return(const std::shared_ptr<Return>& returned,
                      const std::vector<device::Stream>& streams, device::Watcher::Then then);
  Status complete_here();              // waits until the operation is complete
  void fill(Return& returned, const std::function<void()>& failed);  // once complete
  void gone_out();                     // no device reads the arrays any more
  // Calls `then` when no device reads the arrays any more: at once, or on the watcher's thread.
  void when_out(std::function<void()> then);

  const EndJob end_job_;
  Call call_;
  std::vector<Bundle> bundles_;
  std::optional<List> list_;
  Staging staging_;
  std::shared_ptr<DeviceSums> sums_;   // null if no device does the sums
  std::mutex going_out_;
  std::atomic<bool> goes_out_{false};  // a device still reads its arrays; set under the mutex
  std::function<void()> after_out_;    // guarded by the mutex; see when_out()
  std::mutex taking_back_;
  std::shared_ptr<Future> taken_back_;  // null if take_back() was not called
};

}  // namespace herring::calls
