// The rounds of planned operations that a worker is in. Engine thread, unless stated otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/core.h"
#include "engine/future.h"

namespace herring::rounds {

using engine::Core, engine::Future, engine::Group, engine::Owner, engine::Where;

class Rounds final : public engine::Carrier {
 public:
  explicit Rounds(Core& core) : core_(core) {}

  Core& core() { return core_; }  // any thread
  // Registers a round of a planned operation. `waiting` fails when the job fails, or when its group
  // is called off and nothing of the round is on its way any more.
  void track(const std::shared_ptr<Future>& waiting, const Group& group) {
    waiting_.emplace(waiting, Waiting{group.id()});
  }
  void untrack(const std::shared_ptr<Future>& waiting) { waiting_.erase(waiting); }
  // A part of the round is on its way from part_begins() until part_ended().
  void part_begins(const std::shared_ptr<Future>& waiting);
  void part_ended(const std::shared_ptr<Future>& waiting);

  // See engine::Carrier. Rounds that wait for data of this rank or of others may be open while all
  // stands still: nothing moves of them.
  void call_off(const Group& group, const Status& why) override;
  void fail_all(const Status& why) override;
  bool uses(const Group& group) const override;

 private:
  struct Waiting {
    uint32_t group = 0;
    uint32_t parts = 0;  // on their way
    Status failed;       // set when its group is called off
  };

  Core& core_;
  std::map<std::shared_ptr<Future>, Waiting> waiting_;
};

}  // namespace herring::rounds
