// A named operation on one rank, from its call to its result.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls/call.h"
#include "calls/device_sums.h"
#include "calls/list.h"
#include "engine/future.h"
#include "engine/owners.h"
#include "links/transfer.h"
#include "node/shared_memory.h"
#include "wire/handover.h"

namespace herring::calls {

using engine::Future, engine::Owner, engine::Where;
using wire::Key;

class Calls;

// The data that moves for a call: its array, or the arrays of its list that have one dtype.
struct Bundle {
  wire::Array array;
  const char* send = nullptr;
  char* receive = nullptr;  // the array itself
};

class Operation : public Future,
                  private links::TransferOwner,
                  public std::enable_shared_from_this<Operation> {
 public:
  Operation(Calls& owner, Call call, std::shared_ptr<transport::EventLoop> loop,
            std::shared_ptr<SharedHeap> heap);
  ~Operation() override;

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
  void drop_staging();

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

 private:
  friend class Arrivals;
  friend class Handovers;
  friend class Joins;
  friend class Meeting;
  friend class Mover;
  friend class Calls;
  void on_transfer_done(links::Transfer&) override;
  Status prepare();
  Status pack();
  Status stage(size_t bytes);
  // Queues the copies out of the arrays that this rank gives; see Copier::out. `then` owns a share
  // of this.
  Status bring_out(device::Watcher::Then then);
  Status queue_back(const std::vector<device::Stream>& streams);
  // Ends the job if the device is lost. Otherwise the others would learn only that a rank has left.
  Status end_if_lost(const Status& why);
  std::vector<device::Copy> device_copies();
  struct Return;
  Result<std::shared_ptr<Return>> plan_return(const std::vector<Place>& places);
  Status queue_return(const std::shared_ptr<Return>& returned,
                      const std::vector<device::Stream>& streams, device::Watcher::Then then);
  Status complete_here();              // waits until the operation is complete
  void fill(Return& returned, const std::function<void()>& failed);  // once complete
  void end_return();                   // the device copies nothing from the staging any more
  size_t bytes() const;                // of all bundles
  const std::string& announced_name() const { return again_.empty() ? call_.name : again_; }
  // Returns a mark for one of several parts.
  observe::Mark part() {
    observe::Mark mark = Future::mark();
    mark.parts = &parts_;
    return mark;
  }
  char* place_result(size_t bytes);    // null if there is no memory
  // Keeps what is in the bundle's memory if an attempt may overwrite it in vain. False: no memory.
  bool save(size_t bundle);
  // Makes the operation as it was before its attempt.
  void begin_again();
  Status unpack();                     // of a list: copies results to where they go

  Calls& owner_;
  Call call_;
  std::vector<Bundle> bundles_;
  std::optional<List> list_;
  const std::shared_ptr<SharedHeap> heap_;
  std::pair<uint32_t, std::string> name_;  // as registered in Names
  uint32_t number_ = 0;                    // of the call among those of its name
  uint64_t id_ = 0;
  Owner asked_;                        // the server that is to answer
  std::atomic<bool> goes_out_{false};  // a device still reads its arrays
  bool came_ = false;                  // engine thread: the device no longer reads them
  bool launched_ = false;              // bytes of it may be moving
  std::optional<wire::Met> met_;       // of a message that a server has paired, without the text
  observe::Parts parts_;               // of the entry
  Nanos started_ = 0;
  std::deque<links::Transfer> transfers_;
  size_t parts_left_ = 0;
  // Servers that may not know the group yet that is formed; homes that have not answered a join.
  std::vector<uint32_t> unconfirmed_;
  bool called_off_ = false;            // a part of it was called off
  // Of what is repeated if a part of it is lost with a server; see Transfer::attempt.
  struct Attempt {
    uint32_t servers = 0;
    wire::Key key;
  };
  std::optional<Attempt> attempt_;
  uint8_t whole_ = 1;                  // 0: a part of the attempt was lost
  std::map<size_t, std::unique_ptr<char[]>> saved_;  // by bundle
  std::mutex taking_back_;
  std::shared_ptr<Future> taken_back_;  // null if take_back() was not called
  std::string again_;                  // the name under which it is announced again
  // An operation of others: this rank has joined. What one of them has announced.
  std::optional<wire::Announce> theirs_;
  bool absent() const { return theirs_.has_value(); }
  Status failed_;                      // error of a join, while others' operations go on
  std::mutex staging_mutex_;
  char* staging_ = nullptr;            // in the shared heap, for arrays outside it
  bool returns_ = false;               // the staging is copied to a device; see return_to()
  // A copy from the staging memory to the result, done when all parts are done.
  struct Copy {
    char* to = nullptr;
    const char* from = nullptr;
    size_t bytes = 0;
  };
  std::vector<Copy> copies_;
  std::shared_ptr<DeviceSums> sums_;   // null if no device does the sums
  std::function<void(const Status&)> then_;  // called at the end, in place of a caller
};

}  // namespace herring::calls
