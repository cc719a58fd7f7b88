// The seam to what takes the sums of a run whose array does not lie in host memory. The run moves
// bytes of an image of the array. The two tell each other how far they are by counts of pieces, in
// the order of pieces().
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
  // How many of the pieces that go out are in the image; how many of the others are done.
  virtual uint32_t outs() const = 0;
  virtual uint32_t ins() const = 0;
  // All are done, and nothing touches the image or the array there any more.
  virtual bool through() const = 0;
  // Why nothing more will be done; ok: it goes on.
  virtual Status failure() const = 0;
  // The first so many of the pieces that do not go out may be done: what they need is in the image.
  virtual void arrived(uint32_t ins) = 0;
  // `call` is called whenever one of the above may have changed; an empty one ends that.
  virtual void on_progress(std::function<void()> call) = 0;
};

}  // namespace herring::collective
