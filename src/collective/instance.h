// One execution of a schedule as far as the order of its operations goes: which of them may run. It
// has no bytes, no connections and no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/schedule.h"

namespace herring::collective {

class Instance {
 public:
  // The schedule must outlive the instance. Operations that need nothing are open at once.
  explicit Instance(const Schedule& schedule);

  // Sets an operation going that needs any of several, from outside. Does nothing if it is or was
  // going.
  void fire(uint32_t number);
  // Says that all of an open operation has been done.
  void complete(uint32_t number);

  // Open operations, in ascending order: they may run, at least for some of their bytes, and are
  // not complete. A NOP is never among them.
  const std::vector<uint32_t>& open() const { return open_; }
  bool is_open(uint32_t number) const { return state_[number] == State::kOpen; }
  bool is_complete(uint32_t number) const { return state_[number] == State::kComplete; }
  // Returns whether the operation may run for all of its bytes.
  bool is_free(uint32_t number) const;
  // Returns whether everything is complete that runs in this execution. Signals to receive do not
  // count, nor does what only they would have set going.
  bool done() const { return left_ == 0; }

 private:
  enum class State : uint8_t { kClosed, kOpen, kComplete };

  bool must_run(uint32_t number) const;
  // Whether `later` may begin while `earlier`, which it needs, is open.
  bool share(uint32_t earlier, uint32_t later) const;
  void unlock(uint32_t earlier, bool complete);
  void open(uint32_t number);

  const Schedule& schedule_;
  std::vector<State> state_;
  std::vector<uint32_t> waits_;               // for how many operations each one still waits
  std::vector<uint32_t> followers_, follow_;  // who needs an operation; where they begin
  std::vector<uint32_t> open_;
  uint32_t left_ = 0;  // operations that are not complete and must run
};

}  // namespace herring::collective
