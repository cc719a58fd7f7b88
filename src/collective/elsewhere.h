// The interface to whatever does the sums of a run whose array is not in host memory. The run moves
// bytes of an image of the array. Both sides report their progress as counts of pieces, in the
// order of pieces().
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "collective/pieces.h"

namespace herring::collective {

// Loop thread only.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;

  virtual const std::vector<Piece>& pieces() const = 0;
  // outs() counts the pieces already copied to the image; ins() counts the other pieces that are
  // done.
  virtual uint32_t outs() const = 0;
  virtual uint32_t ins() const = 0;
  // Returns whether all pieces are done and nothing accesses the image or the array any more.
  virtual bool through() const = 0;
  // Returns why no more pieces will be done; ok if work goes on.
  virtual Status failure() const = 0;
  // Says that the input of the first `ins` pieces that are not copies to the image has arrived
  // there, so they may be done.
  virtual void arrived(uint32_t ins) = 0;
  // `call` is called whenever a result of the functions above may have changed. An empty function
  // ends that.
  virtual void on_progress(std::function<void()> call) = 0;
};

}  // namespace herring::collective
