// A planned operation: all-reduce of the fusion buffers of one plan, round after round, without a
// word of negotiation (paper, III-2). Gradients may become ready in any order; buffers are pushed
// in plan order as they fill. With a round travels a note, if the plan has one: each active rank
// gives some bytes, and every rank gets the largest that any of them gave, at each place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "node/node_work.h"
#include "plan/plan.h"
#include "worker/engine.h"

namespace herring::worker {

// What devices do in the node stage of a plan's rounds: see DeviceNode. Engine thread, but for what
// says otherwise.
class PlannedDevices {
 public:
  // Each rank of a node tells the others so much in each of the first rounds.
  static constexpr size_t kCardBytes = 1024;
  static constexpr uint32_t kCardRounds = 2;

  virtual ~PlannedDevices() = default;
  // What this rank tells; the thread that begins the round.
  virtual void write_card(uint32_t round, char* card) = 0;
  // All have posted a buffer of the first round: where, by place among the members here.
  virtual void learn(uint32_t buffer, std::vector<PostedMemory> memory) = 0;
  // Null: the processor combines this rank's slice of it.
  virtual std::shared_ptr<SliceAdder> adder(uint32_t buffer) = 0;
};

struct PlannedOptions {
  std::string name;
  std::shared_ptr<Group> group;         // null: all ranks
  ReduceOp op = ReduceOp::kAverage;
  bool narrow = false;                  // float32 arenas travel as `wire`
  DType wire = DType::kFloat32;
  size_t buffer_bytes = 0;              // 0: chosen from model and cluster
  size_t note_bytes = 0;                // of a round's note; 0: it has none
  std::optional<uint32_t> stream;       // Group::next_stream(), if it was taken already
  Use use = Use::kHost;                 // of the arenas' memory
  bool on_devices = false;              // gradients of some rank lie on a device
  std::function<void(uint32_t buffer)> averaged;  // called on the engine's thread; may be null
  std::shared_ptr<PlannedDevices> devices;        // null: none is at work
};

class Planned {
 public:
  // Allocates the arenas. Every rank must make a group's planned operations in the same order; the
  // caller compares `signature()` across ranks before the first round.
  static Result<std::unique_ptr<Planned>> create(Engine& engine,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options);
  // A round of which everything is ready goes on, and the arenas live as long. Inside any other the
  // job fails, on every rank: they wait for gradients that nobody can bring any more.
  ~Planned();

  const plan::Plan& plan() const;
  // With a share of the plan's memory, which may outlive it (but not the engine).
  std::shared_ptr<char> arena(size_t i) const;
  // Equal on two ranks exactly when their planned operations fit together.
  uint64_t signature() const;

  // Starts a round. active = false: this worker contributes nothing; all buffers go at once, or if
  // they are held, with let_go().
  Status begin(bool active, bool held = false);
  // Any thread.
  void let_go();
  // Gradient `index` is in its place in the arena. Any thread.
  Status ready(size_t index);
  // This rank's note of the round, once: an active rank's round is not complete without it. Best
  // before the last gradient is ready, so that both leave together. Any thread.
  Status note(std::string_view bytes);
  bool lacks_note() const;  // which the round needs
  // Of the round begun last; null before the first.
  std::shared_ptr<Future> round() const;
  // The adder of a buffer of the running round is through. Any thread.
  void added(uint32_t buffer);
  // How many rounds have begun.
  uint32_t rounds() const;
  // What the ranks of the node have told in a round that is over, by place among the members here;
  // empty: this rank is alone here.
  std::vector<char> cards() const;
  const Group& group() const;
  const PlannedOptions& options() const;
  const std::string& node_stage() const;  // the setting
  std::shared_ptr<SharedHeap> shared_heap() const;
  // Which part of a fusion buffer the rank at that place among the members here combines.
  plan::Range slice(uint32_t buffer, uint32_t place) const;
  // Of the job's operations.
  Nanos timeout() const;
  // Ends the job, which cannot go on without what this rank was to bring.
  void fail(const Status& why);
  // The running round's future; kInvalidArgument names gradients that are not ready.
  Result<std::shared_ptr<Future>> waiting();
  // Workers that contributed to the last finished round.
  uint32_t contributors() const;
  // The notes of the last round, combined; all 0 where nobody was active.
  Result<std::string> notes();

 private:
  class Work;  // the plan and its memory; what the engine has of a round owns a share of it
  struct Round {
    std::shared_ptr<Future> future;
    uint32_t number = 0;
    bool active = true;
    uint32_t buffers_left = 0;  // engine thread
  };

  explicit Planned(std::shared_ptr<Work> work);
  bool has_note() const;
  // For messages: what has not happened yet, such as "gradients 3, 4 were ready".
  std::string missing() const;
  // Pushes what is complete and next in order.
  void advance();

  const std::shared_ptr<Work> work_;

  mutable std::mutex mutex_;  // guards everything below
  std::shared_ptr<Round> round_;
  std::vector<bool> ready_;
  std::vector<uint32_t> missing_;  // gradients not yet ready, by buffer; behind them the note
  uint32_t next_buffer_ = 0;
  bool held_ = false;
  uint32_t next_round_ = 0;
};

}  // namespace herring::worker
