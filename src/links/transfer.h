// A transfer is one buffer in one round, or the part of it that this worker pushes. It travels to
// the servers that own its shards and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "observe/recorder.h"
#include "plan/plan.h"
#include "wire/key.h"
#include "wire/messages.h"

namespace herring::links {

class TransferOwner;

// How a run travels in a job that goes on when a server dies; see links/failover.cc.
struct RunRoute {
  uint32_t server = 0;           // to which it is pushed now
  uint32_t since = 0;            // the epoch since when that stands in for its home; 0: it is that
  bool again = false;            // it was pushed before, perhaps in part, to another server
  uint64_t place = 0;            // of its first segment in the order of its stream on that server
  // The results, in chunks; null before they come, and once no other worker can lack them.
  std::vector<char*> chunks;
  // What is still on the way to servers that have the run no more. Part of one result may be in a
  // chunk already, and the rest may come.
  struct Outstanding {
    uint32_t server, since, segments;
  };
  std::vector<Outstanding> elsewhere;
  bool settled = false;          // no other worker can lack any of the results
};

struct Transfer {
  wire::Key key;
  wire::Open open;                       // shard_bytes is filled in per shard
  const char* send = nullptr;            // null: nothing to add
  char* receive = nullptr;               // null: the result is not wanted here; see of_results()
  std::vector<plan::Shard> shards;       // of the buffer
  std::vector<plan::SegmentRun> runs;    // the segments that this worker pushes
  // Every rank pushes the next round of the stream only when it has all results of this one.
  bool lockstep = false;
  // The epoch of the set of servers to which all ranks push this. If a part of it is lost with one
  // of these servers, `fewest_workers` is 0, and the owner makes another attempt.
  std::optional<uint32_t> attempt;
  TransferOwner* owner = nullptr;
  observe::Mark mark;                    // passes kPushed when all bytes were handed to flows

  // Progress, maintained by the Pusher.
  Nanos pushed_at = 0;
  uint32_t segments_left = 0;
  uint32_t runs_left = 0;                // runs that were not handed to flows as a whole
  bool called_off = false;               // its group is called off, so its memory has no result
  uint32_t workers = 0;                  // contributing workers, as reported in results
  uint32_t fewest_workers = 0;           // minimum over all results; 0: one result is lost
  std::vector<uint64_t> opened;          // by run: bits of the flows that have sent its kOpen
  std::vector<uint32_t> on_the_way;      // by run: segments pushed and not answered yet
  std::vector<std::vector<bool>> answered;  // by run: segments whose result is here
  std::vector<RunRoute> ways;            // by run; empty in a job that ends when a server dies
};

// Returns where the results of these contributions lie, and how large they are.
inline plan::Range of_results(const Transfer& transfer, plan::Range range) {
  const DType dtype = transfer.open.dtype;
  return {result_bytes(range.offset, dtype), result_bytes(range.bytes, dtype)};
}

class TransferOwner {
 public:
  virtual ~TransferOwner() = default;
  // The results of this range of the contributions are here. Called only if `receive` is set.
  virtual void on_result(Transfer&, plan::Range /*range*/) {}
  // All segments are answered, or the transfer is called off and nothing of it is on its way. The
  // Pusher no longer uses the transfer, except that it still holds its share of the owner.
  virtual void on_transfer_done(Transfer&) = 0;
};

// Moves transfers to the servers and back.
class Pusher {
 public:
  virtual ~Pusher() = default;
  // Until on_transfer_done(), the Pusher uses the transfer and holds a share of `keeps`.
  virtual Status push(Transfer& transfer, std::shared_ptr<void> keeps) = 0;
  // Returns when a server last answered anything.
  virtual Nanos answered_at() const = 0;
};

}  // namespace herring::links
