// Combines this rank's slice of a buffer in place of the node stage, which then only keeps the
// order. A device implements this interface.
#pragma once

#include <cstdint>

namespace herring {

// Engine thread, unless stated otherwise.
class SliceAdder {
 public:
  virtual ~SliceAdder() = default;
  // Starts to combine a buffer that all ranks of the node have posted. `active`: bits by local
  // index of the members here that have something to add. NodeStage::added() must be called at the
  // end.
  virtual void start(uint32_t active, double divisor) = 0;
  // Where there are other nodes: returns whether it also gives the slice's result to all ranks of
  // the node. Otherwise these copy the result from this rank's memory.
  virtual bool gives() const { return false; }
  // Starts to give the result, which is in this rank's memory. NodeStage::given() must be called at
  // the end.
  virtual void give() {}
  // Stops: work that has not begun accesses no memory any more. All work then ends as soon as
  // possible.
  virtual void stop() = 0;
  // Returns whether no work that was started is still under way. Any thread.
  virtual bool through() const = 0;
};

}  // namespace herring
