// A named operation of one rank, from its call to its result.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "node/shared_memory.h"
#include "node/transfer.h"
#include "worker/call.h"
#include "worker/device_sums.h"
#include "worker/future.h"
#include "worker/list.h"

namespace herring::worker {

class NamedOperations;

// What moves of a call: its array, or those of its list that have one dtype.
struct Bundle {
  wire::Array array;
  const char* send = nullptr;
  char* receive = nullptr;  // in place
};

class Operation : public Future,
                  private TransferOwner,
                  public std::enable_shared_from_this<Operation> {
 public:
  Operation(NamedOperations& owner, Call call, std::shared_ptr<transport::EventLoop> loop,
            std::shared_ptr<SharedHeap> heap);
  ~Operation() override;

  // What allgather, reduce_scatter and alltoall return; valid once complete. `placed`: it is where
  // the call wants it.
  std::unique_ptr<char[]> result;
  bool placed = false;
  size_t result_bytes = 0;
  // See wire::Go. Of allgather, the rows of each rank; of a receive, from whom and with which tag;
  // of a join, the rank that was last.
  std::vector<uint64_t> counts;
  std::shared_ptr<Group> formed;       // by form_group; valid once complete

  // Of a list that does not say where its results go, once complete: rows of each result, and the
  // results themselves, once.
  const std::vector<uint64_t>& result_rows() const { return list_->result_rows(); }
  void take(const std::vector<char*>& to);
  // Lets go of what was copied; take() does so too.
  void drop_staging();

  // Of a call on a device: null, or its copies.
  const std::shared_ptr<device::Copier>& copier() const { return call_.copier; }
  bool on_device() const { return copier() != nullptr; }
  // Complete, and no device reads its arrays any more, or writes to them before take_back().
  bool at_rest() const {
    return done() && !goes_out_.load() && (sums_ == nullptr || sums_->through());
  }
  // Once complete, queues its results to be copied to where its arrays lie, after what is queued in
  // the streams and before what will be; that comes after it in the streams of later calls, too,
  // which copy nothing. On threads that may call the device's driver.
  Status take_back(const std::vector<device::Stream>& streams);
  // Of a take_back(): done when the results are there.
  const std::shared_ptr<Future>& taken_back() const { return taken_back_; }
  // Complete, its results are still to be taken back.
  bool comes_back() const { return on_device() && sums_ == nullptr; }
  // Bytes on a device.
  struct Place {
    device::Address address = 0;
    size_t bytes = 0;
  };
  // Of a list on a device, started and perhaps not complete yet: queues that its results are copied
  // to `places`, one for each array, when the operation is complete. The copies come after what is
  // queued in the streams now, and before what is queued there later. Nothing waits on the host. If
  // the operation fails, the places get bytes of 0xff, which are NaN in floats; `failed` is called
  // before that. `then` is called when the device has the results, or is lost. Neither may block
  // its thread. An error: neither is called. On threads that may call the device's driver; once.
  Status return_to(std::vector<Place> places, const std::vector<device::Stream>& streams,
                   std::function<void()> failed, device::Watcher::Then then);
  // Of a call on a device: an error that it is in, which the operation then fails with. On threads
  // that may call its driver.
  Status check_device();

 private:
  friend class Arrivals;
  friend class Joins;
  friend class Meeting;
  friend class Mover;
  friend class NamedOperations;
  void on_transfer_done(Transfer&) override;
  Status prepare();
  Status pack();
  Status stage(size_t bytes);
  // Queues the copies of what the device has; see Copier::out. `then` has a share of this.
  Status bring_out(device::Watcher::Then then);
  Status queue_back(const std::vector<device::Stream>& streams);
  std::vector<device::Copy> device_copies();
  struct Return;
  Result<std::shared_ptr<Return>> plan_return(const std::vector<Place>& places);
  Status queue_return(const std::shared_ptr<Return>& returned,
                      const std::vector<device::Stream>& streams, device::Watcher::Then then);
  void fill(Return& returned, const std::function<void()>& failed);  // once complete
  void end_return();                   // the device copies nothing from the staging any more
  size_t bytes() const;                // of all bundles
  char* place_result(size_t bytes);    // null: no memory
  Status unpack();                     // of a list, where its results go

  NamedOperations& owner_;
  Call call_;
  std::vector<Bundle> bundles_;
  std::optional<List> list_;
  const std::shared_ptr<SharedHeap> heap_;
  std::pair<uint32_t, std::string> name_;  // as Names knows it
  uint64_t id_ = 0;
  uint32_t server_ = 0;
  std::atomic<bool> goes_out_{false};  // a device still reads its arrays
  bool came_ = false;                  // engine thread: it does so no more
  bool launched_ = false;              // bytes of it may be moving
  Nanos started_ = 0;
  std::deque<Transfer> transfers_;
  size_t parts_left_ = 0;
  bool called_off_ = false;            // a part of it was
  std::mutex taking_back_;
  std::shared_ptr<Future> taken_back_;  // null: it was not asked for
  bool absent_ = false;                // of others: this rank has joined and adds nothing
  Status failed_;                      // of a join: why, though others' operations go on
  std::mutex staging_mutex_;
  char* staging_ = nullptr;            // in the shared heap, for arrays that are not
  bool returns_ = false;               // the staging is copied to a device; see return_to()
  // Copied when all parts are done: of the staging, to where the result belongs.
  struct Copy {
    char* to = nullptr;
    const char* from = nullptr;
    size_t bytes = 0;
  };
  std::vector<Copy> copies_;
  std::shared_ptr<DeviceSums> sums_;   // null: the device takes none
  std::function<void(const Status&)> then_;  // instead of a caller who waits
};

}  // namespace herring::worker
