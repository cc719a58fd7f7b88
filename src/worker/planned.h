// A planned operation: all-reduce of the fusion buffers of one plan, round after round, without a
// word of negotiation (paper, III-2). Gradients may become ready in any order; buffers are pushed
// in plan order as they fill.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "worker/engine.h"

namespace herring::worker {

struct PlannedOptions {
  std::string name;
  ReduceOp op = ReduceOp::kAverage;
  bool narrow = false;                  // float32 arenas travel as `wire`
  DType wire = DType::kFloat32;
  size_t buffer_bytes = 0;              // 0: chosen from model and cluster
};

class Planned {
 public:
  // Allocates the arenas. Every rank must make its planned operations in the same order; the caller
  // compares `signature()` across ranks before the first round.
  static Result<std::unique_ptr<Planned>> create(Engine& engine,
                                                 const std::vector<plan::Gradient>& gradients,
                                                 PlannedOptions options);
  ~Planned();

  const plan::Plan& plan() const { return plan_; }
  char* arena(size_t i) const { return arenas_[i]; }
  // Equal on two ranks exactly when their planned operations fit together.
  uint64_t signature() const;

  // Starts a round. active = false: this worker contributes nothing; all buffers go at once.
  Status begin(bool active);
  // Gradient `index` is in its place in the arena. Any thread.
  Status ready(size_t index);
  // The running round's completion; kInvalidArgument names gradients that are not ready.
  Result<std::shared_ptr<Completion>> waiting();
  // Workers that contributed to the last finished round.
  uint32_t contributors() const { return contributors_.load(); }

 private:
  class Direct;  // pushes a buffer without a node stage
  struct Round {
    std::shared_ptr<Completion> completion;
    uint32_t number = 0;
    bool active = true;
    uint32_t buffers_left = 0;  // engine thread
  };

  Planned(Engine& engine, PlannedOptions options);
  // On the engine thread; a round whose engine has ended fails.
  void run(const std::shared_ptr<Round>& round, std::function<void()> task);
  void launch(uint32_t from, uint32_t to, const std::shared_ptr<Round>& round);
  void launch_one(uint32_t buffer, const std::shared_ptr<Round>& round);
  void buffer_done(const std::shared_ptr<Round>& round, uint32_t workers);
  DType wire_of(uint32_t arena) const;

  Engine& engine_;
  const PlannedOptions options_;
  plan::Plan plan_;
  uint32_t stream_ = 0;
  std::vector<char*> arenas_;
  std::vector<char*> staging_;                       // by arena; null where nothing is converted
  // All buffers go through the node stage, or none: one that did not would overtake those that do,
  // and the order of a stream must be the same on every worker.
  bool staged_ = false;
  std::vector<std::vector<plan::Shard>> wire_shards_;  // by buffer
  std::vector<std::unique_ptr<Direct>> direct_;      // by buffer; engine thread
  std::atomic<uint32_t> contributors_{0};

  std::mutex mutex_;  // guards everything below
  std::shared_ptr<Round> round_;
  std::vector<bool> ready_;
  std::vector<uint32_t> missing_;  // gradients not yet ready, by buffer
  uint32_t next_buffer_ = 0;
  uint32_t next_round_ = 0;
};

}  // namespace herring::worker
