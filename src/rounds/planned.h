// A planned operation: all-reduce of the fusion buffers of one plan, round after round, without any
// negotiation (paper, III-2). Gradients may become ready in any order. Buffers are pushed in plan
// order as they fill. A plan may have a note: a few bytes that each active rank sends along with a
// round. At each byte, every rank gets the largest value that any rank gave.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "rounds/node_devices.h"
#include "rounds/rounds.h"

namespace herring {
class NodeStage;
}

namespace herring::rounds {

struct PlannedOptions {
  std::string name;
  std::shared_ptr<Group> group;         // null means all ranks
  ReduceOp op = ReduceOp::kAverage;
  bool divide_by_all = false;           // averages divide by all members, not by the contributors
  bool narrow = false;                  // float32 arenas travel as `wire`; all do if it is packed
  DType wire = DType::kFloat32;
  // What rounding to a packed `wire` loses stays here and is added to the next round's sum.
  bool error_feedback = true;
  size_t buffer_bytes = 0;              // 0: chosen from model and cluster
  size_t note_bytes = 0;                // 0: rounds have no note
  std::optional<uint32_t> stream;       // from Group::next_stream(), if taken already
  Use use = Use::kHost;                 // of the arenas' memory
  bool on_devices = false;              // gradients of some rank lie on a device
  bool casts = false;                   // devices cast float32 gradients to `wire`, on all ranks
  std::function<void(uint32_t buffer)> averaged;  // engine thread; may be null
  std::shared_ptr<PlannedDevices> devices;        // null if no device takes part
};

class Planned {
 public:
  // Allocates the arenas. All ranks must create the planned operations of a group in the same
  // order. The caller must compare signature() across ranks before the first round.
  static Result<std::unique_ptr<Planned>> create(Rounds& rounds,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options);
  // A round in which everything is ready goes on, and the arenas live until it ends. Inside any
  // other round, the job fails on every rank, because nobody can supply the missing gradients any
  // more.
  ~Planned();

  const plan::Plan& plan() const;
  // Returns arena `i` with a share of the plan's memory. The memory may outlive this object but not
  // the engine.
  std::shared_ptr<char> arena(size_t i) const;
  // Two ranks have equal signatures exactly if their planned operations are compatible.
  uint64_t signature() const;

  // Starts a round. active = false: this worker contributes nothing. Then all buffers are pushed at
  // once or, if held, when let_go() is called.
  Status begin(bool active, bool held = false);
  // Releases a held round. Any thread.
  void let_go();
  // Declares that gradient `index` is in its place in the arena. Any thread.
  Status ready(size_t index);
  // Declares that the part of the gradient that lies in one of its buffers is in its place. Instead
  // of ready(), for each of its buffers in turn. Any thread.
  Status ready_in(size_t index, uint32_t buffer);
  // Gives this rank's note of the round, exactly once: an active rank's round is not complete
  // without it. Best called before the last gradient is ready, so that both leave together. Any
  // thread.
  Status note(std::string_view bytes);
  bool lacks_note() const;  // and the running round needs one
  // Returns the future of the latest round; null before the first.
  std::shared_ptr<Future> round() const;
  // Reports that the adder of a buffer in the running round has combined this rank's slice, or has
  // given its result to all ranks of the node. Any thread.
  void added(uint32_t buffer);
  void given(uint32_t buffer);
  // Returns what rounding has lost so far of each element of arena `i` and is still to be sent. It
  // is 0 for elements that other ranks of the node send. Not inside a round.
  Result<std::vector<float>> residual(size_t i) const;
  // Replaces it; values for elements that other ranks send are ignored. Not inside a round.
  Status set_residual(size_t i, const std::vector<float>& values);
  // Undoes what the latest round has changed in the residual, if its results are not used and only
  // the largest numbers have travelled. What rounding loses is too little to be worth the memory.
  // Not inside a round.
  Status take_back();
  // Returns how many rounds have begun. Any thread.
  uint32_t rounds() const;
  const PlannedOptions& options() const;
  PlanOnNode on_node() const;
  // Returns the timeout of the job's operations.
  Nanos timeout() const;
  // Ends the job, which cannot go on without this rank's data.
  void fail(const Status& why);
  // Returns the running round's future. Returns kInvalidArgument, naming the gradients that are not
  // ready, if any.
  Result<std::shared_ptr<Future>> waiting();
  // Returns the number of workers that contributed to the last finished round.
  uint32_t contributors() const;
  // Returns the combined note of the last round; all bytes are 0 if no rank was active.
  Result<std::string> notes();

 private:
  class Work;  // the plan and its memory; the engine's tasks own shares of it
  class RoundFuture;
  struct Round {
    std::shared_ptr<RoundFuture> future;
    uint32_t number = 0;
    bool active = true;
    uint32_t buffers_left = 0;  // engine thread
  };

  explicit Planned(std::shared_ptr<Work> work);
  // Returns an error if such gradients cannot travel in packs.
  static Status check_packs(const std::vector<plan::Gradient>& gradients,
                            const PlannedOptions& options, size_t segment_bytes);
  bool has_note() const;
  // Makes this report to the node stage, about a buffer in the running round.
  void report(void (NodeStage::*what)(const wire::Key& key), uint32_t buffer);
  // Returns an error if the gradient cannot become ready now. The caller holds the lock.
  Status may_be_ready(size_t index) const;
  // Returns text that says what has not happened yet, such as "gradients 3, 4 were ready".
  std::string missing() const;
  // Pushes the buffers that are complete and next in order.
  void advance();
  // Returns an error inside a round.
  Status check_rest() const;
  // Calls visit(first element, values) for each part of arena `i` whose residual is here.
  template <typename Visit>
  Status visit_residual(size_t i, const Visit& visit) const;

  const std::shared_ptr<Work> work_;

  mutable std::mutex mutex_;  // guards everything below
  std::shared_ptr<Round> round_;
  std::vector<bool> ready_;
  std::vector<uint32_t> missing_;  // gradients not yet ready, by buffer; the last entry is the note
  uint32_t next_buffer_ = 0;
  bool held_ = false;
  uint32_t next_round_ = 0;
};

}  // namespace herring::rounds
