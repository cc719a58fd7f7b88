// What combines this rank's slice of a buffer in the place of the node stage, which then keeps only
// the order: a device.
#pragma once

#include <cstdint>

namespace herring {

// Engine thread, but for what says otherwise.
class SliceAdder {
 public:
  virtual ~SliceAdder() = default;
  // All ranks of the node have posted the buffer. `active`: of them, by place among the group's
  // members here (bits), those that have something to add. When it is through, somebody calls
  // NodeStage::added().
  virtual void start(uint32_t active, double divisor) = 0;
  // What has not begun touches nothing any more, and is through as soon as it can be.
  virtual void stop() = 0;
  // Whether nothing that was started is under way. Any thread.
  virtual bool through() const = 0;
};

}  // namespace herring
