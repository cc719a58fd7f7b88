// A named operation as one rank calls it, and how far it has come.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/completion.h"
#include "worker/group.h"
#include "worker/transfer.h"

namespace herring::worker {

struct Request {
  std::shared_ptr<Group> group;   // null: all ranks. Ranks here and below are those inside it.
  wire::Collective kind = wire::Collective::kBarrier;
  std::string name;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  wire::Algorithm algorithm = wire::Algorithm::kHerring;  // allreduce
  uint32_t root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::vector<uint64_t> shape;
  // Rows for each rank: of alltoall, and of reduce_scatter if they are not to be even. Of
  // form_group: the ranks of the job that form it. Of send: the tag; of receive: the tag, or none
  // for any. `root` is then the other rank, or wire::kAnyRank.
  std::vector<uint64_t> splits;
  const char* send = nullptr;
  char* receive = nullptr;        // allreduce, broadcast: in place
  // Where the result of allgather, reduce_scatter and alltoall goes if it has so many bytes; apart
  // from the array. Otherwise it is a new array.
  char* into = nullptr;
  size_t into_bytes = 0;
  double timeout = 0;             // seconds; 0: the setting
  size_t bytes() const;
};

class NamedOperations;

class Operation : public TransferOwner, public std::enable_shared_from_this<Operation> {
 public:
  explicit Operation(std::shared_ptr<transport::EventLoop> loop) : completion(std::move(loop)) {}

  Completion completion;
  Request request;
  // What allgather, reduce_scatter and alltoall return; valid once complete. `placed`: it is where
  // the request wants it.
  std::unique_ptr<char[]> result;
  bool placed = false;
  size_t result_bytes = 0;
  // See wire::Go. Of allgather, the rows of each rank; of a receive, from whom and with which tag;
  // of a join, the rank that was last.
  std::vector<uint64_t> counts;
  std::shared_ptr<Group> formed;       // by form_group; valid once complete

 private:
  friend class NamedOperations;
  void on_transfer_done(Transfer&) override;
  char* place_result(size_t bytes);    // null: no memory

  NamedOperations* owner_ = nullptr;
  std::pair<uint32_t, std::string> name_;  // as NamedOperations keeps it; of a message none
  uint64_t id_ = 0;
  uint32_t server_ = 0;
  bool launched_ = false;              // bytes of it may be moving
  Nanos started_ = 0;
  std::deque<Transfer> transfers_;
  size_t parts_left_ = 0;
  bool called_off_ = false;            // a part of it was
  bool absent_ = false;                // of others: this rank has joined and adds nothing
  Status failed_;                      // of a join: why, though others' operations go on
  char* staging_ = nullptr;            // in the shared heap, for an array that is not
  // Copied when all parts are done: of the staging, to where the result belongs.
  struct {
    char* to = nullptr;
    const char* from = nullptr;
    size_t bytes = 0;
  } copy_;
  std::function<void(const Status&)> then_;  // instead of a caller who waits
};

}  // namespace herring::worker
